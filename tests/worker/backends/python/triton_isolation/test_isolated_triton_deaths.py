"""Processes of Triton models that die, are killed or send nonsense: only their own requests fail."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import psutil
import pytest
from isolated_triton import END_MILLISECONDS, Server, context, failure, request, run, start
from structlog.testing import capture_logs

from isochrone.clock import SECOND
from isochrone.errors import ModelFailed, Unavailable
from isochrone.worker.backends.python.backend import load

pytestmark = pytest.mark.usefixtures("nothing_leaks")

#: Does what input x's first number says.
OBEDIENT = """
import socket

def second_link():
    return socket.socket(fileno=os.dup(int(sys.argv[3])))

class TritonPythonModel:
    def execute(self, requests):
        order = int(x_of(requests[0]).flat[0])
        if order == 1:
            os._exit(7)
        if order == 2:
            ctypes.string_at(0)
        if order == 3:
            os.kill(os.getpid(), 9)
        if order == 4:
            if os.fork() == 0:
                threading.Event().wait()
            os._exit(0)
        if order == 5:
            second_link().sendall(b"\\x03\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0abc")
            threading.Event().wait()
        if order == 6:
            second_link().sendall(b"\\xff" * 12)
            threading.Event().wait()
        return [response(x_of(request) * 2) for request in requests]
"""


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (1, "its process exited with code 7"),
        (2, "its process was killed by SIGSEGV"),
        (3, "its process was killed by SIGKILL"),
        (4, "its process exited with code 0"),
        (5, "its process was killed: not a message"),
        (6, "its process was killed: a message of"),
    ],
)
def test_a_death_fails_its_requests_and_the_next_is_served(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], order: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "was killed: " in message:
        monkeypatch.setattr(END_MILLISECONDS, 20)
    executable = start(tmp_path, OBEDIENT)
    group = executable.pid
    errors = executable.execute_requests([request(order), request(10)])
    assert all(isinstance(error, ModelFailed) for error in errors)
    assert str(errors[0]).startswith(f"model 'm' version 1: {message}")
    assert str(errors[1]) == str(errors[0])
    assert run(executable, request(10)) == [[20]]
    executable.close()
    assert ("Segmentation fault" in capfd.readouterr().err) == (order == 2)
    assert group is not None
    assert not [status for status in _states(group) if status != psutil.STATUS_ZOMBIE]


def test_an_answer_to_other_requests_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process answers a request twice, as one that has forked did: the next request must not get that answer."""
    monkeypatch.setattr(END_MILLISECONDS, 20)
    source = """
    import socket
    from isochrone.worker.backends.python.triton.isolation.messages import Outputs, Returned, encoded

    class TritonPythonModel:
        def execute(self, requests):
            if x_of(requests[0]).item() == 1:
                (part,) = encoded(Returned(1, [Outputs([], {})], -1, []))
                socket.socket(fileno=os.dup(int(sys.argv[2]))).sendall(part)
            return [response(x_of(request) * 2) for request in requests]
    """
    executable = start(tmp_path, source)
    assert executable.execute_requests([request(1)]) == [{}]
    error = failure(executable, request(3))
    assert str(error) == "model 'm' version 1: its process was killed: it answered request 1 instead of 2"
    assert run(executable, request(4)) == [[8]]
    executable.close()


def test_a_forked_copy_answers_nothing(tmp_path: Path) -> None:
    """Neither by its return, nor by a sender, nor from a thread."""
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            value = x_of(requests[0]).item()
            copy = os.fork()
            if copy == 0 and value == 2:
                requests[0].get_response_sender().send(response([[99]]), flags=1)
            if copy and value == 3:
                _, status = os.waitpid(copy, 0)
                copy = fork_on_thread(requests[0])
            if copy:
                _, status = os.waitpid(copy, 0)
                return [response([[value * 10, os.waitstatus_to_exitcode(status)]])]
            return [response([[99]])]

    def fork_on_thread(request):
        copies = []
        def run():
            sender = request.get_response_sender()
            copies.append(os.fork())
            if not copies[0]:
                sender.send(response([[99]]), flags=1)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return copies[0]

    """
    executable = start(tmp_path, source)
    assert run(executable, request(1)) == [[10, 0]]
    assert run(executable, request(2)) == [[20, 1]]
    assert run(executable, request(3)) == [[30, 0]]
    assert run(executable, request(4)) == [[40, 0]]
    executable.close()


def _states(group: int) -> list[str]:
    states = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group:
                states.append(process.info["status"])
        except ProcessLookupError:
            continue
    return states


def test_a_process_killed_while_idle_costs_nobody_a_failure(tmp_path: Path) -> None:
    executable = start(tmp_path, OBEDIENT)
    assert executable.pid is not None
    death = os.pidfd_open(executable.pid)
    os.kill(executable.pid, signal.SIGKILL)
    select.select([death], [], [])
    os.close(death)
    assert executable._session is not None
    executable._session._thread.join()  # it has noticed
    assert executable.pid is None
    assert run(executable, request(10)) == [[20]]
    executable.close()


class StoppedClock:
    """Stands in for the clock: no time passes."""

    SECOND = SECOND

    def now_ns(self) -> int:
        return 7 * SECOND


def test_deaths_in_a_row_make_callers_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.worker.backends.processes.restarts.clock", StoppedClock())
    executable = start(tmp_path, OBEDIENT)
    for _ in range(2):
        assert isinstance(failure(executable, request(1)), ModelFailed)
    refused = failure(executable, request(10))
    assert isinstance(refused, Unavailable)
    assert str(refused).endswith("exited with code 7, 2 times in a row; it is started again in 0.1 s")
    executable._restarts._not_before = 0
    assert run(executable, request(10)) == [[20]]
    executable.close()


def test_descriptors_and_threads_are_given_back_at_every_death(tmp_path: Path) -> None:
    executable = start(tmp_path, OBEDIENT)
    me = psutil.Process()
    run(executable, request(10))
    descriptors, threads = me.num_fds(), me.num_threads()
    for _ in range(3):
        failure(executable, request(1))
        run(executable, request(10))
        assert me.num_fds() == descriptors
        assert me.num_threads() == threads
    executable.close()


def test_a_process_that_dies_and_comes_back_is_told_in_the_log(tmp_path: Path) -> None:
    with capture_logs() as lines:
        executable = start(tmp_path, OBEDIENT, server=Server())
        assert not lines
        for _ in range(2):
            failure(executable, request(1))
            run(executable, request(10))
        executable.close()
    assert [(line["event"], line["log_level"], line["not_shown"]) for line in lines] == [
        ("the process of a model was lost", "warning", 0),
        ("the process of a model was restarted", "warning", 0),
    ]
    assert lines[0]["how"] == "its process exited with code 7"


def test_a_process_that_fails_while_loading_is_the_loads_to_tell(tmp_path: Path) -> None:
    with capture_logs() as lines, pytest.raises(ModelFailed):
        load(context(tmp_path, "os._exit(3)\nclass TritonPythonModel: pass"))
    assert not lines


def test_a_finalize_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests): ...

        def finalize(self):
            threading.Event().wait()
    """
    monkeypatch.setattr("isochrone.worker.backends.python.triton.isolation.session._CLOSE_MILLISECONDS", 100)
    start(tmp_path, source).close()
