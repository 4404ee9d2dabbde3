"""What a Triton model in a process of its own asks of the worker: calls of other models, loads, log lines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isolated_triton import DECOUPLED, Server, answer_with, outlet, request, run, start

from isochrone.worker.backends.python.triton.failures import TritonError
from isochrone.worker.backends.python.triton.isolation.calls import CallsOfChild
from isochrone.worker.backends.python.triton.isolation.messages import TAKEN_AT_ONCE, Call
from isochrone.worker.backends.python.triton.server import Errand

pytestmark = pytest.mark.usefixtures("nothing_leaks")


class Running:
    """A run on a thread of its own, as an instance's."""

    def __init__(self, executable: Any, *requests: Any) -> None:
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answers.extend(run(executable, *requests)))
        self._thread.start()

    def answers(self) -> list[Any]:
        self._thread.join(60)
        return self._answers


def test_a_call_is_made_on_behalf_of_its_caller(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            more = {"parameters": {"a": 1}, "correlation_id": 5, "flags": 1}
            answer = call(request_id="inner", model_version=2, timeout=9, **more).exec()
            assert not answer.has_error()
            assert json.loads(answer.parameters()) == {"b": 2}
            y = answer.output_tensors()[0].as_numpy()
            y += 1
            return [response(y)]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1, deadline=12345, priority=2, chain=(("caller", "1"), ("m", "1"))))
    call, deliver = server.next_call()
    assert call.errand == Errand(12345, 2, (("caller", "1"), ("m", "1")))
    assert (call.model_name, call.model_version, call.request_id, call.timeout_us) == ("other", 2, "inner", 9)
    assert (call.correlation_id, call.flags, call.takes_many, dict(call.parameters)) == (5, 1, False, {"a": 1})
    assert call.outputs == {"y"}
    (tensor,) = call.inputs
    assert (tensor.name(), tensor.as_numpy().tolist()) == ("x", [[1.0]])
    deliver(answer_with(4, parameters='{"b":2}'), True)
    assert running.answers() == [[5]]
    executable.close()


def test_errors_of_calls_keep_their_codes(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            error = call().exec().error()
            return [response([[error.code()]], parameters={"text": error.message()})]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1))
    server.next_call()[1](answer_with(error=TritonError("not there", TritonError.NOT_FOUND)), True)
    assert running.answers() == [[TritonError.NOT_FOUND]]
    executable.close()


def test_many_calls_are_in_flight_at_once(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            def one(number):
                answers.append(call(request_id=str(number)).exec().output_tensors()[0].as_numpy().item())
            threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return [response([sorted(answers)])]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1))
    calls = [server.next_call() for _ in range(4)]
    for call, deliver in reversed(calls):
        deliver(answer_with(int(call.request_id) * 10), True)
    assert running.answers() == [[0, 10, 20, 30]]
    executable.close()


def test_coroutines_call(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        async def execute(self, requests):
            answers = await asyncio.gather(*[call(request_id=str(number)).async_exec() for number in range(3)])
            stream = await call(request_id="3").async_exec(decoupled=True)
            answers += list(stream)
            return [response([[answer.output_tensors()[0].as_numpy().item() for answer in answers]])]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1, priority=1))
    calls = [server.next_call() for _ in range(3)]
    for call, deliver in reversed(calls):
        assert call.errand.priority == 1
        deliver(answer_with(int(call.request_id) * 10), True)
    call, deliver = server.next_call()
    assert call.takes_many
    deliver(answer_with(1), False)
    deliver(answer_with(2), True)
    assert running.answers() == [[0, 10, 20, 1, 2]]
    executable.close()


def test_a_stream_of_a_called_model_can_be_left(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = call(request_id="stream").exec(decoupled=True)
            first = next(iter(answers)).output_tensors()[0].as_numpy()
            answers.cancel()
            return [response(first)]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1))
    _, deliver = server.next_call()
    deliver(answer_with(3), False)
    assert running.answers() == [[3]]
    assert server.cancelled.get(timeout=60) == "stream"
    deliver(answer_with(4), True)
    executable.close()


def test_responses_that_the_model_has_taken_are_acknowledged(tmp_path: Path) -> None:
    """And no others: the called model waits for a caller that does not read."""
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = call().exec(decoupled=True)
            for _ in range(20):
                next(answers)
            path = pathlib.Path(__file__).parent / "open"
            while not path.exists():
                time.sleep(0.002)
            return [response([[len(list(answers))]])]
    """
    server, taken = Server(), threading.Semaphore(0)
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1))
    _, deliver = server.next_call()
    for number in range(64):
        answer = answer_with(number)
        answer.taken = taken.release
        deliver(answer, False)
    for _ in range(20 // TAKEN_AT_ONCE * TAKEN_AT_ONCE):
        assert taken.acquire(timeout=60)
    assert not taken.acquire(blocking=False)
    (tmp_path / "open").touch()
    for _ in range(64 - 20 // TAKEN_AT_ONCE * TAKEN_AT_ONCE):
        assert taken.acquire(timeout=60)
    deliver(answer_with(64), True)
    assert running.answers() == [[45]]
    executable.close()


def test_a_process_cannot_acknowledge_what_it_was_not_sent() -> None:
    taken: list[int] = []
    server = Server()
    calls = CallsOfChild(server, lambda frame: None)
    calls.start(Call(1, "other", -1, [], [], "", 0, 0, 0, {}, True, 0, 0, ()), np.empty(0, np.uint8))
    _, deliver = server.next_call()
    for number in range(3):
        answer = answer_with(number)
        answer.taken = lambda number=number: taken.append(number)
        deliver(answer, False)
    calls.taken(1, 2)
    assert taken == [0, 1]
    calls.taken(1, 1_000_000)
    calls.taken(2, 1)
    assert taken == [0, 1, 2]
    deliver(answer_with(3), True)
    calls.taken(1, 1)
    calls.cancel_all()
    assert server.cancelled.empty()


def test_a_coroutine_that_is_cancelled_leaves_its_calls(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        async def execute(self, requests):
            task = asyncio.ensure_future(call(request_id="left").async_exec(decoupled=True))
            await asyncio.sleep(0)
            task.cancel()
            return [response([[1]])]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    assert run(executable, request(1)) == [[1]]
    assert server.cancelled.get(timeout=60) == "left"
    executable.close()


def test_large_tensors_of_calls(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            x = pb_utils.Tensor("x", np.arange(3_000_000, dtype=np.float32))
            text = pb_utils.Tensor("text", np.array(["a", b"b", 3], dtype=np.object_))
            answer = call(inputs=[x, text]).exec().output_tensors()[0].as_numpy()
            return [response([[float((answer == x.as_numpy() * 2).all()), float(answer.flags.writeable)]])]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1))
    call, deliver = server.next_call()
    x, text = call.inputs
    assert text.as_numpy().tolist() == [b"a", b"b", b"3"]
    deliver(answer_with(*(x.as_numpy() * 2)), True)
    assert running.answers() == [[1, 1]]
    executable.close()


def test_a_thread_calls_while_nothing_runs(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def initialize(self, args):
            self.seen = threading.Event()
            threading.Thread(target=self.call, daemon=True).start()

        def call(self):
            self.value = call().exec().output_tensors()[0].as_numpy()
            self.seen.set()

        def execute(self, requests):
            self.seen.wait()
            return [response(self.value)]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    call, deliver = server.next_call()
    assert call.errand == Errand()
    deliver(answer_with(8), True)
    assert run(executable, request(1)) == [[8]]
    executable.close()


def test_a_death_cancels_the_calls_of_the_process(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            call(request_id="open").exec()
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1))
    _, deliver = server.next_call()
    assert executable._session is not None
    executable._session._process.end()
    (answer,) = running.answers()
    assert str(answer) == "model 'm' version 1: its process was killed by SIGKILL"
    assert server.cancelled.get(timeout=60) == "open"
    deliver(answer_with(1), True)  # to nobody
    executable.close()


def test_a_process_that_reads_nothing_delays_nobody(tmp_path: Path) -> None:
    """Responses that the link cannot take are sent later; the thread that delivers them is the event loop's."""
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = call(request_id="stream").exec(decoupled=True)
            ctypes.PyDLL(None).usleep(300_000)  # with the interpreter lock: no thread of this process reads
            return [response([[sum(answer.output_tensors()[0].as_numpy().sum() for answer in answers)]])]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    running = Running(executable, request(1))
    _, deliver = server.next_call()
    for number in range(20):
        deliver(answer_with(*np.ones(100_000)), number == 19)
    assert running.answers() == [[2_000_000]]
    executable.close()


def test_the_worker_is_asked_and_told(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def initialize(self, args):
            pb_utils.Logger.log_info("from initialize")

        def execute(self, requests):
            pb_utils.Logger.log_warn("from execute")
            pb_utils.Logger.log("é", pb_utils.Logger.ERROR)
            ready = [pb_utils.is_model_ready("other", "3"), pb_utils.is_model_ready("other")]
            pb_utils.load_model("other", config="{}", files={"file:1/model.py": b"\\xff"})
            pb_utils.unload_model("other", unload_dependents=True)
            return [response([ready])]

        def finalize(self):
            pb_utils.Logger.log_verbose("from finalize")
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    assert run(executable, request(1)) == [[1, 0]]
    executable.close()
    assert server.controlled == [("other", "{}", {"file:1/model.py": b"\xff"}), ("other", True)]
    assert server.lines == [
        ("info", "from initialize"),
        ("warning", "from execute"),
        ("error", "é"),
        ("debug", "from finalize"),
    ]


def test_a_refused_load_is_an_exception_of_the_model(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            try:
                pb_utils.load_model("other")
            except pb_utils.TritonModelException as error:
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
    """
    server = Server()
    server.refusal = "explicit control is off"
    executable = start(tmp_path, source, server=server)
    (answer,) = run(executable, request(1))
    assert str(answer) == "Failed to load model: explicit control is off"
    executable.close()


def test_a_decoupled_model_calls_after_its_execute(tmp_path: Path) -> None:
    source = """
    class TritonPythonModel:
        def execute(self, requests):
            threading.Thread(target=self.later, args=(requests[0].get_response_sender(),), daemon=True).start()

        def later(self, sender):
            sender.send(response(call().exec().output_tensors()[0].as_numpy()), flags=1)
    """
    server = Server()
    executable = start(tmp_path, source, DECOUPLED, server=server)
    asked = request(1)
    assert run(executable, asked) == [None]
    server.next_call()[1](answer_with(6), True)
    assert outlet(executable, asked).next() == ([6], True)
    executable.close()


def test_a_library_beside_the_model_imports_tritons_module(tmp_path: Path) -> None:
    """The process is the model's own: what depends on the model is there on every thread."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "shared_by_models.py").write_text(
        "import threading\nimport triton_python_backend_utils as pb_utils\n\n\n"
        "def log(text):\n"
        "    thread = threading.Thread(target=lambda: pb_utils.Logger.log_info(text))\n"
        "    thread.start()\n    thread.join()\n"
    )
    source = """
    sys.path.append(str(pathlib.Path(__file__).parent / "library"))
    import shared_by_models

    class TritonPythonModel:
        def execute(self, requests):
            shared_by_models.log("by a library")
            return [response(x_of(request)) for request in requests]
    """
    server = Server()
    executable = start(tmp_path, source, server=server)
    try:
        assert run(executable, request(3)) == [[3]]
    finally:
        executable.close()
    assert server.lines == [("info", "by a library")]
