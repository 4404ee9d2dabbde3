"""CUDA shared memory by the stock clients, over HTTP and gRPC: a worker whose driver is a fake one.

The client's own part (cudaMalloc, the handle) needs a GPU: tests/gpu has it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvloop
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

from fake_cuda import FakeDriver
from isochrone.in_process.process_state import process_state
from isochrone.protocol.tensors.cuda_memory import CudaMemory
from isochrone.worker.server.server import Worker
from isochrone.worker.server.settings import ServeSettings
from sample_models import write_config, write_models, write_python

SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)
ONES = np.ones((1, 16), np.float32)

#: Adds one; its output is on the device, which here is memory of the host. SAW: whether its input was there, too.
ON_DEVICE = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils


class OnDevice:
    def __init__(self, array):
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.__cuda_array_interface__ = {"data": (array.ctypes.data, False)}

    def reshape(self, shape):
        return OnDevice(self.array.reshape(shape))

    def is_contiguous(self):
        return True

    def get(self):
        return self.array

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **wishes):
        raise NotImplementedError


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def at(self, interface):
        assert interface["typestr"] == "<f4"
        memory = (ctypes.c_float * int(np.prod(interface["shape"]))).from_address(interface["data"][0])
        return np.frombuffer(memory, np.float32).reshape(interface["shape"])

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        array = given.as_numpy() if given.is_cpu() else self.at(given.foreign.__cuda_array_interface__)
        saw = pb_utils.Tensor("SAW", np.array([[not given.is_cpu()]], np.int32))
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", OnDevice(array + 1)), saw])
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "SAW" data_type: TYPE_INT32 dims: [ 1 ] }
"""
TAKES = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'


class Served:
    """A worker on a thread of this process, with a fake driver."""

    def __init__(self, repository: Path) -> None:
        self.driver = FakeDriver(devices=2)
        self.ports: Any = {}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve(repository)))
        self._thread.start()
        self.loop_thread = self._thread.name
        assert self._ready.wait(60)

    async def _serve(self, repository: Path) -> None:
        settings = ServeSettings(
            (repository,),
            host="127.0.0.1",
            http_port=0,
            grpc_port=0,
            metrics_port=None,
            allow_cuda_shared_memory=True,
            allow_shared_memory=True,
            cache_bytes=1 << 20,
        )
        worker = Worker(settings, process_state.enter(), (self,))
        self._loop, self._stop = asyncio.get_running_loop(), worker.request_stop
        if worker.service.shared_memory is not None:
            worker.service.shared_memory.cuda = CudaMemory(lambda: self.driver)
        self.service = worker.service
        try:
            await worker.run(on_signals=False)
        finally:
            process_state.leave()
            self._ready.set()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    # As a companion of the worker.

    async def start(self, ports: Any) -> None:
        self.ports = dict(ports)
        self._ready.set()

    def is_complete(self, served: Any) -> bool:
        return True

    async def stop(self) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, "add_sub")
    for name, more in (("device", TAKES), ("host", ""), ("cached", TAKES + "response_cache { enable: true }\n")):
        write_config(repository / name, CONFIG + more)
        write_python(repository / name, ON_DEVICE)
    made = Served(repository)
    yield made
    made.close()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[StockClient]:
    yield from connected(request.param, served)


def connected(kind: str, served: Served) -> Iterator[StockClient]:
    urls = {f"{each}_url": f"127.0.0.1:{port}" for each, port in served.ports.items()}
    client = StockClient(kind, SimpleNamespace(**urls))  # type: ignore[arg-type]
    yield client
    client.call("unregister_cuda_shared_memory")
    client.close()
    served.driver.fails.clear()
    served.driver.copies.clear()
    assert served.driver.open == []


def register(client: StockClient, driver: FakeDriver, name: str, size: int, device: int = 0) -> Any:
    handle, memory = driver.export(size, device)
    client.call("register_cuda_shared_memory", name, base64.b64encode(handle), device, size)
    return memory


def shared(client: StockClient, kind: str, name: str, region: str, size: int = 64, offset: int = 0) -> Any:
    made = client.module.InferInput(name, [1, 16], "FP32") if kind == "in" else client.module.InferRequestedOutput(name)
    made.set_shared_memory(region, size, offset)
    return made


def test_a_model_on_the_host(client: StockClient, served: Served) -> None:
    memory = register(client, served.driver, "r", 4096)
    memory[:64].view(np.float32)[:] = SIXTEEN
    memory[64:128].view(np.float32)[:] = ONES
    inputs = [shared(client, "in", "INPUT0", "r"), shared(client, "in", "INPUT1", "r", 64, 64)]
    outputs = [shared(client, "out", "OUTPUT0", "r", 64, 1024), client.output("OUTPUT1")]
    result = client.call("infer", "add_sub", inputs, outputs=outputs)
    assert np.array_equal(memory[1024:1088].view(np.float32), (SIXTEEN + 1)[0])
    assert np.array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - 1)
    assert served.driver.copies == [("to_host", 64), ("to_host", 64), ("from_host", 64)]


@pytest.mark.parametrize(("model", "on_device"), [("device", True), ("host", False), ("cached", False)])
def test_a_model_that_takes_tensors_on_devices(
    client: StockClient, served: Served, model: str, on_device: bool
) -> None:
    memory = register(client, served.driver, "r", 256)
    memory[:64].view(np.float32)[:] = SIXTEEN
    outputs = [shared(client, "out", "OUT", "r", 64, 128), client.output("SAW")]
    result = client.call("infer", model, [shared(client, "in", "IN", "r")], outputs=outputs)
    assert bool(result.as_numpy("SAW")[0, 0]) is on_device
    assert np.array_equal(memory[128:192].view(np.float32), (SIXTEEN + 1)[0])
    # The output comes from the device whatever the input was; a cache needs arrays of the host.
    answered = "from_host" if model == "cached" else "on_device"
    first = [] if on_device else [("to_host", 64)]
    assert served.driver.copies == [*first, (answered, 64)]


def test_an_output_for_the_caller_comes_to_the_host(client: StockClient, served: Served) -> None:
    memory = register(client, served.driver, "r", 64)
    memory.view(np.float32)[:] = SIXTEEN
    result = client.call("infer", "device", [shared(client, "in", "IN", "r")])
    assert np.array_equal(result.as_numpy("OUT"), SIXTEEN + 1)


def test_the_context_of_a_device_is_made_once_and_off_the_event_loop(client: StockClient, served: Served) -> None:
    for device in (0, 1):
        for name in ("first", "second"):
            register(client, served.driver, f"{name}{device}", 64, device)
    assert sorted(device for device, _ in served.driver.prepared) == [0, 1]
    assert served.loop_thread not in [thread for _, thread in served.driver.prepared]


def test_status_and_one_set_of_names(client: StockClient, served: Served, shared_memory_prefix: str) -> None:
    register(client, served.driver, "g", 128, device=1)
    rows = client.control("get_cuda_shared_memory_status")
    expected = {"name": "g", "device_id": 1, "byte_size": 128}
    row = (rows if client.is_http else [*rows["regions"].values()])[0]
    assert {key: int(value) if key != "name" else value for key, value in row.items()} == expected
    with pytest.raises(InferenceServerException, match="shared memory region 'g' already in manager"):
        register(client, served.driver, "g", 64)
    with pytest.raises(InferenceServerException, match="'g' already in manager"):
        client.call("register_system_shared_memory", "g", "/any", 64)
    words = "The region named 'g' is registered as CUDA shared memory, not system shared memory"
    with pytest.raises(InferenceServerException, match=words):
        client.control("get_system_shared_memory_status", "g")
    # As in Triton: of the other kind, so that nothing happens.
    client.call("unregister_system_shared_memory", "g")
    client.call("unregister_system_shared_memory")
    assert len(served.driver.open) == 1
    client.call("unregister_cuda_shared_memory", "g")
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'g'"):
        client.control("get_cuda_shared_memory_status", "g")


def test_one_handle_under_two_names(client: StockClient, served: Served) -> None:
    handle, memory = served.driver.export(64)
    for name in ("a", "b"):
        client.call("register_cuda_shared_memory", name, base64.b64encode(handle), 0, 64)
    assert len(served.driver.open) == 1
    client.call("unregister_cuda_shared_memory", "a")
    memory.view(np.float32)[:] = SIXTEEN
    result = client.call("infer", "host", [shared(client, "in", "IN", "b")])
    assert np.array_equal(result.as_numpy("OUT"), SIXTEEN + 1)


@pytest.mark.parametrize(
    ("handle", "device", "size", "words"),
    [
        (b"\x77" * 64, 0, 64, r"cannot be opened on device 0 \(CUDA_ERROR_INVALID_VALUE\); expected one from cudaIpcG"),
        (b"short", 0, 64, "expected a handle of 64 bytes, given 5"),
        (b"", 0, 64, "expected a handle of 64 bytes, given 0"),
        (None, 2, 64, "expected a device_id from 0 to 1, given 2"),
        (None, -1, 64, "expected a device_id from 0 to 1, given -1"),
        (None, 0, 0, "expected byte_size 1 or more, given 0"),
        (None, 0, 65, "expected byte_size of at most 64, which the allocation has, given 65"),
        (None, 1, 64, r"cannot be opened on device 1 \(CUDA_ERROR_INVALID_DEVICE\)"),
    ],
    ids=["unknown", "short", "empty", "high", "negative", "nothing", "large", "other device"],
)
def test_what_cannot_be_registered(
    client: StockClient, served: Served, handle: bytes | None, device: int, size: int, words: str
) -> None:
    given = served.driver.export(64)[0] if handle is None else handle
    with pytest.raises(InferenceServerException, match=f"failed to register.*invalid args: region 'x'.*{words}"):
        client.call("register_cuda_shared_memory", "x", base64.b64encode(given), device, size)
    assert served.driver.open == []


def test_our_own_memory_is_refused(client: StockClient, served: Served) -> None:
    handle, _ = served.driver.export(64)
    served.driver.fails["open_handle"] = "CUDA_ERROR_INVALID_CONTEXT"
    with pytest.raises(InferenceServerException, match=r"CUDA_ERROR_INVALID_CONTEXT.*of another process"):
        client.call("register_cuda_shared_memory", "own", base64.b64encode(handle), 0, 64)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"raw_handle": "AAAA", "device_id": 0, "byte_size": 1}, "'raw_handle': expected an object"),
        ({"raw_handle": {"b64": 5}, "device_id": 0, "byte_size": 1}, "'raw_handle': expected an object"),
        ({"raw_handle": {"b64": "é" * 88}, "device_id": 0, "byte_size": 1}, "'raw_handle.b64': expected base64"),
        ({"raw_handle": {"b64": "AA\nAA"}, "device_id": 0, "byte_size": 1}, "'raw_handle.b64': expected base64"),
        ({"raw_handle": {"b64": "A"}, "device_id": 0, "byte_size": 1}, "'raw_handle.b64': expected base64"),
        ({"raw_handle": {"b64": "AAAA"}, "device_id": True, "byte_size": 1}, "'device_id': expected int"),
        ({"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 1.5}, "'byte_size': expected int"),
        ({"raw_handle": {"b64": "AAAA"}, "device_id": 0}, "has no 'byte_size' field"),
    ],
)
def test_what_json_may_not_be(served: Served, body: Any, words: str) -> None:
    for client in connected("http", served):
        text = json.dumps(body)
        answer = client.raw._post("v2/cudasharedmemory/region/x/register", text, None, None)
        assert answer.status_code == 400
        assert words in json.loads(answer.read())["error"]


def test_bounds_are_checked_before_the_model_runs(client: StockClient, served: Served) -> None:
    register(client, served.driver, "r", 64)
    for size, offset, words in (
        (64, 64, "Invalid offset for shared memory region: 'r'"),
        (64, 4, r"Invalid offset \+ byte size for shared memory region: 'r'"),
    ):
        with pytest.raises(InferenceServerException, match=words):
            client.call("infer", "device", [shared(client, "in", "IN", "r", size, offset)])
        outputs = [shared(client, "out", "OUT", "r", size, offset)]
        with pytest.raises(InferenceServerException, match=words):
            client.call("infer", "device", [client.input("IN", SIXTEEN)], outputs=outputs)
    with pytest.raises(InferenceServerException, match=r"input byte size mismatch.*Expected 64, got 32"):
        client.call("infer", "device", [shared(client, "in", "IN", "r", 32)])
    outputs = [shared(client, "out", "OUT", "r", 32)]
    with pytest.raises(InferenceServerException, match=r"output 'OUT' \(32 bytes\) should be at least 64 bytes"):
        client.call("infer", "device", [client.input("IN", SIXTEEN)], outputs=outputs)
    assert served.driver.copies == []


def test_a_copy_that_fails_is_the_request_s_error(client: StockClient, served: Served) -> None:
    register(client, served.driver, "r", 64)
    served.driver.fails["copy_to_host"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(InferenceServerException, match="region 'r' cannot be read: copy_to_host: CUDA_ERROR_ILLEGAL_A"):
        client.call("infer", "host", [shared(client, "in", "IN", "r")])
    served.driver.fails["copy_on_device"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    outputs = [shared(client, "out", "OUT", "r")]
    with pytest.raises(InferenceServerException, match="region 'r' cannot be written"):
        client.call("infer", "host", [client.input("IN", SIXTEEN)], outputs=outputs)
    # The region is not held any more.
    client.call("unregister_cuda_shared_memory", "r")


def test_the_extension_is_listed(client: StockClient) -> None:
    assert "cuda_shared_memory" in client.control("get_server_metadata")["extensions"]
