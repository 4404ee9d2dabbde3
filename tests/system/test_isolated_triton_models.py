"""Triton's python models in processes of their own, behind a real worker: what they can do, and what their deaths cost.

A model's process is found by the id that it puts into its answers, and killed as the kernel's OOM killer would.
"""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer
from watching import wait_for

pytestmark = pytest.mark.long

_CONFIG = """
backend: "python"
max_batch_size: 4
input {{ name: "IN" data_type: TYPE_INT32 dims: [-1] }}
output {{ name: "OUT" data_type: TYPE_INT32 dims: [-1] }}
parameters {{ key: "isolation" value {{ string_value: "process" }} }}
{more}
"""
_IMPORTS = """
import asyncio, json, os, pathlib, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
HERE = pathlib.Path(__file__).parent

def array_of(request):
    return pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()

def response(array, **parameters):
    tensor = pb_utils.Tensor("OUT", np.asarray(array, np.int32))
    return pb_utils.InferenceResponse([tensor], parameters={"pid": os.getpid(), **parameters})

def call(model, array):
    tensor = pb_utils.Tensor("IN", np.asarray(array, np.int32))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=["OUT"])

def hang(request):
    # In the files of the model, for the test to know that it has begun.
    (HERE / f"in-{request.request_id()}").touch()
    threading.Event().wait()
"""
#: Doubles; raises for -1, hangs for -2, exits for -3. Slow enough that requests share a batch.
_DOUBLER = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("doubler is here")

    def execute(self, requests):
        time.sleep(0.002)
        first = [array_of(request).flat[0] for request in requests]
        if -1 in first:
            raise ValueError("minus one")
        if -2 in first:
            hang(requests[first.index(-2)])
        if -3 in first:
            os._exit(3)
        return [response(array_of(request) * 2, together=len(requests)) for request in requests]

    def finalize(self):
        (HERE / "finalized").touch()
"""
#: Counts down from IN; a negative number: never ends, after one response.
_COUNTDOWN = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.count, args=(request, request.get_response_sender()), daemon=True).start()

    def count(self, request, sender):
        left = array_of(request).item()
        if left < 0:
            sender.send(response([[left]]))
            while not sender.is_cancelled():
                time.sleep(0.002)
            (HERE / "left").touch()
            sender.send(flags=FINAL)
            return
        for number in range(left, -1, -1):
            sender.send(response([[number]]))
        sender.send(flags=FINAL)
"""
#: Calls doubler and countdown, in turn and at once.
_CALLER = """
class TritonPythonModel:
    async def execute(self, requests):
        return [await self.one(request) for request in requests]

    async def one(self, request):
        array = array_of(request)
        doubled = call("doubler", array).exec()
        if doubled.has_error():
            return pb_utils.InferenceResponse(error=doubled.error())
        several = await asyncio.gather(*[call("doubler", array + number).async_exec() for number in range(3)])
        counted = [each.output_tensors()[0].as_numpy().item() for each in call("countdown", array).exec(decoupled=True)
                   if each.output_tensors()]
        values = [each.output_tensors()[0].as_numpy().item() for each in [doubled, *several]] + counted
        return response([values], inner=json.loads(doubled.parameters())["pid"])
"""
#: Answers from a thread, after execute has returned.
_LATER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender()), daemon=True).start()
        return [None] * len(requests)

    def answer(self, request, sender):
        if array_of(request).flat[0] == -2:
            hang(request)
        sender.send(response(array_of(request) + 1), flags=FINAL)
"""
#: Loads, asks for and unloads the model "spare".
_CONTROLLER = """
class TritonPythonModel:
    def execute(self, requests):
        before = pb_utils.is_model_ready("spare")
        pb_utils.load_model("spare")
        loaded = pb_utils.is_model_ready("spare", "1")
        pb_utils.unload_model("spare")
        try:
            pb_utils.load_model("missing")
        except pb_utils.TritonModelException as error:
            return [response([[before, loaded]], refused=str(error)) for request in requests]
"""
_HANGS = """
class TritonPythonModel:
    def execute(self, requests):
        if array_of(requests[0]).flat[0] == -2:
            threading.Event().wait()
        return [response(array_of(request)) for request in requests]
"""
_MODELS = {
    "doubler": (_DOUBLER, "dynamic_batching { max_queue_delay_microseconds: 20000 }"),
    "countdown": (_COUNTDOWN, "model_transaction_policy { decoupled: true }"),
    "caller": (_CALLER, ""),
    "later": (_LATER, ""),
    "controller": (_CONTROLLER, ""),
    "hangs": (_HANGS, 'parameters { key: "execution_timeout_ms" value { string_value: "1000" } }'),
    "spare": (_LATER, ""),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("isolated_triton") / "models"
    for name, (source, more) in _MODELS.items():
        write_config(directory / name, _CONFIG.format(more=more))
        write_python(directory / name, _IMPORTS + source)
    return directory


@pytest.fixture(scope="module")
def server(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    names = [word for name in _MODELS if name != "spare" for word in ("--load-model", name)]
    with server_factory(repository, "--model-control-mode", "explicit", "--log-verbose", "1", *names) as started:
        worker = psutil.Process(started.pid)
        yield started
        # Every death was paid back: one process of each model, and no descriptor of a dead one.
        assert len(worker.children()) == len(_MODELS) - 1
    assert (repository / "doubler" / "1" / "finalized").exists()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[StockClient]:
    with closing(StockClient("http", server)) as made:
        yield made


def infer(client: StockClient, model: str, *values: int, **keywords: Any) -> tuple[list[int], dict[str, Any]]:
    result = client.infer(model, {"IN": np.array([values], np.int32)}, **keywords)
    return result.as_numpy("OUT").ravel().tolist(), result.get_response()["parameters"]


def pid_of(client: StockClient, model: str) -> int:
    return int(infer(client, model, 1)[1]["pid"])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


class Stream:
    """One stream of responses."""

    def __init__(self, server: ServerProcess, model: str, value: int) -> None:
        self._raw = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        self._answers: queue.Queue[Any] = queue.Queue()
        self._raw.start_stream(lambda result, error: self._answers.put(error or result))
        sent = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
        sent.set_data_from_numpy(np.array([[value]], np.int32))
        self._raw.async_stream_infer(model, [sent], enable_empty_final_response=True)

    def next(self) -> Any:
        answer = self._answers.get(timeout=60)
        if isinstance(answer, InferenceServerException):
            return answer
        response = answer.get_response()
        if response.parameters["triton_final_response"].bool_param and not response.outputs:
            return None
        return answer.as_numpy("OUT").item(), response.parameters["pid"].int64_param

    def close(self) -> None:
        self._raw.stop_stream(cancel_requests=True)
        self._raw.close()


@pytest.fixture
def at_once(server: ServerProcess) -> Iterator[Callable[..., Future[Any]]]:
    """Sends a request from a thread of its own."""
    with ThreadPoolExecutor(16) as pool:

        def send(model: str, *values: int, **keywords: Any) -> Any:
            with closing(StockClient("http", server)) as own:
                return infer(own, model, *values, **keywords)

        yield lambda *arguments, **keywords: pool.submit(send, *arguments, **keywords)


def test_requests_share_a_batch_and_each_gets_its_answer(at_once: Callable[..., Future[Any]]) -> None:
    answers = [at_once("doubler", number, number + 1) for number in range(12)]
    together = []
    for number, answer in enumerate(answers):
        values, parameters = answer.result(60)
        assert values == [2 * number, 2 * number + 2]
        together.append(parameters["together"])
    assert max(together) > 1


def test_large_tensors(client: StockClient) -> None:
    values = np.arange(1_000_000, dtype=np.int32).reshape(1, -1)
    for _ in range(3):
        result = client.infer("doubler", {"IN": values})
        assert (result.as_numpy("OUT") == values * 2).all()


def test_an_exception_is_an_error_and_its_traceback_is_in_the_log(client: StockClient, server: ServerProcess) -> None:
    pid = pid_of(client, "doubler")
    with pytest.raises(InferenceServerException, match="ValueError: minus one") as caught:
        infer(client, "doubler", -1)
    assert caught.value.status() == "500"
    wait_for(lambda: "ValueError: minus one" in server.log_text())
    (line,) = [event for event in server.log_events() if "ValueError: minus one" in str(event)]
    assert (line["event"], line["level"]) == ("model failed", "warning")
    assert line["exception"].startswith("Traceback")
    assert 'raise ValueError("minus one")' in line["exception"]
    assert pid_of(client, "doubler") == pid


def test_log_lines_are_the_workers(server: ServerProcess) -> None:
    lines = [event for event in server.log_events() if event["event"] == "doubler is here"]
    assert {(line["model"], line["version"], line["level"]) for line in lines} == {("doubler", "1", "info")}


def test_models_call_models_in_other_processes(client: StockClient) -> None:
    values, parameters = infer(client, "caller", 3)
    assert values == [6, 6, 8, 10, 3, 2, 1, 0]
    assert parameters["inner"] == pid_of(client, "doubler") != parameters["pid"]


def test_an_error_of_a_called_model_reaches_the_caller(client: StockClient) -> None:
    with pytest.raises(InferenceServerException, match="ValueError: minus one"):
        infer(client, "caller", -1)


def test_models_load_and_unload_models(client: StockClient) -> None:
    values, parameters = infer(client, "controller", 1)
    assert values == [0, 1]
    assert "missing" in parameters["refused"]
    wait_for(lambda: not client.call("is_model_ready", "spare"))


def test_answers_come_later(at_once: Callable[..., Future[Any]]) -> None:
    answers = [at_once("later", number) for number in range(8)]
    assert [answer.result(60)[0] for answer in answers] == [[number + 1] for number in range(8)]


def test_streams(server: ServerProcess) -> None:
    with closing(Stream(server, "countdown", 40)) as long, closing(Stream(server, "countdown", 2)) as short:
        assert [short.next()[0] for _ in range(3)] == [2, 1, 0]
        assert short.next() is None
        assert [long.next()[0] for _ in range(41)] == list(range(40, -1, -1))
        assert long.next() is None


def test_a_stream_learns_that_its_caller_has_gone(server: ServerProcess, repository: Path) -> None:
    with closing(Stream(server, "countdown", -5)) as stream:
        assert stream.next()[0] == -5
    wait_for((repository / "countdown" / "1" / "left").exists)


def test_a_kill_in_the_middle_of_a_batch_costs_that_batch(
    client: StockClient, at_once: Callable[..., Future[Any]], repository: Path
) -> None:
    pid = pid_of(client, "doubler")
    hung = at_once("doubler", -2, request_id="batch")
    wait_for((repository / "doubler" / "1" / "in-batch").exists)
    behind = [at_once("doubler", number) for number in range(6)]
    kill(pid)
    with pytest.raises(InferenceServerException, match="its process was killed by SIGKILL"):
        hung.result(60)
    # The next process serves those that waited in the queue.
    assert [answer.result(60)[0] for answer in behind] == [[2 * number] for number in range(6)]
    assert pid_of(client, "doubler") != pid


def test_a_kill_costs_the_answers_that_would_have_come_later(
    client: StockClient, at_once: Callable[..., Future[Any]], repository: Path
) -> None:
    pid = pid_of(client, "later")
    hung = at_once("later", -2, request_id="answer")
    wait_for((repository / "later" / "1" / "in-answer").exists)
    assert infer(client, "later", 5)[0] == [6]
    kill(pid)
    with pytest.raises(InferenceServerException, match="its process was killed by SIGKILL"):
        hung.result(60)
    assert infer(client, "later", 5)[0] == [6]


def test_a_kill_in_the_middle_of_a_stream_ends_the_streams_of_that_process(server: ServerProcess) -> None:
    with closing(Stream(server, "countdown", -7)) as stream, closing(Stream(server, "countdown", -8)) as other:
        value, pid = stream.next()
        assert (value, other.next()) == (-7, (-8, pid))
        kill(pid)
        for each in (stream, other):
            assert "its process was killed by SIGKILL" in str(each.next())
    with closing(Stream(server, "countdown", 0)) as stream:
        value, new_pid = stream.next()
        assert value == 0
        assert new_pid != pid


def test_a_kill_in_the_middle_of_a_call_is_an_error_of_the_call(
    client: StockClient, at_once: Callable[..., Future[Any]], repository: Path
) -> None:
    caller, doubler = pid_of(client, "caller"), pid_of(client, "doubler")
    calling = _calls_what_hangs(at_once, repository)
    kill(doubler)
    with pytest.raises(InferenceServerException, match="'doubler' version 1: its process was killed by SIGKILL"):
        calling.result(60)
    values, parameters = infer(client, "caller", 1)
    assert values == [2, 2, 4, 6, 1, 0]
    assert parameters["pid"] == caller
    assert parameters["inner"] != doubler


def test_a_kill_of_the_calling_model_leaves_the_called_one_alone(
    client: StockClient, at_once: Callable[..., Future[Any]], repository: Path
) -> None:
    caller, doubler = pid_of(client, "caller"), pid_of(client, "doubler")
    calling = _calls_what_hangs(at_once, repository)
    kill(caller)
    with pytest.raises(InferenceServerException, match="'caller' version 1: its process was killed by SIGKILL"):
        calling.result(60)
    assert psutil.pid_exists(doubler)
    kill(doubler)  # it hangs, as it was asked to
    wait_for(lambda: _answers(client, "caller", 1, 2))


def _calls_what_hangs(at_once: Callable[..., Future[Any]], repository: Path) -> Future[Any]:
    marker = repository / "doubler" / "1" / "in-"  # a call has no id
    marker.unlink(missing_ok=True)
    calling = at_once("caller", -2)
    wait_for(marker.exists)
    return calling


def test_a_hang_ends_at_the_timeout(client: StockClient) -> None:
    pid = pid_of(client, "hangs")
    with pytest.raises(InferenceServerException, match="execute took longer than execution_timeout_ms = 1000"):
        infer(client, "hangs", -2)
    assert not psutil.pid_exists(pid)
    assert infer(client, "hangs", 7)[0] == [7]


def test_deaths_in_a_row_do_not_last(client: StockClient) -> None:
    pid_of(client, "doubler")
    with pytest.raises(InferenceServerException, match="its process exited with code 3"):
        infer(client, "doubler", -3)
    for _ in range(3):
        # Either it dies again, or it is too early to start it.
        with pytest.raises(InferenceServerException, match="its process exited with code 3"):
            infer(client, "doubler", -3)

    wait_for(lambda: _answers(client, "doubler", 2, 4))


def test_nothing_is_left_of_dead_processes(client: StockClient, server: ServerProcess) -> None:
    worker = psutil.Process(server.pid)
    pid_of(client, "hangs")
    before = worker.num_fds(), worker.num_threads()
    for _ in range(3):
        kill(pid_of(client, "hangs"))
        wait_for(lambda: _answers(client, "hangs", 1, 1))
    wait_for(lambda: (worker.num_fds(), worker.num_threads()) == before)
    assert not [child for child in worker.children() if child.status() == psutil.STATUS_ZOMBIE]


def _answers(client: StockClient, model: str, value: int, expected: int) -> bool:
    try:
        return infer(client, model, value)[0][0] == expected
    except InferenceServerException:
        return False


def test_many_callers_of_many_kinds_at_once(at_once: Callable[..., Future[Any]]) -> None:
    answers = []
    for number in range(20):
        answers.append((at_once("caller", number % 3), number % 3 * 2))
        answers.append((at_once("later", number), number + 1))
        answers.append((at_once("doubler", number), number * 2))
    for answer, expected in answers:
        assert answer.result(60)[0][0] == expected


def test_the_processes_die_with_the_worker(repository: Path, server_factory: StartServer) -> None:
    flags = ("--model-control-mode", "explicit", "--load-model", "later", "--load-model", "countdown")
    with server_factory(repository, *flags, check_exit=False) as worker:
        children = psutil.Process(worker.pid).children()
        assert len(children) == 2
        kill(worker.pid)
        worker.process.wait(60)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert all(child.status() == psutil.STATUS_ZOMBIE for child in alive)
