"""An isolated model whose GPU fails: the process ends, its call says why, and the next call has a new process."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from config_text import parameter, tensors
from load_contexts import MakeContext
from started_executables import started
from structlog.testing import capture_logs

from isochrone.errors import InvalidArgument, ModelFailed, Unavailable
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.isolation.sent_context import sent_context
from isochrone.worker.backends.processes import restarts

MakeExecutable = Callable[..., IsolatedExecutable]
pytestmark = pytest.mark.usefixtures("nothing_leaks")

FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32") + parameter("isolation", "process")
LOST = "model 'm' version 1: infer: its process lost its device and was ended: CUDA error: "


@pytest.fixture
def make_executable(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> MakeExecutable:
    """The child imports ``lost_device_loader`` beside this file."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")

    def make(config: str, gpu: int | None = 3) -> IsolatedExecutable:
        context = dataclasses.replace(make_context(config), gpu=gpu)
        return started(IsolatedExecutable(context, "lost_device_loader", sent_context(context)))

    return make


def ask(executable: IsolatedExecutable, number: int) -> float:
    return float(executable.execute({"x": np.array([[number]], np.float32)}, None)["y"].item())


@pytest.mark.parametrize(
    ("order", "reason"), [(1, "an illegal memory access was encountered"), (2, "device-side assert triggered")]
)
def test_a_lost_gpu_ends_the_process(make_executable: MakeExecutable, order: int, reason: str) -> None:
    executable = make_executable(FLOATS)
    first = executable.pid
    assert first is not None
    with capture_logs() as lines, pytest.raises(ModelFailed) as failed:
        ask(executable, order)
    assert str(failed.value) == LOST + reason
    assert "in execute" in failed.value.__notes__[0]
    assert not psutil.pid_exists(first)
    assert [line["event"] for line in lines] == ["the process of a model was lost"]
    assert ask(executable, 10) == 20
    assert executable.pid not in (first, None)
    executable.close()


def test_a_gpu_that_is_lost_again_and_again_makes_callers_wait(
    make_executable: MakeExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_NS", restarts._LONGEST_PAUSE_NS)
    executable = make_executable(FLOATS)
    for _ in range(2):
        with pytest.raises(ModelFailed):
            ask(executable, 1)
    with pytest.raises(Unavailable, match="lost its device and was ended: CUDA error: an illegal") as refused:
        ask(executable, 10)
    assert refused.value.retry_after > 0.2
    executable.close()


def test_out_of_memory_costs_no_process(make_executable: MakeExecutable) -> None:
    executable = make_executable(FLOATS)
    first = executable.pid
    with pytest.raises(ModelFailed, match=r"answering raised MemoryError: CUDA out of memory\. Tried") as failed:
        ask(executable, 3)
    assert "in execute" in failed.value.__notes__[0]
    assert ask(executable, 10) == 20
    assert executable.pid == first
    executable.close()


def test_an_error_of_the_caller_stays_one(make_executable: MakeExecutable) -> None:
    executable = make_executable(FLOATS)
    with pytest.raises(InvalidArgument) as refused:
        ask(executable, 4)
    assert str(refused.value) == "an index beyond the table"
    executable.close()


def test_a_load_that_raises_anything_says_it(make_executable: MakeExecutable) -> None:
    with pytest.raises(ModelFailed, match="model 'm' version 1: load raised ZeroDivisionError: on GPU 3"):
        make_executable(FLOATS + parameter("fails", "yes"))
    with pytest.raises(ModelFailed, match="load raised ZeroDivisionError: on GPU None"):
        make_executable(FLOATS + parameter("fails", "yes"), gpu=None)
