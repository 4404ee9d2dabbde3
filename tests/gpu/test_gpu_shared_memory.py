"""Shared memory by the stock clients on a GPU, HTTP and gRPC: CUDA regions, and system regions that the GPU reads."""

from __future__ import annotations

import base64
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.cuda_shared_memory as client_memory
from tritonclient.utils import InferenceServerException

from sample_models import plus_constant, write_config, write_models, write_onnx, write_python
from server_process import ServerProcess, StartServer

MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)
ONES = np.ones((1, 16), np.float32)

ON_DEVICE = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        x = torch.from_dlpack(given) if not given.is_cpu() else torch.from_numpy(given.as_numpy()).cuda()
        saw = pb_utils.Tensor("SAW", np.array([[not given.is_cpu()]], np.int32))
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", (x + 1).contiguous()), saw])
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "SAW" data_type: TYPE_INT32 dims: [ 1 ] }
"""
TAKES = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, "add_sub")
    for name, more in (("device", TAKES), ("host", "")):
        write_config(repository / name, CONFIG + more)
        write_python(repository / name, ON_DEVICE)
    with server_factory(repository, "--allow-cuda-shared-memory", "--metrics-interval-ms", "100") as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Any]:
    module = MODULES[request.param]
    with module.InferenceServerClient(server.http_url if request.param == "http" else server.grpc_url) as client:
        client.module = module
        yield client
        client.unregister_cuda_shared_memory()


class Region:
    """Memory of this process on GPU 0, registered with the server."""

    def __init__(self, client: Any, name: str, size: int) -> None:
        self.handle = client_memory.create_shared_memory_region(name, size, 0)
        self.raw = client_memory.get_raw_handle(self.handle)
        client.register_cuda_shared_memory(name, self.raw, 0, size)

    def write(self, *arrays: Any) -> None:
        client_memory.set_shared_memory_region(self.handle, list(arrays))

    def read(self, count: int, offset: int) -> Any:
        whole = client_memory.get_contents_as_numpy(self.handle, np.float32, [self.handle._byte_size // 4])
        return whole[offset // 4 : offset // 4 + count]


@pytest.fixture
def region(client: Any) -> Iterator[Region]:
    made = Region(client, "r", 4096)
    yield made
    client.unregister_cuda_shared_memory("r")
    client_memory.destroy_shared_memory_region(made.handle)


def given(client: Any, name: str, size: int = 64, offset: int = 0) -> Any:
    made = client.module.InferInput(name, [1, 16], "FP32")
    made.set_shared_memory("r", size, offset)
    return made


def wanted(client: Any, name: str, size: int = 64, offset: int = 0) -> Any:
    made = client.module.InferRequestedOutput(name)
    made.set_shared_memory("r", size, offset)
    return made


def test_a_model_on_the_host(client: Any, region: Region) -> None:
    region.write(SIXTEEN, ONES)
    inputs = [given(client, "INPUT0"), given(client, "INPUT1", 64, 64)]
    client.infer("add_sub", inputs, outputs=[wanted(client, "OUTPUT0", 64, 1024), wanted(client, "OUTPUT1", 64, 2048)])
    assert np.array_equal(region.read(16, 1024), (SIXTEEN + 1)[0])
    assert np.array_equal(region.read(16, 2048), (SIXTEEN - 1)[0])


@pytest.mark.parametrize(("model", "on_device"), [("device", 1), ("host", 0)])
def test_a_model_on_the_gpu(client: Any, region: Region, model: str, on_device: int) -> None:
    for step in range(5):
        region.write(SIXTEEN + step)
        outputs = [wanted(client, "OUT", 64, 512), client.module.InferRequestedOutput("SAW")]
        result = client.infer(model, [given(client, "IN")], outputs=outputs)
        assert result.as_numpy("SAW")[0, 0] == on_device
        assert np.array_equal(region.read(16, 512), (SIXTEEN + step + 1)[0])


def test_one_handle_under_two_names_and_status(client: Any, region: Region) -> None:
    client.register_cuda_shared_memory("second", region.raw, 0, 64)
    with pytest.raises(InferenceServerException, match="'second' already in manager"):
        client.register_cuda_shared_memory("second", region.raw, 0, 64)
    client.unregister_cuda_shared_memory("second")
    region.write(SIXTEEN)
    result = client.infer("host", [given(client, "IN")])
    assert np.array_equal(result.as_numpy("OUT"), SIXTEEN + 1)


@pytest.mark.parametrize(
    ("handle", "device", "size", "words"),
    [
        (bytes(64), 0, 64, "its handle cannot be opened on device 0"),
        (b"\xff" * 64, 0, 64, "its handle cannot be opened on device 0"),
        (b"x" * 63, 0, 64, "expected a handle of 64 bytes, given 63"),
        (None, 99, 64, "expected a device_id from 0"),
        (None, 0, 1 << 50, "expected byte_size of at most"),
    ],
    ids=["zeros", "ones", "short", "device", "size"],
)
def test_what_cannot_be_registered(client: Any, handle: bytes | None, device: int, size: int, words: str) -> None:
    own = client_memory.create_shared_memory_region("own", 64, 0)
    try:
        raw = client_memory.get_raw_handle(own) if handle is None else base64.b64encode(handle)
        with pytest.raises(InferenceServerException, match=words) as raised:
            client.register_cuda_shared_memory("x", raw, device, size)
        print(raised.value)
    finally:
        client_memory.destroy_shared_memory_region(own)


def test_memory_is_free_after_many_registrations(client: Any) -> None:
    size = 256 << 20
    made = Region(client, "warm", size)
    client.unregister_cuda_shared_memory("warm")
    client_memory.destroy_shared_memory_region(made.handle)
    del made
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        made = Region(client, "r", size)
        client.unregister_cuda_shared_memory("r")
        client_memory.destroy_shared_memory_region(made.handle)
        del made
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= before - size // 2


def test_metrics_of_the_gpu(server: ServerProcess) -> None:
    names = ("utilization", "memory_total_bytes", "memory_used_bytes", "power_usage", "power_limit")
    for _ in range(100):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
            page = answer.read().decode()
        if "nv_energy_consumption" in page:
            break
        time.sleep(0.1)
    found = [line for line in page.splitlines() if line.startswith(("nv_gpu", "nv_energy"))]
    print("\n".join(found))
    for name in names:
        assert any(line.startswith(f'nv_gpu_{name}{{gpu_uuid="GPU-') for line in found)


def test_an_onnx_model_on_the_gpu(tmp_path: Path, server_factory: StartServer) -> None:
    """Runs there where onnxruntime has its CUDA provider; otherwise the load fails with the reason."""
    import onnxruntime

    write_onnx(tmp_path / "plus", plus_constant(2.0))
    (tmp_path / "plus" / "config.pbtxt").write_text(
        'name: "plus"\nbackend: "onnxruntime"\ninstance_group { count: 1 kind: KIND_GPU }\n'
    )
    with (
        server_factory(tmp_path, "--no-exit-on-error", "--no-strict-readiness") as server,
        tritonclient.http.InferenceServerClient(server.http_url) as client,
    ):
        index = client.get_model_repository_index()
        print(index)
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            assert index[0]["state"] == "READY"
            x = tritonclient.http.InferInput("X", [2, 4], "FP32").set_data_from_numpy(np.ones((2, 4), np.float32))
            assert client.infer("plus", [x]).as_numpy("Y").tolist() == [[3.0] * 4] * 2
        else:
            assert index[0]["state"] == "UNAVAILABLE"
            assert "has no CUDAExecutionProvider" in index[0]["reason"]
