"""An isolated model whose process ends between two calls: it is replaced at once, without a call."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from config_text import parameter, tensors
from load_contexts import MakeContext
from started_executables import started
from structlog.testing import capture_logs

from isochrone.errors import ModelFailed
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.isolation.sent_context import sent_context

MakeExecutable = Callable[..., IsolatedExecutable]
pytestmark = pytest.mark.usefixtures("nothing_leaks")

FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32") + parameter("isolation", "process")
X = {"x": np.array([[4]], np.float32)}


@pytest.fixture
def make_executable(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> MakeExecutable:
    """The child imports ``kept_loader`` beside this file."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")

    def make(*, decoupled: bool = False) -> IsolatedExecutable:
        context = make_context(FLOATS)
        return started(IsolatedExecutable(context, "kept_loader", sent_context(context), decoupled))

    return make


def until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.01)


def kill(executable: IsolatedExecutable) -> int:
    """Kills the process; its id."""
    pid = executable.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def is_replaced(executable: IsolatedExecutable, pid: int) -> bool:
    return executable.is_available() and executable.pid not in (None, pid)


def test_a_process_that_ends_is_replaced_without_a_call(make_executable: MakeExecutable) -> None:
    executable = make_executable()
    assert executable.is_available()
    with capture_logs() as lines:
        first = kill(executable)
        until(lambda: is_replaced(executable, first))
        until(lambda: len(lines) == 2)
    assert [line["event"] for line in lines] == [
        "the process of a model was lost",
        "the process of a model was restarted",
    ]
    assert lines[0]["how"] == "between two calls its process was killed by SIGKILL"
    second = executable.pid
    assert executable.execute(X, None)["y"].item() == 8
    assert executable.pid == second
    # It is watched as the first one was.
    kill(executable)
    until(lambda: is_replaced(executable, second or 0))
    assert executable.execute(X, None)["y"].item() == 8
    executable.close()


def test_a_process_may_say_why_it_ends(make_executable: MakeExecutable, tmp_path: Path) -> None:
    executable = make_executable()
    first = executable.pid or 0
    with capture_logs() as lines:
        (tmp_path / "lose").touch()
        until(lambda: is_replaced(executable, first))
    assert lines[0]["how"] == "between two calls its process was ended: a rank is gone"
    executable.close()


def test_it_is_not_available_until_the_next_process_has_loaded(make_executable: MakeExecutable, tmp_path: Path) -> None:
    executable = make_executable()
    (tmp_path / "wait").touch()
    kill(executable)
    until((tmp_path / "waiting").exists)
    assert not executable.is_available()
    (tmp_path / "wait").unlink()
    # A call waits for that process, and does not start another.
    assert executable.execute(X, None)["y"].item() == 8
    assert executable.is_available()
    executable.close()


def test_a_load_that_fails_is_tried_again_without_a_call(make_executable: MakeExecutable, tmp_path: Path) -> None:
    executable = make_executable()
    (tmp_path / "fail").touch()
    with capture_logs() as lines:
        first = kill(executable)
        until(lambda: "the process of a model cannot be restarted" in [line["event"] for line in lines])
        assert not executable.is_available()
        (tmp_path / "fail").unlink()
        until(lambda: is_replaced(executable, first))
    (failure,) = (line for line in lines if "cannot be restarted" in line["event"])
    assert failure["error"] == "the load fails"
    executable.close()


def test_a_close_ends_a_process_that_is_loading(make_executable: MakeExecutable, tmp_path: Path) -> None:
    executable = make_executable()
    (tmp_path / "wait").touch()
    first = kill(executable)
    until((tmp_path / "waiting").exists)
    second = executable.pid
    assert second not in (None, first)
    executable.close()
    assert not psutil.pid_exists(second or 0)


def test_a_stream_whose_process_ends_between_two_responses_fails(make_executable: MakeExecutable) -> None:
    executable = make_executable(decoupled=True)
    responses = executable.stream(X, {})
    assert next(responses)["y"].item() == 8
    first = kill(executable)
    until(lambda: is_replaced(executable, first))
    with pytest.raises(ModelFailed, match="model 'm' version 1: between two calls its process was killed by SIGKILL"):
        next(responses)
    again = executable.stream(X, {})
    assert next(again)["y"].item() == 8
    again.close()  # type: ignore[attr-defined]
    executable.close()
