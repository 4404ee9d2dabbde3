"""Which requests the dynamic batcher puts together, in real Triton and in our worker: batch sizes, not times.

A request is sent only when both what is queued and what has run are as the scenario says, so that nothing depends on
how fast a server reads. ``batch_stats`` of the statistics say what was executed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from bench.ports import free_ports
from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from server_process import StartServer

pytestmark = pytest.mark.peers

#: Long beside what a server needs to queue some requests; short enough to wait for.
DELAY_MS = 1600

_CONFIG = """
backend: "python"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
input {{ name: "Z" data_type: TYPE_FP32 dims: [ 1 ] optional: true }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
dynamic_batching {{ {batching} }}
"""
_MODELS = {
    "plain": f"max_queue_delay_microseconds: {DELAY_MS * 1000}",
    "preferred": f"preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: {DELAY_MS * 1000}",
    "undelayed": "preferred_batch_size: [ 4 ]",
}
#: A first value below zero holds the model until a file of this name is there.
_HOLD = """
        gate = pathlib.Path({gate!r})
        if hold:
            gate.with_name("held").touch()
        while hold and not gate.exists():
            time.sleep(0.005)
"""
_OURS = """
import pathlib
import time


class Model:
    def infer(self, inputs):
        # Long enough that it never runs on the event loop's own thread, where holding it would be taken for a hang.
        time.sleep(0.002)
        hold = bool((inputs["X"] < 0).any())
{wait}
        return {{"Y": inputs["X"]}}
"""
_TRITON = """
import pathlib
import time

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        given = [pb.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        hold = any(bool((each < 0).any()) for each in given)
{wait}
        return [pb.InferenceResponse([pb.Tensor("Y", each)]) for each in given]
"""


class Server:
    """One of the two, asked over gRPC."""

    def __init__(self, name: str, address: str, metrics: str, gate: Path) -> None:
        self.name = name
        self.gate = gate
        self.client = triton_grpc.InferenceServerClient(address)
        self._metrics = metrics
        self._answers: list[Any] = []

    def send(self, model: str, rows: int, *, width: int = 1, optional: bool = False, hold: bool = False) -> None:
        inputs = [triton_grpc.InferInput("X", [rows, width], "FP32")]
        inputs[0].set_data_from_numpy(np.full((rows, width), -1.0 if hold else 1.0, np.float32))
        if optional:
            inputs.append(triton_grpc.InferInput("Z", [rows, 1], "FP32"))
            inputs[1].set_data_from_numpy(np.ones((rows, 1), np.float32))
        self.client.async_infer(model, inputs, lambda result, error: self._answers.append(error or result))

    def pending(self, model: str) -> int:
        import urllib.request

        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=60) as page:
            for line in page.read().decode().splitlines():
                if line.startswith("nv_inference_pending_request_count") and f'model="{model}"' in line:
                    return int(float(line.split()[-1]))
        return 0

    def executed(self, model: str) -> dict[int, int]:
        """Batch size → executions."""
        statistics = self.client.get_inference_statistics(model).model_stats[0]
        return {int(batch.batch_size): int(batch.compute_infer.count) for batch in statistics.batch_stats}

    def answered(self) -> int:
        for answer in self._answers:
            assert isinstance(answer, triton_grpc.InferResult), answer
        return len(self._answers)

    def until(self, reached: Callable[[], bool]) -> None:
        ends = time.monotonic() + 60
        while not reached():
            assert time.monotonic() < ends, f"{self.name}: not reached"
            time.sleep(0.005)

    def start_over(self) -> None:
        self._answers.clear()
        self.gate.unlink(missing_ok=True)
        self.gate.with_name("held").unlink(missing_ok=True)


def write(directory: Path, source: str, gate: Path) -> Path:
    for name, batching in _MODELS.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"' + _CONFIG.format(batching=batching))
        (directory / name / "1" / "model.py").write_text(source.format(wait=_HOLD.format(gate=str(gate))))
    return directory


@contextmanager
def real(directory: Path) -> Iterator[Server]:
    gate = directory / "gate"
    repository = write(directory / "models", _TRITON, gate)
    port = free_ports(1)[0]
    flags = ("--allow-metrics=true", "--metrics-address=127.0.0.1", f"--metrics-port={port}")
    with triton.serve_repository(repository, environment_python(""), directory, tuple(_MODELS), flags) as peer:
        yield Server("Triton", str(peer.grpc_address), f"127.0.0.1:{port}", gate)


@pytest.fixture(scope="module")
def servers(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    own = tmp_path_factory.mktemp("batcher")
    with ExitStack() as stack:
        theirs = stack.enter_context(real(stack.enter_context(scratch("batcher"))))
        repository = write(own / "models", _OURS, own / "gate")
        worker = stack.enter_context(server_factory(repository))
        ours = Server("ours", worker.grpc_url, f"127.0.0.1:{worker.metrics_port}", own / "gate")
        for server in (ours, theirs):
            stack.callback(server.client.close)
        yield [ours, theirs]


def growth(server: Server, model: str, before: dict[int, int], rows: int) -> dict[int, int]:
    """What has run since ``before``, when all of so many rows are counted: Triton answers before it counts."""
    grown: dict[int, int] = {}

    def is_counted() -> bool:
        after = server.executed(model)
        grown.clear()
        grown.update(
            {size: count - before.get(size, 0) for size, count in after.items() if count != before.get(size, 0)}
        )
        return sum(size * count for size, count in grown.items()) == rows

    server.until(is_counted)
    return grown


def held_then(server: Server, model: str, sizes: list[int]) -> dict[int, int]:
    """What is executed of requests that queue up behind a full batch."""
    server.start_over()
    before = server.executed(model)
    server.send(model, 8, hold=True)
    server.until(server.gate.with_name("held").exists)
    for sent, size in enumerate(sizes, 1):
        server.send(model, size)
        server.until(lambda sent=sent: server.pending(model) == sent)  # type: ignore[misc]
    server.gate.touch()
    server.until(lambda: server.answered() == len(sizes) + 1)
    executed = growth(server, model, before, 8 + sum(sizes))
    executed[8] -= 1
    return {size: count for size, count in executed.items() if count}


SIZES = ([1, 3], [1, 1, 1], [3, 3], [5, 2], [1, 3, 3], [2, 5], [1] * 5, [7, 1], [4] * 3, [2] * 5, [5, 5], [2, 1, 5, 1])
#: Where ours differs: (model, sizes) → (ours, Triton's). Triton goes on adding to a batch of a preferred size that
#: waits for a busy instance, past that size; ours keeps the size that was asked for.
DIFFERENT = {
    ("preferred", (2, 5)): ({2: 1, 5: 1}, {7: 1}),
    ("preferred", (2, 2, 2, 2, 2)): ({2: 2, 6: 1}, {2: 1, 8: 1}),
    ("preferred", (2, 1, 5, 1)): ({1: 1, 2: 1, 6: 1}, {3: 1, 6: 1}),
    ("undelayed", (3, 3)): ({3: 2}, {6: 1}),
    ("undelayed", (2, 5)): ({2: 1, 5: 1}, {7: 1}),
    ("undelayed", (2, 1, 5, 1)): ({1: 1, 3: 1, 5: 1}, {1: 1, 8: 1}),
}


@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_queue_leaves_in_the_same_batches(servers: list[Server], model: str, sizes: list[int]) -> None:
    ours, theirs = (held_then(server, model, sizes) for server in servers)
    if (model, tuple(sizes)) in DIFFERENT:
        assert (ours, theirs) == DIFFERENT[model, tuple(sizes)]
    else:
        assert ours == theirs


@pytest.mark.parametrize("sizes", [[1], [1, 3], [3], [3, 3], [5, 2], [1, 1], [7]], ids=str)
@pytest.mark.parametrize("model", ["plain", "preferred"])
def test_an_idle_model_starts_and_waits_alike(servers: list[Server], model: str, sizes: list[int]) -> None:
    executed = []
    for server in servers:
        server.start_over()
        before = server.executed(model)
        for sent, size in enumerate(sizes, 1):
            server.send(model, size)
            server.until(lambda sent=sent: server.pending(model) + server.answered() == sent)  # type: ignore[misc] # noqa: B023
        server.until(lambda: server.answered() == len(sizes))  # noqa: B023
        executed.append(growth(server, model, before, sum(sizes)))
    assert executed[0] == executed[1]


@pytest.mark.parametrize("other", [{"width": 2}, {"optional": True}], ids=["shape", "optional input"])
def test_a_request_of_another_kind_releases_those_that_wait(servers: list[Server], other: dict[str, Any]) -> None:
    executed = []
    for server in servers:
        server.start_over()
        before = server.executed("plain")
        total = 0
        for number, kind in enumerate(({}, other, {}, other)):
            server.send("plain", 1, **kind)
            # Each releases the one before it; the last waits for the delay.
            server.until(lambda: server.answered() >= number)  # noqa: B023
            total += 1
        server.until(lambda: server.answered() == total)  # noqa: B023
        executed.append(growth(server, "plain", before, total))
    assert executed[0] == executed[1] == {1: 4}
