"""Response senders of a Triton model in a process of its own: during and after execute, fast and slow callers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from isolated_triton import DECOUPLED, outlet, request, run, start, write_whole
from psutil import Process

from isochrone.errors import ModelFailed
from isochrone.worker.backends.python.triton.isolation.messages import RESPONSES_AHEAD

pytestmark = pytest.mark.usefixtures("nothing_leaks")

#: Answers later, when a file named by the request is there.
LATER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.later, args=(request, request.get_response_sender()), daemon=True).start()
        return [None] * len(requests)

    def later(self, request, sender):
        path = pathlib.Path(__file__).parent / request.request_id()
        while not path.exists():
            time.sleep(0.002)
        if path.read_text() == "die":
            os._exit(4)
        if path.read_text() == "drop":
            return
        sender.send(response(x_of(request)), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_answers_come_after_execute_has_returned(tmp_path: Path) -> None:
    executable = start(tmp_path, LATER)
    first, second = request(1, request_id="first"), request(2, request_id="second")
    assert run(executable, first) == [None]
    assert run(executable, second) == [None]
    (tmp_path / "second").touch()
    assert outlet(executable, second).next() == ([2], True)
    (tmp_path / "first").touch()
    assert outlet(executable, first).next() == ([1], True)
    third = request(3, request_id="third")
    write_whole(tmp_path / "third", "drop")
    assert run(executable, third) == [None]
    abandoned, is_last = outlet(executable, third).next()
    assert "the response sender was deleted before the last response was sent" in str(abandoned)
    assert is_last
    executable.close()


def test_a_death_answers_what_is_left_and_the_next_request_is_served(tmp_path: Path) -> None:
    executable = start(tmp_path, LATER)
    left, killer = request(1, request_id="left"), request(2, request_id="killer")
    assert run(executable, left, killer) == [None, None]
    write_whole(tmp_path / "killer", "die")
    for asked in (left, killer):
        error, is_last = outlet(executable, asked).next()
        assert is_last
        assert isinstance(error, ModelFailed)
        assert str(error) == "model 'm' version 1: its process exited with code 4"
    again = request(3, request_id="again")
    (tmp_path / "again").touch()
    assert run(executable, again) == [None]
    assert outlet(executable, again).next() == ([3], True)
    executable.close()


def test_an_answer_that_was_sent_before_the_death_counts(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            sender.send(response([[1]]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            os._exit(4)
    """
    executable = start(tmp_path, source)
    answered, lost = request(1), request(2)
    first, second = executable.execute_requests([answered, lost])
    assert first is None
    assert outlet(executable, answered).next() == ([1], True)
    assert str(second) == "model 'm' version 1: its process exited with code 4"
    executable.close()


def test_execute_fails_after_a_sender_was_taken(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            raise ValueError("too late")
    """
    executable = start(tmp_path, source)
    asked = request(1)
    assert run(executable, asked) == [None]
    error, is_last = outlet(executable, asked).next()
    assert is_last
    assert "ValueError: too late" in str(error)
    assert "in execute" in error.__notes__[0]
    executable.close()


def test_a_stream_waits_for_its_caller_and_for_no_other(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.stream, args=(request.get_response_sender(),), daemon=True).start()

        def stream(self, sender):
            for number in range(50):
                sender.send(response([[number]]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    executable = start(tmp_path, source, DECOUPLED)
    slow, fast = request(1), request(2)
    outlet(executable, slow).holds_back = True
    assert run(executable, slow) == [None]
    assert [outlet(executable, slow).next()[0] for _ in range(RESPONSES_AHEAD)] == [[n] for n in range(RESPONSES_AHEAD)]
    assert run(executable, fast) == [None]
    assert [outlet(executable, fast).next() for _ in range(51)][-1] == (None, True)
    assert outlet(executable, slow).answers.empty()
    outlet(executable, slow).holds_back = False
    for _ in range(RESPONSES_AHEAD):
        outlet(executable, slow).held_back.get(timeout=60)()
    numbers = [outlet(executable, slow).next() for _ in range(50 - RESPONSES_AHEAD + 1)]
    assert numbers[-1] == (None, True)
    assert [value for value, _ in numbers[:-1]] == [[n] for n in range(RESPONSES_AHEAD, 50)]
    executable.close()


def test_a_model_learns_that_its_caller_has_gone(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            while not requests[0].is_cancelled():
                time.sleep(0.002)
            return [response([[float(request.is_cancelled()) for request in requests]])] * len(requests)
    """
    executable = start(tmp_path, source)
    gone, stays = request(1), request(2)
    leaving = threading.Timer(0.05, lambda: setattr(gone, "cancelled", True))
    leaving.start()
    assert run(executable, gone, stays) == [[1, 0], [1, 0]]
    leaving.join()
    executable.close()


def test_a_stream_learns_that_its_caller_has_gone_after_execute(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            threading.Thread(target=self.stream, args=(requests[0], requests[0].get_response_sender())).start()

        def stream(self, request, sender):
            while not sender.is_cancelled():
                time.sleep(0.002)
            assert request.is_cancelled()
            sender.send(response([[7]]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    executable = start(tmp_path, source, DECOUPLED)
    asked = request(1)
    assert run(executable, asked) == [None]
    outlet(executable, asked).cancelled.set()
    assert outlet(executable, asked).next() == ([7], True)
    executable.close()


def test_requests_that_a_decoupled_model_lets_go_of_end(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            return None
    """
    executable = start(tmp_path, source, DECOUPLED)
    asked = request(1)
    assert run(executable, asked) == [None]
    assert outlet(executable, asked).next() == (None, True)
    executable.close()


def test_coroutines_of_a_decoupled_model_serve_many_at_once(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        waiting = 0

        async def execute(self, requests):
            TritonPythonModel.waiting += 1
            while TritonPythonModel.waiting < 2:
                await asyncio.sleep(0.001)
            if x_of(requests[0]).item() == 2:
                raise ValueError("the second one")
            requests[0].get_response_sender().send(response(x_of(requests[0])), flags=1)
    """
    executable = start(tmp_path, source, DECOUPLED)
    first, second = request(1), request(2)
    assert run(executable, first) == [None]
    assert run(executable, second) == [None]
    assert outlet(executable, first).next() == ([1], True)
    error, _ = outlet(executable, second).next()
    assert "ValueError: the second one" in str(error)
    executable.close()


HANGS = """
class TritonPythonModel:
    def execute(self, requests):
        order = x_of(requests[0]).item()
        if order == 1:
            threading.Event().wait()
        if order == 2:
            threading.Thread(target=self.never, args=(requests[0].get_response_sender(),), daemon=True).start()
            return [None]
        return [response(x_of(request)) for request in requests]

    def never(self, sender):
        threading.Event().wait()
"""


def test_an_execute_that_hangs_costs_the_process(tmp_path: Path) -> None:
    executable = start(tmp_path, HANGS, execution_timeout_ms="1500")
    assert run(executable, request(5)) == [[5]]
    assert executable.pid is not None
    hung = Process(executable.pid)
    errors = executable.execute_requests([request(1), request(5)])
    text = "model 'm' version 1: execute took longer than execution_timeout_ms = 1500, its process was killed"
    assert [str(error) for error in errors] == [text, text]
    assert not hung.is_running()
    assert run(executable, request(5)) == [[5]]
    executable.close()


def test_an_answer_that_never_comes_costs_its_request_alone(tmp_path: Path) -> None:
    executable = start(tmp_path, HANGS, execution_timeout_ms="300")
    pid = executable.pid
    asked = request(2)
    assert run(executable, asked) == [None]
    error, is_last = outlet(executable, asked).next()
    assert is_last
    assert str(error) == "model 'm': a response took longer than execution_timeout_ms = 300; the request was ended"
    assert run(executable, request(5)) == [[5]]
    assert executable.pid == pid
    executable.close()


def test_a_stream_that_hangs_in_execute_costs_the_process(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            sender.send(response([[1]]), flags=int(x_of(requests[0]).item() == 2))
            if x_of(requests[0]).item() < 3:
                threading.Event().wait()
            sender.send(flags=1)
    """
    executable = start(tmp_path, source, DECOUPLED, execution_timeout_ms="600")
    for order in (1, 2):  # after a response, and after the last one
        pid = executable.pid
        asked = request(order)
        assert run(executable, asked) == [None]
        assert outlet(executable, asked).next() == ([1], order == 2)
        error, is_last = outlet(executable, asked).next()
        assert is_last
        assert isinstance(error, ModelFailed)
        fine = request(3)
        assert run(executable, fine) == [None]
        assert outlet(executable, fine).next() == ([1], False)
        assert executable.pid != pid
    executable.close()
