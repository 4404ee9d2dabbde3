"""Requests that read or write shared memory hold their regions until they are over, whichever way they end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from fake_cuda import FakeDriver
from isochrone.devices.device_array import DeviceArray
from isochrone.errors import Internal, InvalidArgument, NotFound, Unavailable
from isochrone.protocol.grpc.answers import render
from isochrone.protocol.grpc.decoder import InferDecoder
from isochrone.protocol.grpc.plan import plan_of
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, OutputChoice, Parameters
from isochrone.protocol.shared_memory_requests import SharedInput, SharedMemoryRequest, infer_with_regions, read_input
from isochrone.protocol.tensors.cuda_memory import CudaMemory
from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions

KEY = f"isochrone-test-leases-{os.getpid()}"


class Recording(InferRequest):
    """Stands where a transport's request stands."""

    def complete(self, outputs: Any, parameters: Parameters = NO_PARAMETERS) -> None:
        pass

    def fail(self, error: Any) -> None:
        pass

    def finish(self) -> None:
        pass


class Leased(SharedMemoryRequest, Recording):
    pass


@pytest.fixture
def regions() -> Iterator[SharedMemoryRegions]:
    Path("/dev/shm", KEY).write_bytes(bytes(256))
    regions = SharedMemoryRegions()
    regions.register("r", KEY, 0, 128)
    regions.register("other", KEY, 0, 128)
    yield regions
    Path("/dev/shm", KEY).unlink()


def shared(tensor: Any, region: str = "r", size: int = 16, offset: int = 0) -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    tensor.parameters["shared_memory_offset"].int64_param = offset


def message_of(*outputs: str) -> Any:
    """A ModelInferRequest with its input in region "r"; the outputs named are wanted."""
    message = service_pb2.ModelInferRequest(model_name="m")
    shared(message.inputs.add(name="x", datatype="FP32", shape=[1, 4]))
    for name in outputs:
        message.outputs.add(name=name)
    return message


def leased(message: Any) -> Leased:
    return Leased(plan_of(message), "", {}, 0)


def service(regions: SharedMemoryRegions | None, infer: Callable[[Any], None] = lambda request: None) -> Any:
    return SimpleNamespace(shared_memory=regions, infer=infer)


ENDINGS: dict[str, Callable[[Leased], None]] = {
    "complete": lambda request: request.complete({}),
    "fail": lambda request: request.fail(Internal("x")),
    "dropped": lambda request: request.dropped(),
    "finish": lambda request: request.finish(),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_region_in_use_cannot_be_unregistered(regions: SharedMemoryRegions, ending: str) -> None:
    request, second = leased(message_of()), leased(message_of())
    for each in (request, second):
        infer_with_regions(service(regions), each, {})
    with pytest.raises(Unavailable, match=r"^Cannot unregister shared memory region 'r', it is currently in use\.$"):
        regions.unregister("r")
    ENDINGS[ending](request)
    # The request is over; ending it again changes nothing for the one that is not.
    request.dropped()
    with pytest.raises(Unavailable):
        regions.unregister("r")
    ENDINGS[ending](second)
    regions.unregister("r")
    assert [region.name for region in regions.status()] == ["other"]


def test_unregistering_all_leaves_those_in_use(regions: SharedMemoryRegions) -> None:
    request = leased(message_of())
    infer_with_regions(service(regions), request, {})
    with pytest.raises(Unavailable, match="Failed to unregister the following system shared memory regions: r ,"):
        regions.unregister()
    assert [region.name for region in regions.status()] == ["r"]
    request.complete({})
    regions.unregister()
    assert regions.status() == []


def test_a_request_that_is_refused_holds_nothing(regions: SharedMemoryRegions) -> None:
    def reject(request: Any) -> None:
        raise NotFound("no such model")

    with pytest.raises(NotFound):
        infer_with_regions(service(regions, reject), leased(message_of()), {})
    regions.unregister("r")


@pytest.mark.parametrize(
    ("region", "size", "offset", "error", "words"),
    [
        ("nope", 16, 0, NotFound, "Unable to find shared memory region: 'nope'"),
        ("r", 16, 128, InvalidArgument, "Invalid offset for shared memory region: 'r'"),
        ("r", 16, 120, InvalidArgument, r"Invalid offset \+ byte size for shared memory region: 'r'"),
    ],
)
def test_an_output_region_is_checked_before_the_model_runs(
    regions: SharedMemoryRegions, region: str, size: int, offset: int, error: type[Exception], words: str
) -> None:
    message = message_of("y")
    shared(message.outputs[0], region, size, offset)
    ran: list[Any] = []
    request = leased(message)
    plan: Any = request.plan
    with pytest.raises(error, match=words):
        infer_with_regions(service(regions, ran.append), request, plan.choices)
    assert not ran
    regions.unregister()


def test_a_cuda_region_in_use_stays_open() -> None:
    driver = FakeDriver()
    regions = SharedMemoryRegions(allows_system=False, cuda=CudaMemory(lambda: driver))
    handle, _ = driver.export(128)
    regions.register_cuda("r", handle, 0, 128)
    regions.register_cuda("other", handle, 0, 64)
    message = message_of("y", "z")
    shared(message.outputs[0], "r", 16, 64)
    request = leased(message)
    plan: Any = request.plan
    assert not request.keeps_on_device("y")
    infer_with_regions(service(regions), request, plan.choices)
    assert [request.keeps_on_device(name) for name in ("y", "z", "unknown")] == [True, False, False]
    with pytest.raises(Unavailable, match="Cannot unregister shared memory region 'r', it is currently in use"):
        regions.unregister("r", "cuda")
    with pytest.raises(Unavailable, match="Failed to unregister the following cuda shared memory regions: r ,"):
        regions.unregister("", "cuda")
    assert [region.name for region in regions.cuda_status()] == ["r"]
    assert len(driver.open) == 1
    request.complete({})
    driver.fails["close_handle"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(Internal, match="failed to close CUDA IPC handle"):
        regions.unregister("r", "cuda")
    assert driver.open == []
    assert regions.cuda_status() == []


#: What Triton 2.51 answered, byte for byte: OUTPUT0 in shared memory, OUTPUT1 in the message.
TRITON_ANSWER = bytes.fromhex(
    "0a076164645f7375621201312a130a074f5554505554301204465033321a0201042a130a074f5554505554311204465033321a020104"
    "32003210000080c0000080c0000080c0000080c0"
)


def test_a_grpc_output_in_shared_memory_leaves_an_empty_raw_entry(regions: SharedMemoryRegions) -> None:
    message = message_of("OUTPUT0", "OUTPUT1")
    message.model_name = "add_sub"
    shared(message.outputs[0], "r", 16, 64)
    plan = plan_of(message)
    request = InferRequest(plan, "", {}, 0)
    request.served_by = SimpleNamespace(model_version="1")
    outputs = {"OUTPUT0": np.full((1, 4), 2, np.float32), "OUTPUT1": np.full((1, 4), -4, np.float32)}
    parts, size = render(request, plan, outputs, {}, service(regions))
    body = b"".join(bytes(part) for part in parts)
    assert len(body) == size
    assert body == TRITON_ANSWER
    assert bytes(regions.view("r", 64, 16)) == outputs["OUTPUT0"].tobytes()


def regional(request_id: str = "", offset: int = 0, **fields: str) -> bytes:
    """A message whose tensors are all in region "r"."""
    message = service_pb2.ModelInferRequest(model_name="m", id=request_id, **fields)
    shared(message.inputs.add(name="x", datatype="FP32", shape=[1, 4]), offset=offset)
    shared(message.outputs.add(name="y"), offset=offset)
    return bytes(message.SerializeToString())


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.text(max_size=200), st.sampled_from((0, 16, 112)), st.sampled_from(("", "1", "17"))),
        min_size=1,
        max_size=12,
    )
)
def test_messages_of_a_known_form_are_read_as_new_ones(messages: list[tuple[str, int, str]]) -> None:
    """The id, the place in the region and the version are those of the message, however often others came before."""
    places = {offset: np.full((1, 4), offset, np.float32).tobytes() for offset in (0, 16, 112)}
    regions: Any = SimpleNamespace(
        region=lambda name, offset, size: SimpleNamespace(read=lambda start, count: memoryview(places[start]))
    )
    decoder = InferDecoder(service(regions))
    for _ in range(3):
        for request_id, offset, version in messages:
            body = regional(request_id, offset, model_version=version)
            plan, found, inputs = decoder.decode(b"\0" * 5 + body, 5)
            assert (found, plan.model_version) == (request_id, version)
            assert inputs["x"].tolist() == [[offset] * 4]
            assert plan.choices["y"].region_offset == offset


def test_a_tensor_that_is_not_aligned_goes_through_the_host() -> None:
    """A kernel that reads it on the device would end the use of the GPU for the whole process."""
    driver = FakeDriver()
    regions = SharedMemoryRegions(allows_system=False, cuda=CudaMemory(lambda: driver))
    regions.register_cuda("r", driver.export(128)[0], 0, 128)
    on_gpu = SimpleNamespace(shared_memory=regions, takes_device_arrays=lambda name, version: True)
    plan = plan_of(message_of())
    for offset, is_on_device in ((0, True), (8, True), (2, False), (5, False)):
        array = read_input(SharedInput("x", "FP32", (1, 4), "r", offset, 16), plan, on_gpu)  # type: ignore[arg-type]
        assert isinstance(array, DeviceArray) is is_on_device
        choice = OutputChoice(True, 0, "r", offset, 16)
        target = regions.device_target(choice, (1, 4), np.dtype(np.float32))
        assert (target is not None) is is_on_device
