"""Models that call decoupled models, in a real worker: long streams, callers that stop reading, and callers that die.

Callers and called models run inside the worker or in processes of their own.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from triton_models import FOUNTAIN, TritonWorker, parameter

from watching import wait_for

ISOLATED = parameter("isolation", "process")
PLACES = {"process": ISOLATED, "worker": ""}

#: As many responses as it is asked for.
_SOURCE = """
def execute(self, requests):
    sender = requests[0].get_response_sender()
    for number in range(given(requests[0])):
        sender.send(respond(number))
    sender.send(flags=FINAL)
"""
#: The same, as coroutines, and as one of our own models.
_ASYNC_SOURCE = _SOURCE.replace("def execute", "async def execute")
_OWN_SOURCE = """
class Model:
    def infer(self, inputs):
        for number in range(int(inputs["IN"][0])):
            yield {"OUT": [number]}
"""
#: Reads all of them; its answer is their number, and whether they came in order.
_READER = """
def execute(self, requests):
    responses = call("source", given(requests[0])).exec(decoupled=True)
    numbers = [int(each.output_tensors()[0].as_numpy()[0]) for each in responses if each.output_tensors()]
    return [respond(len(numbers), int(numbers == list(range(len(numbers))))) for _ in requests]
"""
#: Reads one response and then nothing, until a file is there; its answer is the last response's error.
_STALLED = """
def initialize(self, args):
    self.folder = args["model_repository"]

def execute(self, requests):
    responses = call("source", 1_000_000).exec(decoupled=True)
    next(responses)
    with open(os.path.join(self.folder, "entered.new"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, os.path.join(self.folder, "entered"))
    wait_for(os.path.join(self.folder, "open"))
    return self.end(responses)

def end(self, responses):
    return [pb_utils.InferenceResponse(error=[*responses][-1].error())]
"""
#: The same, but it reads nothing more.
_LEAVES = (
    _STALLED
    + """
def end(self, responses):
    return [respond(1)]
"""
)
#: Ends when its caller has gone.
_PATIENT_SOURCE = """
def execute(self, requests):
    sender = requests[0].get_response_sender()
    for number in range(given(requests[0])):
        if sender.is_cancelled():
            break
        sender.send(respond(number))
    sender.send(flags=FINAL)
"""

of_both = pytest.mark.parametrize("caller", PLACES)
of_both_sources = pytest.mark.parametrize("source", PLACES)


def serve_stalled(worker: TritonWorker, more: str, body: str = _STALLED) -> Path:
    """Serves a caller that stalls; returns its directory, without the files of an earlier one."""
    directory = worker.repository / "stalled"
    for name in ("entered", "open"):
        (directory / name).unlink(missing_ok=True)
    return worker.serve("stalled", body, more=more)


def read(worker: TritonWorker, count: int) -> None:
    assert worker.infer("reader", count) == (200, [count, 1])


@of_both
@of_both_sources
def test_long_streams(worker: TritonWorker, caller: str, source: str) -> None:
    worker.serve("source", _SOURCE, decoupled=True, more=PLACES[source])
    worker.serve("reader", _READER, more=PLACES[caller])
    for count in (0, 1, 64, 65, 100, 5000):
        read(worker, count)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda count: worker.infer("reader", count)[1], (100, 200, 300))) == [
            [100, 1],
            [200, 1],
            [300, 1],
        ]


def test_long_streams_of_coroutines(worker: TritonWorker) -> None:
    worker.serve("source", _ASYNC_SOURCE, decoupled=True)
    worker.serve("reader", _READER, more=ISOLATED)
    for count in (65, 5000):
        read(worker, count)


@of_both_sources
def test_long_streams_of_our_own_models(worker: TritonWorker, source: str) -> None:
    directory = worker.write("source", decoupled=True, more=PLACES[source])
    (directory / "1" / "model.py").write_text(_OWN_SOURCE)
    assert worker.load("source")[0] == 200
    worker.serve("reader", _READER, more=ISOLATED)
    for count in (65, 1000):
        read(worker, count)


@of_both_sources
def test_a_slow_caller_holds_the_called_stream_back(worker: TritonWorker, source: str) -> None:
    """What it has not read is not made without bound; and its source is free when it has gone."""
    directory = worker.serve("source", FOUNTAIN, decoupled=True, more=PLACES[source])
    stalled = serve_stalled(worker, ISOLATED, _LEAVES)
    sent = directory / "sent"
    sent.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.infer, "stalled", 1)
        wait_for(lambda: sent.exists() and sent.stat().st_size >= 64)
        for _ in range(30):
            assert worker.is_fine()
        assert sent.stat().st_size < 200
        (stalled / "open").touch()
        assert waiting.result() == (200, [1])
    worker.serve("source", _SOURCE, decoupled=True, more=PLACES[source])
    assert worker.stream("source", 3) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("caller", "source"),
    [
        ("process", "process"),
        ("worker", "worker"),
        pytest.param("process", "worker", marks=pytest.mark.long),
        pytest.param("worker", "process", marks=pytest.mark.long),
    ],
)
def test_a_stalled_stream_ends_at_its_callers_deadline(worker: TritonWorker, caller: str, source: str) -> None:
    """Then the called model serves others, though the caller still runs."""
    worker.serve("source", _PATIENT_SOURCE, decoupled=True, more=PLACES[source])
    worker.serve("reader", _READER, more=ISOLATED)
    directory = serve_stalled(worker, PLACES[caller])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.infer, "stalled", 1, timeout=2_000_000)
        wait_for((directory / "entered").exists)
        read(worker, 100)
        (directory / "open").touch()
        status, text = waiting.result()
        assert status == 500
        assert "the deadline of the call passed before its last response" in text


@of_both_sources
def test_the_called_model_is_free_when_the_process_of_its_caller_dies(worker: TritonWorker, source: str) -> None:
    worker.serve("source", _PATIENT_SOURCE, decoupled=True, more=PLACES[source])
    worker.serve("reader", _READER, more=ISOLATED)
    directory = serve_stalled(worker, ISOLATED)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.infer, "stalled", 1)
        os.kill(pid_in(directory / "entered"), signal.SIGKILL)
        assert "its process was killed by SIGKILL" in waiting.result()[1]
    read(worker, 100)


def pid_in(path: Path) -> int:
    wait_for(path.exists)
    return int(path.read_text())


def test_the_called_model_is_free_when_the_caller_runs_out_of_time(worker: TritonWorker) -> None:
    worker.serve("source", _PATIENT_SOURCE, decoupled=True)
    worker.serve("reader", _READER, more=ISOLATED)
    serve_stalled(worker, ISOLATED + parameter("execution_timeout_ms", "500"))
    status, text = worker.infer("stalled", 1)
    assert status == 500
    assert "execute took longer than execution_timeout_ms = 500" in text
    read(worker, 100)
