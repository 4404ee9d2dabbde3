"""Real Triton, started by the bench's own launcher, answers every bench model over HTTP and gRPC."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from bench.worker.models import IDENTITY_BATCHED, MLP_LARGE, MLP_SMALL, Perceptron, write_onnx
from bench.worker.peers import triton
from bench.worker.peers.process import Peer

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_onnx(tmp_path_factory.mktemp("onnx"))


@pytest.fixture(scope="module")
def server(onnx_files: dict[str, Path]) -> Iterator[Peer]:
    with triton.start(onnx_files) as peer:
        yield peer


def infer(server: Peer, transport: str, model: str, array: np.ndarray) -> np.ndarray:
    """One infer through the stock client of that transport."""
    if transport == "http":
        module, address = triton_http, str(server.http_url).removeprefix("http://")
    else:
        module, address = triton_grpc, str(server.grpc_address)
    tensor = module.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    with module.InferenceServerClient(address) as client:
        answer: np.ndarray = client.infer(model, [tensor]).as_numpy("OUTPUT0")
        return answer


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize(("model", "length"), [("identity", 64), ("identity_1mb", 1 << 18)])
def test_identity_hands_the_array_back(server: Peer, transport: str, model: str, length: int) -> None:
    array = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    np.testing.assert_array_equal(infer(server, transport, model, array), array)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_batched_identity_hands_the_rows_back(server: Peer, transport: str) -> None:
    rows = np.random.default_rng(2).standard_normal((2, 64)).astype(np.float32)
    np.testing.assert_array_equal(infer(server, transport, IDENTITY_BATCHED, rows), rows)


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("perceptron", [MLP_SMALL, MLP_LARGE], ids=lambda perceptron: perceptron.name)
def test_perceptron_answers_what_onnxruntime_does(
    server: Peer, onnx_files: dict[str, Path], transport: str, perceptron: Perceptron
) -> None:
    rows = np.random.default_rng(1).standard_normal((3, perceptron.width)).astype(np.float32)
    session = onnxruntime.InferenceSession(onnx_files[perceptron.name], providers=["CPUExecutionProvider"])
    (expected,) = session.run(["OUTPUT0"], {"INPUT0": rows})
    answer = infer(server, transport, perceptron.name, rows)
    np.testing.assert_allclose(answer, expected, rtol=1e-3, atol=1e-4)


def test_the_process_tree_is_accounted_for(server: Peer) -> None:
    assert server.version.count(".") == 2
    assert server.cpu_seconds() > 0
