"""Shared memory: registration, tensors in and out, errors, beside real Triton."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as client_memory
from calls import COMPARED, HttpAnswer, Pair, http, until
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.peers

KEY = f"/isochrone_test_{os.getpid()}_alike"
SIZE = 4096
ADD = "/v2/models/add_sub/infer"
SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"


@pytest.fixture
def memory() -> Iterator[Any]:
    path = Path("/dev/shm", KEY.removeprefix("/"))
    path.write_bytes(np.arange(SIZE // 4, dtype=np.float32).tobytes())
    yield np.memmap(path, np.float32, "r+")
    path.unlink()


@pytest.fixture
def region(pair: Pair, memory: Any) -> Iterator[Any]:
    pair.same_http("POST", f"{SYSTEM}/region/r/register", {"key": KEY, "offset": 0, "byte_size": SIZE})
    yield memory
    for server in pair.both:
        # Triton lets go of a region some time after it has answered the request that used it.
        until(lambda server=server: http(server, "POST", f"{SYSTEM}/region/r/unregister").status == 200)


def shared(name: str, offset: int = 0, size: int = 16, region: str = "r", **more: Any) -> dict[str, Any]:
    parameters = {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size}
    return {"name": name, "parameters": {**parameters, **more}}


def tensor(name: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    return {**shared(name, *arguments, **more), "datatype": "FP32", "shape": [1, 4]}


INPUTS = [tensor("INPUT0"), tensor("INPUT1", 16)]
OUTPUTS: dict[str, list[Any]] = {
    "both there": [shared("OUTPUT0", 1024), shared("OUTPUT1", 2048, 64)],
    "first there, second JSON": [shared("OUTPUT0", 1024), {"name": "OUTPUT1"}],
    "first there, second binary": [shared("OUTPUT0", 1024), {"name": "OUTPUT1", "parameters": {"binary_data": True}}],
    "first binary, second there": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, shared("OUTPUT1", 1024)],
    "one there": [shared("OUTPUT1", 1024)],
    "neither there": [{"name": "OUTPUT0"}, {"name": "OUTPUT1"}],
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_rest_answers_are_the_same_bytes(pair: Pair, region: Any, case: str) -> None:
    written = []
    for server in pair.both:
        region[256:] = 0
        answer: HttpAnswer = http(server, "POST", ADD, {"inputs": INPUTS, "outputs": OUTPUTS[case], "id": "7"})
        written.append((answer.status, answer.body, answer.kind, region.tobytes()))
    COMPARED[pair.group] += 1
    assert written[0][0] == 200
    assert written[1] == written[0]


def as_message(outputs: list[Any], inputs: list[Any] = INPUTS) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="add_sub")
    for item in inputs:
        _place(message.inputs.add(name=item["name"], datatype="FP32", shape=[1, 4]), item)
    for item in outputs:
        _place(message.outputs.add(name=item["name"]), item)
    return message


def _place(target: Any, item: dict[str, Any]) -> None:
    for key, value in item.get("parameters", {}).items():
        if key == "shared_memory_region":
            target.parameters[key].string_param = value
        elif key.startswith("shared_memory"):
            target.parameters[key].int64_param = value


@pytest.mark.parametrize("case", OUTPUTS)
def test_grpc_answers_are_the_same_bytes(pair: Pair, region: Any, case: str) -> None:
    region[256:] = 0
    answer = pb.ModelInferResponse.FromString(pair.same_grpc("ModelInfer", as_message(OUTPUTS[case])))
    assert len(answer.raw_output_contents) == len(answer.outputs)


WRONG_INPUTS: dict[str, tuple[list[Any], str]] = {
    "region": ([INPUTS[0], tensor("INPUT1", region="nope")], "Unable to find shared memory region: 'nope'"),
    "offset": ([INPUTS[0], tensor("INPUT1", 5000)], "Invalid offset for shared memory region: 'r'"),
    "offset at the end": ([INPUTS[0], tensor("INPUT1", SIZE)], "Invalid offset for shared memory region: 'r'"),
    "end": ([INPUTS[0], tensor("INPUT1", 4090)], "Invalid offset + byte size for shared memory region: 'r'"),
    "too few bytes": (
        [INPUTS[0], tensor("INPUT1", 16, 8)],
        "input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 16, got 8",
    ),
    "too many bytes": (
        [INPUTS[0], tensor("INPUT1", 16, 32)],
        "input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 16, got 32",
    ),
}
WRONG_OUTPUTS: dict[str, tuple[list[Any], str]] = {
    "region": ([shared("OUTPUT0", region="nope")], "Unable to find shared memory region: 'nope'"),
    "offset": ([shared("OUTPUT0", 5000)], "Invalid offset for shared memory region: 'r'"),
    "end": ([shared("OUTPUT0", 4090)], "Invalid offset + byte size for shared memory region: 'r'"),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_wrong_inputs(pair: Pair, region: Any, case: str) -> None:
    inputs, words = WRONG_INPUTS[case]
    pair.http_error(words, ("POST", ADD, {"inputs": inputs}))
    pair.grpc_error(words, "ModelInfer", as_message([], inputs))


@pytest.mark.parametrize("case", WRONG_OUTPUTS)
def test_wrong_outputs(pair: Pair, region: Any, case: str) -> None:
    outputs, words = WRONG_OUTPUTS[case]
    pair.http_error(words, ("POST", ADD, {"inputs": INPUTS, "outputs": outputs}))
    pair.grpc_error(words, "ModelInfer", as_message(outputs))


def test_an_output_that_does_not_fit(pair: Pair, region: Any) -> None:
    """docs/protocol.md: a caller's mistake is 400, not a fault of the server."""
    words = "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least 16 bytes"
    outputs = [shared("OUTPUT0", 1024, 8)]
    pair.http_error(words, ("POST", ADD, {"inputs": INPUTS, "outputs": outputs}), 400, 500)
    pair.grpc_error(words, "ModelInfer", as_message(outputs), "INVALID_ARGUMENT", "INTERNAL")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"inputs": [INPUTS[0], {**INPUTS[1], "data": [1, 2, 3, 4]}]}, "But set 'data' 'shared_memory_region'"),
        (
            {"inputs": [INPUTS[0], tensor("INPUT1", 16, binary_data_size=16)]},
            "Input must set only one of the following fields",
        ),
        (
            {"inputs": INPUTS, "outputs": [shared("OUTPUT0", classification=2)]},
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            {"inputs": INPUTS, "outputs": [shared("OUTPUT0", binary_data=True)]},
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
    ],
)
def test_one_place_for_a_tensor(pair: Pair, region: Any, body: Any, words: str) -> None:
    pair.http_error(words, ("POST", ADD, body))


def test_status(pair: Pair, region: Any) -> None:
    for path in (f"{SYSTEM}/status", f"{SYSTEM}/region/r/status"):
        assert pair.same_http("GET", path).value[0]["key"] == KEY
    for name in ("", "r"):
        pair.same_grpc("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=name))
    words = "Unable to find system shared memory region: 'nope'"
    pair.http_error(words, ("GET", f"{SYSTEM}/region/nope/status"))
    pair.grpc_error(words, "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="nope"))


def test_registering(pair: Pair, region: Any) -> None:
    register = f"{SYSTEM}/region/%s/register"
    good = {"key": KEY, "offset": 0, "byte_size": 64}
    pair.http_error("shared memory region 'r' already in manager", ("POST", register % "r", good))
    pair.grpc_error(
        "shared memory region 'r' already in manager",
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(name="r", key=KEY, byte_size=64),
    )
    for key in ("key", "byte_size"):
        body = {name: value for name, value in good.items() if name != key}
        pair.http_error(f"Shared memory register request has no '{key}' field", ("POST", register % "x", body))
    words = "'region name' is necessary to register system shared memory region"
    pair.http_error(words, ("POST", f"{SYSTEM}/register", good))


def test_memory_that_is_not_there_is_the_callers_mistake(pair: Pair) -> None:
    words = "Unable to open shared memory region: '/isochrone_nowhere'"
    body = {"key": "/isochrone_nowhere", "offset": 0, "byte_size": 64}
    pair.http_error(words, ("POST", f"{SYSTEM}/region/x/register", body), 400, 500)
    message = pb.SystemSharedMemoryRegisterRequest(name="x", **body)
    pair.grpc_error(words, "SystemSharedMemoryRegister", message, "INVALID_ARGUMENT", "INTERNAL")


@pytest.mark.parametrize("change", [{"byte_size": 8192}, {"offset": 4096}], ids=["size", "offset"])
def test_memory_that_is_too_small(pair: Pair, memory: Any, change: Any) -> None:
    """While another region has the same key, Triton looks at a descriptor that it has closed, and says what it finds
    there: so none has."""
    words = "failed to register shared memory region 'x'"
    body = {"key": KEY, "offset": 0, "byte_size": 64, **change}
    pair.http_error(words, ("POST", f"{SYSTEM}/region/x/register", body))
    pair.grpc_error(words, "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="x", **body))


def test_unregistering_what_is_not_registered(pair: Pair) -> None:
    for path in (f"{SYSTEM}/unregister", f"{SYSTEM}/region/nope/unregister"):
        pair.same_http("POST", path)
    for name in ("", "nope"):
        pair.same_grpc("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=name))


def test_cuda_without_a_gpu(pair: Pair) -> None:
    assert pair.same_http("GET", f"{CUDA}/status").body == b"[]"
    for path in (f"{CUDA}/unregister", f"{CUDA}/region/nope/unregister"):
        pair.same_http("POST", path)
    for name in ("", "nope"):
        pair.same_grpc("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(name=name))
    pair.same_grpc("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest())
    words = "Unable to find cuda shared memory region: 'nope'"
    pair.http_error(words, ("GET", f"{CUDA}/region/nope/status"))
    pair.grpc_error(words, "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="nope"))
    handle = base64.b64encode(bytes(64)).decode()
    words = "failed to register shared memory region: invalid args"
    body = {"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": 64}
    pair.http_error(words, ("POST", f"{CUDA}/region/x/register", body))
    message = pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=bytes(64), byte_size=64)
    pair.grpc_error(words, "CudaSharedMemoryRegister", message)
    pair.http_error("has no 'raw_handle' field", ("POST", f"{CUDA}/region/x/register", {}))
    pair.http_error("'region name' is necessary to register cuda", ("POST", f"{CUDA}/register", body))


def test_a_region_in_use_stays(pair: Pair, region: Any, held: Any) -> None:
    """docs/protocol.md: 503, to be tried again, where Triton calls it a fault of its own."""
    item = {**shared("INPUT0", 0, 4), "datatype": "FP32", "shape": [1, 1]}
    answers: list[HttpAnswer] = []

    def infer(server: Any) -> None:
        answers.append(http(server, "POST", "/v2/models/held/infer", {"inputs": [item]}))

    with held():
        threads = [threading.Thread(target=infer, args=(server,)) for server in pair.both]
        for thread, server in zip(threads, pair.both, strict=True):
            thread.start()
            held.running(server)
        words = "Cannot unregister shared memory region 'r', it is currently in use."
        pair.http_error(words, ("POST", f"{SYSTEM}/region/r/unregister"), 503, 500)
        message = pb.SystemSharedMemoryUnregisterRequest(name="r")
        pair.grpc_error(words, "SystemSharedMemoryUnregister", message, "UNAVAILABLE", "INTERNAL")
        words = "Failed to unregister the following system shared memory regions: r ,"
        pair.http_error(words, ("POST", f"{SYSTEM}/unregister"), 503, 500)
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200, 200]


def unregistered(client: Any, name: str) -> bool:
    try:
        client.unregister_system_shared_memory(name)
    except InferenceServerException as error:
        if "currently in use" in str(error):
            return False
        raise
    return True


@pytest.mark.parametrize("module", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_the_stock_client(pair: Pair, module: Any, memory: Any) -> None:
    seen = []
    for server in pair.both:
        url = server.http if module is triton_http else server.grpc
        with module.InferenceServerClient(url) as client:
            client.unregister_system_shared_memory()
            client.unregister_cuda_shared_memory()
            handle = client_memory.create_shared_memory_region("c", KEY, SIZE)
            client.register_system_shared_memory("c", KEY, SIZE)
            inputs = []
            for index in range(2):
                inputs.append(module.InferInput(f"INPUT{index}", [1, 4], "FP32"))
                inputs[-1].set_shared_memory("c", 16, 16 * index)
            outputs = [module.InferRequestedOutput(f"OUTPUT{index}") for index in range(2)]
            outputs[0].set_shared_memory("c", 16, 1024)
            result = client.infer("add_sub", inputs, outputs=outputs)
            there = client_memory.get_contents_as_numpy(handle, np.float32, [1, 4], 1024).tolist()
            seen.append((there, result.as_numpy("OUTPUT1").tolist()))
            if server is pair.theirs:
                # Triton lets go of a region only after its answer.
                until(lambda client=client: unregistered(client, "c"))
            else:
                client.unregister_system_shared_memory("c")
    COMPARED[pair.group] += 5
    assert seen[0] == seen[1]
