"""Requests that the event loop's thread sends to a process itself, and what happens when that goes wrong."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import uvloop
from isolated_triton import DECOUPLED, END_MILLISECONDS, Server, answer_with, outlet, request, run, start, write_whole

from isochrone.errors import ModelFailed
from isochrone.protocol.messages import InferRequest
from isochrone.worker.backends.python.triton.isolation.executable import IsolatedTritonExecutable

pytestmark = pytest.mark.usefixtures("nothing_leaks")

# The first loop of uvloop opens descriptors that the process keeps.
uvloop.new_event_loop().close()

#: Does what input x's first number says; a run announces itself by a file.
OBEDIENT = """
import signal, socket

HERE = pathlib.Path(__file__).parent

def link():
    return socket.socket(fileno=os.dup(int(sys.argv[2])))

class TritonPythonModel:
    def execute(self, requests):
        order = int(x_of(requests[0]).flat[0])
        (HERE / "begun").touch()
        if order == 1:
            os._exit(7)
        if order == 2:
            threading.Event().wait()
        if order == 3:
            if os.fork() == 0:
                threading.Event().wait()
            os._exit(0)
        if order == 4:
            link().sendall(b"\\x03\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0abc")
            threading.Event().wait()
        if order == 5:
            link().sendall(b"\\xff" * 12)
            threading.Event().wait()
        if order == 6:
            link().sendall(b"\\x08\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\x91\\xa6Closed")
            threading.Event().wait()
        if order == 7:
            os.kill(os.getpid(), signal.SIGSTOP)
        if order == 8:
            link().sendall(b"\\x10\\0\\0\\0\\0\\0")
            os._exit(5)
        if order == 9:
            while not requests[0].is_cancelled():
                time.sleep(0.002)
            return [response([[float(request.is_cancelled()) for request in requests]])] * len(requests)
        return [response(x_of(request) * 2) for request in requests]

    def finalize(self):
        (HERE / "finalized").touch()
"""


def on_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    """On both kinds of event loop."""
    for runner in (asyncio.Runner(), asyncio.Runner(loop_factory=uvloop.new_event_loop)):
        with runner:
            runner.run(asyncio.wait_for(scenario(), 60))


async def begun(executable: IsolatedTritonExecutable, *requests: InferRequest) -> list[Any]:
    """The answers; outputs as lists of numbers."""
    came = begin(executable, *requests)
    return [answer["y"].ravel().tolist() if isinstance(answer, dict) else answer for answer in await came]


def begin(executable: IsolatedTritonExecutable, *requests: InferRequest) -> asyncio.Future[list[Any]]:
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    assert executable.begin_requests(requests, future.set_result)
    assert not future.done()
    return future


async def file_is_there(path: Path) -> None:
    while not _removed(path):  # noqa: ASYNC110
        await asyncio.sleep(0.002)


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


async def on_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def test_small_requests_go_over_without_a_thread_and_large_ones_by_the_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        assert executable.begins_on_loop
        large = request(array=np.full((1, 100_000), 10, np.float32))
        for number in range(3):
            assert await begun(executable, request(10, number), request(20)) == [[20, 2 * number], [40]]
            middle = request(array=np.full((1, 5_000), 10, np.float32))
            assert await begun(executable, middle) == [[20.0] * 5_000]
            assert not executable.begin_requests([large], lambda answers: None)
            assert await on_thread(run, executable, large) == [[20.0] * 100_000]
            assert await on_thread(run, executable, request(30)) == [[60]]
        await on_thread(executable.close)

    on_loop(scenario)


def test_what_the_process_cannot_be_given_is_left_to_the_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        strange = request(10, parameters={"large": 1 << 70})
        assert not executable.begin_requests([strange], lambda answers: None)
        (error,) = await on_thread(executable.execute_requests, [strange])
        assert "cannot be passed to its process" in str(error)
        assert await begun(executable, request(10)) == [[20]]
        await on_thread(executable.close)

    on_loop(scenario)


def test_a_decoupled_model_never_begins_on_the_loop(tmp_path: Path) -> None:
    executable = start(tmp_path, OBEDIENT, DECOUPLED)
    assert not executable.begins_on_loop
    executable.close()


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (1, "its process exited with code 7"),
        (3, "its process exited with code 0"),
        (4, "its process was killed: not a message"),
        (5, "its process was killed: a message of"),
        (6, "its process was killed: its process answered Closed to requests"),
        (8, "its process exited with code 5"),
    ],
)
def test_a_death_fails_what_is_in_the_process(
    tmp_path: Path, order: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "was killed: " in message:
        monkeypatch.setattr(END_MILLISECONDS, 20)

    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        assert await begun(executable, request(10)) == [[20]]
        errors = await begun(executable, request(order), request(10))
        assert [type(error) for error in errors] == [ModelFailed, ModelFailed]
        assert str(errors[0]).startswith(f"model 'm' version 1: {message}")
        assert str(errors[1]) == str(errors[0])
        # A new process is the thread's to start.
        assert not executable.begin_requests([request(10)], lambda answers: None)
        assert await on_thread(run, executable, request(10)) == [[20]]
        assert await begun(executable, request(11)) == [[22]]
        await on_thread(executable.close)

    on_loop(scenario)


def test_a_process_that_is_killed_fails_what_is_in_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        came = begin(executable, request(2))
        await file_is_there(tmp_path / "begun")
        assert executable.pid is not None
        os.kill(executable.pid, signal.SIGKILL)
        (error,) = await came
        assert str(error) == "model 'm' version 1: its process was killed by SIGKILL"
        await on_thread(executable.close)

    on_loop(scenario)


@pytest.mark.parametrize("order", [2, 7])
def test_execute_has_a_limit(tmp_path: Path, order: int) -> None:
    """Of a process that hangs, and of one that is stopped."""

    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT, execution_timeout_ms="700")
        assert executable.pid is not None
        hung = psutil.Process(executable.pid)
        errors = await begun(executable, request(order), request(10))
        text = "model 'm' version 1: execute took longer than execution_timeout_ms = 700, its process was killed"
        assert [str(error) for error in errors] == [text, text]
        assert not hung.is_running()
        assert await on_thread(run, executable, request(10)) == [[20]]
        assert await begun(executable, request(10)) == [[20]]
        await on_thread(executable.close)

    on_loop(scenario)


def test_a_model_learns_that_its_caller_has_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        gone, stays = request(9), request(10)
        came = begin(executable, gone, stays)
        await file_is_there(tmp_path / "begun")
        gone.cancelled = True
        assert [answer["y"].tolist() for answer in await came] == [[[1, 0]], [[1, 0]]]
        await on_thread(executable.close)

    on_loop(scenario)


def test_a_process_killed_while_idle_costs_nobody_a_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        assert await begun(executable, request(10)) == [[20]]
        assert executable.pid is not None
        assert executable._session is not None
        os.kill(executable.pid, signal.SIGKILL)
        await on_thread(executable._session._thread.join)
        assert not executable.begin_requests([request(10)], lambda answers: None)
        assert await on_thread(run, executable, request(10)) == [[20]]
        await on_thread(executable.close)

    on_loop(scenario)


def test_a_question_at_the_moment_of_a_death_is_answered(tmp_path: Path) -> None:
    """The session has ended before the loop was there to be called."""

    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        session = executable._session
        assert session is not None
        assert executable.pid is not None
        os.kill(executable.pid, signal.SIGKILL)
        await on_thread(session._thread.join)
        error, session.error = session.error, None  # as a thread that looked a moment earlier saw it
        came = begin(executable, request(10))
        session.error = error
        session._loop_link.call_asker(session._lost)
        (answer,) = await came
        assert str(answer) == "model 'm' version 1: its process was killed by SIGKILL"
        await on_thread(executable.close)

    on_loop(scenario)


def test_close_while_the_answer_is_awaited_lets_the_model_finish(tmp_path: Path) -> None:
    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        asked = request(9)
        begin(executable, asked)
        await file_is_there(tmp_path / "begun")
        # The thread that closes it waits for the run, which ends because its caller has gone.
        asked.cancelled = True
        await on_thread(executable.close)
        await file_is_there(tmp_path / "finalized")

    on_loop(scenario)


def test_close_ends_a_process_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.worker.backends.python.triton.isolation.session._CLOSE_MILLISECONDS", 100)

    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        came = begin(executable, request(2))
        await file_is_there(tmp_path / "begun")
        assert executable.pid is not None
        hung = psutil.Process(executable.pid)
        await on_thread(executable.close)
        assert not hung.is_running()
        (error,) = await came
        assert isinstance(error, ModelFailed)

    on_loop(scenario)


def test_a_sender_answers_after_execute_has_returned(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.later, args=(request, request.get_response_sender()), daemon=True).start()
            return None

        def later(self, request, sender):
            path = pathlib.Path(__file__).parent / request.request_id()
            while not path.exists():
                time.sleep(0.002)
            if path.read_text() == "die":
                os._exit(4)
            sender.send(response(x_of(request)), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """

    async def scenario() -> None:
        executable = start(tmp_path, source)
        _removed(tmp_path / "r-0")
        _removed(tmp_path / "r-1")
        first, second, third = (request(n, request_id=f"r-{n}") for n in range(3))
        assert await begun(executable, first, second) == [None, None]
        assert await begun(executable, third) == [None]
        (tmp_path / "r-1").touch()
        assert await on_thread(outlet(executable, second).next) == ([1], True)
        write_whole(tmp_path / "r-0", "die")
        for asked in (first, third):
            error, is_last = await on_thread(outlet(executable, asked).next)
            assert is_last
            assert str(error) == "model 'm' version 1: its process exited with code 4"
        await on_thread(executable.close)

    on_loop(scenario)


def test_a_model_that_is_answered_by_the_loop_may_call_others(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            answered = call(request_id="inner").exec()
            y = pb_utils.get_output_tensor_by_name(answered, "y").as_numpy()
            return [response(y + x_of(request)) for request in requests]
    """

    async def scenario() -> None:
        server = Server()
        executable = start(tmp_path, source, server=server)
        loop = asyncio.get_running_loop()
        came = begin(executable, request(1))
        _, deliver = await on_thread(server.next_call)
        # As the worker does: the called model answers on the loop's thread.
        loop.call_soon(deliver, answer_with(5), True)
        assert [answer["y"].tolist() for answer in await came] == [[[6]]]
        await on_thread(executable.close)

    on_loop(scenario)


def test_a_link_that_takes_only_a_part_gets_the_rest_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        executable = start(tmp_path, OBEDIENT)
        session = executable._session
        assert session is not None
        session._loop_link._link = _Narrow(session._first)
        assert await begun(executable, request(10, 20, 30), request(40)) == [[20, 40, 60], [80]]
        assert await begun(executable, request(50)) == [[100]]
        session._loop_link._link = session._first
        await on_thread(executable.close)

    on_loop(scenario)


class _Narrow:
    """Takes 100 bytes, then nothing once, then 100 bytes, ..."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._is_full = False

    def send(self, data: bytes, flags: int) -> int:
        self._is_full = not self._is_full
        if not self._is_full:
            raise BlockingIOError
        return int(self._link.send(data[:100], flags))

    def dup(self) -> Any:
        return self._link.dup()
