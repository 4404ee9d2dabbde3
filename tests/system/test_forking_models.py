"""Models that fork, in a real worker: every caller gets its own answer, and no copy of a process goes on.

A model forks where its input says so, and the copy returns from it as the original does. The original waits for its
copies on threads, and writes down how they ended. The fixture's server ends with its last test: no process may be left.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from triton_models import parameter

from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer
from watching import wait_for

_CONFIG = """
backend: "python"
input {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }}
{more}
"""
#: ``answer`` forks if the second value says so, on the thread that the third one names, and does in the copy what the
#: first one says. Its result: ten times the first value, and whether it was where it should fork.
_COMMON = """
import asyncio, multiprocessing, os, pathlib, signal, sys, threading, time
import numpy as np

HERE = pathlib.Path(__file__).parent

def wait_for(copy):
    _, status = os.waitpid(copy, 0)
    with open(HERE / "ended", "a") as file:
        file.write(f"{os.waitstatus_to_exitcode(status)}\\n")

def forked():
    copy = os.fork()
    if copy:
        threading.Thread(target=wait_for, args=(copy,)).start()
    return not copy

def answer(given):
    value, forks, on_main = (int(each) for each in given)
    is_there = on_main == 2 or on_main == (threading.current_thread() is threading.main_thread())
    if forks and is_there and forked():
        act(value)
    return np.array([value * 10, is_there], np.int32)

def act(value):
    if value == 2:
        sys.exit(5)
    if value == 3:
        raise ValueError("in the copy")
    if value == 4:
        os.kill(os.getpid(), signal.SIGTERM)
"""
_TRITON_COMMON = (
    _COMMON
    + """
import triton_python_backend_utils as pb_utils

def respond(values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)])

def given(request):
    return request.inputs()[0].as_numpy()
"""
)
_TRITON = (
    _TRITON_COMMON
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [respond(answer(given(request))) for request in requests]
"""
)
#: The copy asks for what it cannot have: the readiness of a model, and a call of one. It must not wait for them.
_ASKS = (
    _TRITON_COMMON
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [respond(answer(given(request))) for request in requests]

def act(value):
    if value == 2:
        pb_utils.is_model_ready("asks")
    if value == 3:
        call = pb_utils.InferenceRequest(model_name="asks", inputs=[], requested_output_names=[])
        assert "a process that the model has forked" in call.exec().error().message()
"""
)
#: The copy would wait for a task of the original's event loop.
_COROUTINES = (
    _TRITON_COMMON
    + """
class TritonPythonModel:
    async def execute(self, requests):
        task = asyncio.ensure_future(asyncio.sleep(0.01))
        responses = [respond(answer(given(request))) for request in requests]
        await task
        return responses
"""
)
_SENDS = (
    _TRITON_COMMON
    + """
class TritonPythonModel:
    def execute(self, requests):
        values = answer(given(requests[0]))
        sender = requests[0].get_response_sender()
        for _ in range(100):
            sender.send(respond(values))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
_INITIALIZES = (
    _TRITON_COMMON
    + """
def fork_and_wait():
    copy = os.fork()
    if copy:
        wait_for(copy)

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        fork_and_wait()
        return config

    def initialize(self, args):
        fork_and_wait()

    def execute(self, requests):
        return [respond(answer(given(request))) for request in requests]

    def finalize(self):
        fork_and_wait()
"""
)
_OWN = (
    _COMMON
    + """
class Model:
    def infer(self, inputs):
        if inputs["IN"].size != 3:
            return {"OUT": np.zeros(2, np.int32)}  # the warm-up
        return {"OUT": answer(inputs["IN"])}
"""
)
_OWN_STREAM = (
    _COMMON
    + """
class Model:
    def infer(self, inputs):
        for _ in range(100):
            yield {"OUT": answer(inputs["IN"])}
            inputs = {"IN": [inputs["IN"][0], 0, 2]}
"""
)
_OWN_COROUTINES = _OWN_STREAM.replace("def infer", "async def infer")
#: Ends a process of its own with SIGTERM; answers with its exit code.
_TERMINATES = (
    _TRITON_COMMON
    + """
class TritonPythonModel:
    def execute(self, requests):
        ready, _writer = (context := multiprocessing.get_context("fork")).Pipe(False)
        child = context.Process(target=wait, args=(_writer,))
        child.start()
        ready.recv()
        child.terminate()
        child.join()
        code = child.exitcode
        for each in (ready, _writer, child):
            each.close()
        return [respond(np.array([code, 1], np.int32)) for _ in requests]

def wait(writer):
    writer.send(1)
    threading.Event().wait()
"""
)
#: Which runs happen on the loop depends on measured times. In these models every one does, however busy the machine is.
_INLINE = """
from isochrone.worker.execution.batches import inline_runner
from isochrone.worker.execution.inline import inline_runs

inline_runs.INLINE_NS = inline_runner.OVERRUN_NS = 10**12
"""
_THREAD, _PROCESS = parameter("inline", "false"), parameter("isolation", "process")
_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
#: The third value of a request: on which thread it forks.
ELSEWHERE, ON_MAIN, ANYWHERE = range(3)
#: Of each model: its source, its configuration, where it forks, and how its copies end, by the first value of requests.
_RETURNS, _ENDS = {7: 0}, {7: 0, 2: 5, 3: 1, 4: -15}
_MODELS: dict[str, tuple[str, str, int, dict[int, int]]] = {
    "inline": (_TRITON + _INLINE, "", ON_MAIN, _ENDS),
    "thread": (_TRITON, _THREAD, ELSEWHERE, _ENDS),
    "process": (_TRITON, _PROCESS, ON_MAIN, _ENDS),
    "asks": (_ASKS, "", ELSEWHERE, {7: 0, 2: 1, 3: 0}),
    "asks_process": (_ASKS, _PROCESS, ON_MAIN, {7: 0, 2: 1, 3: 0}),
    "coroutines": (_COROUTINES, "", ANYWHERE, _RETURNS),
    "coroutines_process": (_COROUTINES, _PROCESS, ANYWHERE, _RETURNS),
    "sends": (_SENDS, _DECOUPLED, ANYWHERE, {7: 1, 2: 5}),
    "sends_process": (_SENDS, _DECOUPLED + _PROCESS, ANYWHERE, {7: 1, 2: 5}),
    "initializes": (_INITIALIZES, "", ANYWHERE, _ENDS),
    "initializes_process": (_INITIALIZES, _PROCESS, ANYWHERE, _ENDS),
    "own_inline": (_OWN + _INLINE, "", ON_MAIN, _ENDS),
    "own_thread": (_OWN, parameter("execution_timeout_ms", "60000"), ANYWHERE, _ENDS),
    "own_process": (_OWN, _PROCESS, ON_MAIN, _ENDS),
    "own_stream": (_OWN_STREAM, _DECOUPLED, ANYWHERE, _ENDS),
    "own_stream_process": (_OWN_STREAM, _DECOUPLED + _PROCESS, ANYWHERE, _ENDS),
    "own_coroutines": (_OWN_COROUTINES, _DECOUPLED, ANYWHERE, _RETURNS),
    "own_coroutines_process": (_OWN_COROUTINES, _DECOUPLED + _PROCESS, ANYWHERE, _RETURNS),
    "terminates": (_TERMINATES, "", ANYWHERE, {}),
    "terminates_thread": (_TERMINATES, _THREAD, ANYWHERE, {}),
    "terminates_process": (_TERMINATES, _PROCESS, ANYWHERE, {}),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("forking") / "models"
    for name, (source, more, _, _) in _MODELS.items():
        write_config(directory / name, _CONFIG.format(more=more))
        write_python(directory / name, source)
    return directory


@pytest.fixture(scope="module")
def server(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    with server_factory(repository, "--model-control-mode=explicit", "--load-model=*") as started:
        yield started


def ask(server: ServerProcess, model: str, *values: int) -> list[int]:
    """The answer; of a stream all answers, which are alike."""
    decoupled = "decoupled" in _MODELS[model][1]
    given: Any = {"IN": list(values)}
    if not decoupled:
        given = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [len(values)], "data": list(values)}]}
    path = f"http://{server.http_url}/v2/models/{model}/{'generate_stream' if decoupled else 'infer'}"
    request = urllib.request.Request(path, json.dumps(given).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if not decoupled:
        return list(json.loads(text)["outputs"][0]["data"])
    answers = [json.loads(line.removeprefix("data:"))["OUT"] for line in text.splitlines() if line]
    assert len(answers) == 100
    assert [each[0] for each in answers] == [answers[0][0]] * 100
    return list(answers[0])


def ended(repository: Path, model: str) -> list[int]:
    """How the copies that a model has made ended, in the order in which they did."""
    path = repository / model / "1" / "ended"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("model", [name for name, (_, _, _, ends) in _MODELS.items() if ends])
def test_every_caller_gets_its_own_answer(server: ServerProcess, repository: Path, model: str) -> None:
    _, _, where, ends = _MODELS[model]
    assert ask(server, model, 5, 0, ANYWHERE)[0] == 50
    for value, status in ends.items():
        before = len(ended(repository, model))

        def forks(value: int = value) -> bool:
            answer, is_there = ask(server, model, value, 1, where)
            assert answer == value * 10
            return bool(is_there)

        wait_for(forks)
        for other in (8, 9):
            assert ask(server, model, other, 0, ANYWHERE)[0] == other * 10
        wait_for(lambda before=before: len(ended(repository, model)) == before + 1)
        assert ended(repository, model)[-1] == status
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda value: ask(server, model, value, int(value % 4 == 0), ANYWHERE)[0], range(10, 30))
        )
    assert answers == [value * 10 for value in range(10, 30)]


@pytest.mark.parametrize("model", ["terminates", "terminates_thread", "terminates_process"])
def test_a_signal_reaches_the_process_that_it_is_sent_to_alone(server: ServerProcess, model: str) -> None:
    """Forked processes had shared the server's signals: to end one had stopped the server."""
    for _ in range(3):
        assert ask(server, model, 1) == [-15, 1]
    assert ask(server, "thread", 5, 0, ANYWHERE)[0] == 50
    assert not [event for event in server.log_events() if event["event"] == "stopping"]


def test_copies_of_initialize_and_finalize_end(server: ServerProcess, repository: Path) -> None:
    for model in ("initializes", "initializes_process"):
        path = f"http://{server.http_url}/v2/repository/models/{model}"
        for control in ("unload", "load"):
            before = len(ended(repository, model))
            with urllib.request.urlopen(urllib.request.Request(f"{path}/{control}", b"{}"), timeout=60) as answer:
                assert answer.status == 200
            # A load forks in auto_complete_config, too.
            assert ended(repository, model)[before:] == [0] * (1 if control == "unload" else 2)
        assert ask(server, model, 5, 0, ANYWHERE)[0] == 50
