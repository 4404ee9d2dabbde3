"""Devices that a process has lost: what is logged, and that the page on GPUs says the same as the code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from isochrone.devices import losses
from isochrone.devices.explanation import DriverFacts, explain

PAGE = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()


@pytest.fixture(autouse=True)
def _no_loss() -> Iterator[None]:
    yield
    losses.forget()


def test_the_first_error_of_a_device_is_the_one_that_is_logged() -> None:
    assert not losses.is_lost()
    with capture_logs() as lines:
        losses.record("cuda:0", "CUDA error: misaligned address")
        losses.record("cuda:0", "CUDA error: context is destroyed")
        losses.record("cuda:1", "CUDA error: unspecified launch failure")
    assert losses.is_lost()
    assert [(line["device"], line["reason"]) for line in lines] == [
        ("cuda:0", "CUDA error: misaligned address"),
        ("cuda:1", "CUDA error: unspecified launch failure"),
    ]
    assert lines[0]["event"] in re.sub(r"\s+", " ", PAGE)


def test_the_page_has_every_error_of_the_driver_that_is_explained() -> None:
    documented = re.findall(r"`(CUDA_ERROR_\w+)`", PAGE)
    for name in documented:
        assert "nvidia-smi may say more" not in explain(DriverFacts(True, name, 13020, 1), None, 0)
    source = Path(losses.__file__).with_name("explanation.py").read_text()
    explained = set(re.findall(r'"(CUDA_ERROR_\w+)"', source)) - {"CUDA_ERROR_NO_DEVICE"}
    assert explained == set(documented)


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_kept_outlives_the_interpreter(is_kept: bool) -> None:
    source = f"""
from isochrone.devices import losses

class Freed:
    def __del__(self): print("freed", flush=True)

one = Freed()
if {is_kept}:
    losses.keep(one)
"""
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ([] if is_kept else ["freed"])


def test_one_device_of_several() -> None:
    losses.record("cuda:1", "CUDA error: unspecified launch failure")
    try:
        assert losses.is_lost()
        assert losses.is_lost("cuda:1")
        assert not losses.is_lost("cuda:0")
    finally:
        losses.forget()
