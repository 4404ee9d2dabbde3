"""Our Python client against real Triton: arrays, text, streams, errors, over both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_models import CONFIGS, TRITON_MODELS, write_for_triton

import isochrone
from bench.worker.peers import triton
from bench.worker.peers.process import Peer, environment_python, scratch
from isochrone.errors import InvalidArgument, NotFound, Unsupported

pytestmark = pytest.mark.peers

COUNTDOWN_CONFIG = """name: "countdown"
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "START" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "LEFT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
COUNTDOWN = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            start = int(pb.get_input_tensor_by_name(request, "START").as_numpy()[0])
            for left in range(start, -1, -1):
                sender.send(pb.InferenceResponse([pb.Tensor("LEFT", np.array([left], np.int32))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Peer]:
    with scratch("client_triton") as directory:
        repository: Path = write_for_triton(directory / "models")
        version = repository / "countdown" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(COUNTDOWN)
        (repository / "countdown" / "config.pbtxt").write_text(COUNTDOWN_CONFIG)
        models = (*TRITON_MODELS, "countdown")
        with triton.serve_repository(repository, environment_python(""), directory, models) as peer:
            yield peer


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: Peer) -> str:
    return str(server.http_url) if request.param == "http" else f"grpc://{server.grpc_address}"


def test_arrays_and_text(url: str) -> None:
    assert {"identity", "text", "add_sub"} <= set(CONFIGS)
    with isochrone.Client(url) as client:
        client.wait_ready(60)
        for count in (0, 3, 300_000):
            sent = np.arange(count, dtype=np.float32)
            answer = client.infer("identity", {"INPUT0": sent}, deadline_ms=60_000, id="a")
            assert np.array_equal(answer["OUTPUT0"], sent)
            assert (answer.id, answer.model_version) == ("a", "1")
        assert client.infer("text", {"INPUT0": ["é", b"\x00b\x00", ""]})["OUTPUT0"].tolist() == [
            "é".encode(),
            b"\x00b\x00",
            b"",
        ]
        one, two = np.full((1, 4), 3, np.float32), np.full((1, 4), 1, np.float32)
        answer = client.infer("add_sub", {"INPUT0": one, "INPUT1": two}, outputs=["OUTPUT1"])
        assert list(answer) == ["OUTPUT1"]
        assert answer["OUTPUT1"].tolist() == [[2] * 4]


def test_metadata_and_errors(url: str) -> None:
    with isochrone.Client(url) as client:
        found = client.metadata("add_sub")
        assert [(each.name, each.datatype, each.shape) for each in found.inputs] == [
            ("INPUT0", "FP32", (-1, 4)),
            ("INPUT1", "FP32", (-1, 4)),
        ]
        assert client.is_ready("identity")
        assert not client.is_ready("nothing")
        with pytest.raises(NotFound, match="unknown model: 'nothing'"):
            client.infer("nothing", {"INPUT0": [1.0]}, id="e")
        with pytest.raises(InvalidArgument):
            client.infer("identity", {"INPUT0": np.int32([1])})


def test_the_asynchronous_client(url: str) -> None:
    async def run() -> list[Any]:
        async with isochrone.AsyncClient(url) as client:
            await client.wait_ready(60)
            return await asyncio.gather(
                *(client.infer("identity", {"INPUT0": np.float32([number])}) for number in range(20))
            )

    assert [float(answer["OUTPUT0"][0]) for answer in asyncio.run(run())] == list(range(20))


def test_streams(url: str) -> None:
    with isochrone.Client(url) as client:
        responses = client.stream("countdown", {"START": np.int32([3])})
        if url.startswith("grpc"):
            assert [int(each["LEFT"][0]) for each in responses] == [3, 2, 1, 0]
        else:
            with pytest.raises(Unsupported, match="expected a client over gRPC"):
                list(responses)
