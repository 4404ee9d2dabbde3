"""Two real Tritons behind a gateway: stock clients cannot tell it from Triton itself, and one of the two may die.

Triton tells nothing of its load with its answers, so the gateway goes by what it sees from here. The last test kills a
server; it stands last on purpose.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException
from worker_models import TRITON_MODELS, write_for_triton

from bench.worker.peers import triton
from bench.worker.peers.process import Peer, environment_python, scratch
from gateway_process import GatewayProcess, StartGateway

pytestmark = pytest.mark.peers

_REPEAT = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in pb.get_input_tensor_by_name(request, "IN").as_numpy():
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.array([value], np.int32))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""
_REPEAT_CONFIG = """name: "repeat"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""


def write_repeat(repository: Path) -> None:
    """A decoupled model: one answer per element."""
    (repository / "repeat" / "1").mkdir(parents=True)
    (repository / "repeat" / "config.pbtxt").write_text(_REPEAT_CONFIG)
    (repository / "repeat" / "1" / "model.py").write_text(_REPEAT)


@dataclass(frozen=True)
class Fleet:
    """A gateway and the Tritons behind it."""

    gateway: GatewayProcess
    peers: tuple[Peer, ...]

    def addresses(self, transport: str) -> tuple[str, str]:
        """host:port of the gateway and of one Triton."""
        if transport == "http":
            return self.gateway.http_url, str(self.peers[0].http_url).removeprefix("http://")
        return self.gateway.grpc_url, str(self.peers[0].grpc_address)


@pytest.fixture(scope="module")
def fleet(gateway_factory: StartGateway) -> Iterator[Fleet]:
    with ExitStack() as stack:
        peers = []
        for number in range(2):
            directory = stack.enter_context(scratch(f"behind{number}"))
            repository = write_for_triton(directory / "models")
            write_repeat(repository)
            models = (*TRITON_MODELS, "repeat")
            serving = triton.serve_repository(repository, environment_python(""), directory, models)
            peers.append(stack.enter_context(serving))
        upstreams = [
            f"{str(peer.http_url).removeprefix('http://')},grpc={str(peer.grpc_address).rpartition(':')[2]}"
            for peer in peers
        ]
        gateway = stack.enter_context(gateway_factory(upstreams))
        gateway.wait_workers(2)
        yield Fleet(gateway, tuple(peers))


MODULES: dict[str, Any] = {"http": triton_http, "grpc": triton_grpc}


def tensors(module: Any, arrays: dict[str, np.ndarray]) -> list[Any]:
    made = []
    for name, array in arrays.items():
        each = module.InferInput(name, list(array.shape), "BYTES" if array.dtype == np.object_ else "FP32")
        each.set_data_from_numpy(array)
        made.append(each)
    return made


@pytest.mark.parametrize("transport", MODULES)
class TestUnary:
    def test_infer(self, fleet: Fleet, transport: str) -> None:
        module = MODULES[transport]
        rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
        words = np.array([b"alpha", "βήτα".encode(), b""], np.object_)
        with module.InferenceServerClient(fleet.addresses(transport)[0]) as client:
            for _ in range(10):
                answer = client.infer("add_sub", tensors(module, {"INPUT0": rows, "INPUT1": rows}), request_id="7")
                assert np.array_equal(answer.as_numpy("OUTPUT0"), rows * 2)
                echoed = client.infer("text", tensors(module, {"INPUT0": words}), model_version="1")
                assert echoed.as_numpy("OUTPUT0").tolist() == words.tolist()

    def test_a_large_tensor(self, fleet: Fleet, transport: str) -> None:
        module = MODULES[transport]
        values = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32)
        with module.InferenceServerClient(fleet.addresses(transport)[0]) as client:
            back = client.infer("identity", tensors(module, {"INPUT0": values})).as_numpy("OUTPUT0")
        assert np.array_equal(back, values)

    @pytest.mark.parametrize(
        ("model", "version", "arrays"),
        [
            ("nope", "", {"INPUT0": np.ones(2, np.float32)}),
            ("identity", "9", {"INPUT0": np.ones(2, np.float32)}),
            ("add_sub", "", {"INPUT0": np.ones((1, 4), np.float32)}),
            ("add_sub", "", {"INPUT0": np.ones((1, 5), np.float32), "INPUT1": np.ones((1, 5), np.float32)}),
            ("add_sub", "", {"INPUT0": np.ones((9, 4), np.float32), "INPUT1": np.ones((9, 4), np.float32)}),
            ("identity", "", {"INPUT9": np.ones(2, np.float32)}),
        ],
        ids=["model", "version", "missing", "shape", "batch", "name"],
    )
    def test_errors_are_tritons_own(
        self, fleet: Fleet, transport: str, model: str, version: str, arrays: dict[str, np.ndarray]
    ) -> None:
        module = MODULES[transport]
        told = []
        for address in fleet.addresses(transport):
            with module.InferenceServerClient(address) as client, pytest.raises(InferenceServerException) as caught:
                client.infer(model, tensors(module, arrays), model_version=version)
            told.append((caught.value.status(), caught.value.message()))
        assert told[0] == told[1]

    def test_control(self, fleet: Fleet, transport: str) -> None:
        module = MODULES[transport]
        as_json = {} if transport == "http" else {"as_json": True}
        answers = []
        for address in fleet.addresses(transport):
            with module.InferenceServerClient(address) as client:
                assert client.is_server_ready()
                assert client.is_model_ready("add_sub")
                assert not client.is_model_ready("nope")
                index = client.get_model_repository_index(**as_json)
                rows = index if isinstance(index, list) else index["models"]
                answers.append(
                    (
                        client.get_model_metadata("add_sub", **as_json),
                        client.get_model_config("add_sub", **as_json),
                        sorted((row["name"], row["version"], row["state"]) for row in rows),
                    )
                )
        assert answers[0] == answers[1]

    def test_statistics_are_the_sum(self, fleet: Fleet, transport: str) -> None:
        def count(address: str) -> int:
            with triton_http.InferenceServerClient(address) as client:
                (row,) = client.get_inference_statistics("identity")["model_stats"]
                return int(row["inference_stats"]["success"]["count"])

        parts = [count(str(peer.http_url).removeprefix("http://")) for peer in fleet.peers]
        assert count(fleet.gateway.http_url) == sum(parts)


def test_a_stream(fleet: Fleet) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(fleet.gateway.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        sent = triton_grpc.InferInput("IN", [20], "INT32")
        sent.set_data_from_numpy(np.arange(20, dtype=np.int32))
        client.async_stream_infer("repeat", [sent])
        assert [int(answers.get(timeout=60).as_numpy("OUT")[0]) for _ in range(20)] == list(range(20))
        unknown = triton_grpc.InferInput("IN", [1], "INT32")
        unknown.set_data_from_numpy(np.ones(1, np.int32))
        client.async_stream_infer("nope", [unknown])
        assert "nope" in answers.get(timeout=60).message()
        client.stop_stream()


class Load(threading.Thread):
    """One client in a loop."""

    def __init__(self, transport: str, address: str, over: threading.Event) -> None:
        super().__init__()
        self._module = MODULES[transport]
        self._address = address
        self._over = over
        self.answered = 0
        self.failures: list[str] = []

    def run(self) -> None:
        values = np.ones(4, np.float32)
        with self._module.InferenceServerClient(self._address) as client:
            while not self._over.is_set() and not self.failures:
                try:
                    back = client.infer("identity", tensors(self._module, {"INPUT0": values})).as_numpy("OUTPUT0")
                except Exception as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                else:
                    assert np.array_equal(back, values)
                    self.answered += 1


def test_one_of_the_two_is_killed_under_load(fleet: Fleet) -> None:
    over = threading.Event()
    loads = [Load(transport, fleet.addresses(transport)[0], over) for transport in ("http", "grpc", "http", "grpc")]
    for load in loads:
        load.start()

    def more(count: int) -> None:
        wanted = [load.answered + count for load in loads]
        while not all(load.answered >= want for load, want in zip(loads, wanted, strict=True)):
            failures = [failure for load in loads for failure in load.failures]
            assert not failures, failures
            over.wait(0.01)

    try:
        more(100)
        os.kill(fleet.peers[1].pid, signal.SIGKILL)
        more(200)
    finally:
        over.set()
        for load in loads:
            load.join(60)
    assert not any(load.failures for load in loads)
