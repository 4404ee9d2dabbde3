"""Where a torch model runs: an AOTInductor package for CUDA in a process of its own, unless the configuration decides.

The packages here are archives that only say what they were compiled for: nothing loads them.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from config_text import parameter, tensors
from hypothesis import given
from hypothesis import strategies as st
from load_contexts import MakeContext
from structlog.testing import capture_logs

from isochrone.errors import ConfigError
from isochrone.worker.backends.torch import backend, isolated
from isochrone.worker.backends.torch.packages import needs_own_process

FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32")


def write_package(directory: Path, device: str) -> None:
    with zipfile.ZipFile(directory / "model.pt2", "w") as archive:
        archive.writestr("model/data/aotinductor/model/a.wrapper.so", b"no library")
        described = json.dumps({"AOTI_DEVICE_KEY": device})
        archive.writestr("model/data/aotinductor/model/a.wrapper_metadata.json", described)


def write_program(directory: Path) -> None:
    with zipfile.ZipFile(directory / "model.pt2", "w") as archive:
        archive.writestr("model/models/model.json", "{}")


@given(
    st.none() | st.dictionaries(st.sampled_from(["AOTI_DEVICE_KEY", "AOTI_MACHINE"]), st.sampled_from(["cpu", "cuda"]))
)
def test_packages_for_cuda_and_no_other_files_need_a_process(target: dict[str, str] | None) -> None:
    assert needs_own_process(target) == ((target or {}).get("AOTI_DEVICE_KEY") == "cuda")


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where models were loaded; none is."""
    found: list[str] = []

    def here(context: Any) -> Any:
        found.append("thread")

    def in_child(context: Any, loader: str, sent: Any) -> Any:
        assert loader == isolated.__name__
        found.append("process")

    monkeypatch.setattr(backend, "load_here", here)
    monkeypatch.setattr(backend, "IsolatedExecutable", in_child)
    return found


@pytest.mark.parametrize(
    ("kind", "isolation", "place"),
    [
        ("cuda", "", "process"),
        ("cuda", "thread", "thread"),
        ("cuda", "Process", "process"),
        ("cpu", "", "thread"),
        ("cpu", "process", "process"),
        ("program", "", "thread"),
        ("program", "process", "process"),
        ("broken", "", "thread"),
        ("script", "", "thread"),
    ],
)
def test_where_a_model_runs(
    tmp_path: Path, make_context: MakeContext, places: list[str], kind: str, isolation: str, place: str
) -> None:
    if kind in ("cuda", "cpu"):
        write_package(tmp_path, kind)
    elif kind == "program":
        write_program(tmp_path)
    else:
        (tmp_path / ("model.pt" if kind == "script" else "model.pt2")).write_bytes(b"no archive")
    backend.load(make_context(FLOATS + (parameter("isolation", isolation) if isolation else "")))
    assert places == [place]


def test_the_choice_is_logged_once(tmp_path: Path, make_context: MakeContext, places: list[str]) -> None:
    write_package(tmp_path, "cuda")
    context = make_context(FLOATS)
    with capture_logs() as lines:
        for instance in range(3):
            backend.load(dataclasses.replace(context, instance=instance))
    assert places == ["process"] * 3
    (line,) = lines
    assert line["event"].startswith("an AOTInductor package for CUDA runs in a process of its own")
    assert (line["model"], line["log_level"]) == ("m", "info")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_explicit_choice_is_not_logged(
    tmp_path: Path, make_context: MakeContext, places: list[str], isolation: str
) -> None:
    write_package(tmp_path, "cuda")
    with capture_logs() as lines:
        backend.load(make_context(FLOATS + parameter("isolation", isolation)))
    assert places == [isolation]
    assert lines == []


def test_a_package_that_reserves_multiprocessors_has_to_choose_the_worker(
    tmp_path: Path, make_context: MakeContext, places: list[str]
) -> None:
    write_package(tmp_path, "cuda")
    reserving = FLOATS + parameter("reserved_sms", "16")
    with pytest.raises(ConfigError, match=r'"thread" for a model with reserved_sms.*given .nothing: a package for'):
        backend.load(make_context(reserving))
    assert places == []
    backend.load(make_context(reserving + parameter("isolation", "thread")))
    assert places == ["thread"]


def test_the_process_loads_the_package_itself_and_the_worker_imports_no_torch(tmp_path: Path) -> None:
    """The process finds that this package is not for a CPU. Would it ask for a further process, nothing would end."""
    write_package(tmp_path, "cuda")
    worker = f"""
import pathlib, sys
from tritonclient.grpc import model_config_pb2
from google.protobuf import text_format
from isochrone.errors import ConfigError
from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.backend import load
config = model_config_pb2.ModelConfig(name="m")
text_format.Parse({FLOATS + "instance_group { kind: KIND_CPU }"!r}, config)
try:
    load(LoadContext("m", "1", pathlib.Path({str(tmp_path)!r}), config, signature_of(config), 0, (), {{}}))
except ConfigError as error:
    print(error, "torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, timeout=120, check=True)
    assert "compiled for the device 'cpu': compile it for this machine, given one for 'cuda' False" in done.stderr
