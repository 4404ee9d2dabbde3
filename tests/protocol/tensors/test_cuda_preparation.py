"""The context of a device is made before its first region, and what is wrong is named by the registration."""

from __future__ import annotations

from typing import Any

import pytest

from fake_cuda import FakeDriver
from isochrone.devices.cuda.interface import CudaError
from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.cuda_memory import CudaMemory
from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions


def test_each_device_is_prepared_once() -> None:
    driver = FakeDriver(devices=2)
    memory = CudaMemory(lambda: driver)
    assert not memory.is_prepared(1)
    memory.prepare(1)
    assert memory.is_prepared(1)
    assert not memory.is_prepared(0)
    assert [device for device, _ in driver.prepared] == [1]


@pytest.mark.parametrize("given", [-1, True, "0", None, 1.0])
def test_what_is_no_device_needs_no_context(given: Any) -> None:
    assert CudaMemory(FakeDriver).is_prepared(given)


def test_a_device_that_does_not_exist_is_named_by_the_registration() -> None:
    driver = FakeDriver(devices=2)
    memory = CudaMemory(lambda: driver)
    memory.prepare(2)
    assert driver.prepared == []
    with pytest.raises(InvalidArgument, match="expected a device_id from 0 to 1, given 2"):
        SharedMemoryRegions(cuda=memory).register_cuda("r", driver.export(64)[0], 2, 64)


def test_a_machine_without_a_driver_is_named_by_the_registration() -> None:
    def missing() -> Any:
        raise CudaError("libcuda.so.1", "the driver's library cannot be loaded")

    memory = CudaMemory(missing)
    memory.prepare(0)
    assert not memory.is_prepared(0)
    with pytest.raises(InvalidArgument, match="this server can use no GPU: libcuda"):
        SharedMemoryRegions(cuda=memory).register_cuda("r", bytes(64), 0, 64)


def test_a_context_that_fails_is_tried_again() -> None:
    driver = FakeDriver()
    driver.fails["prepare"] = "CUDA_ERROR_OUT_OF_MEMORY"
    memory = CudaMemory(lambda: driver)
    memory.prepare(0)
    assert not memory.is_prepared(0)
    memory.prepare(0)
    assert memory.is_prepared(0)


def test_a_server_that_stops_closes_what_no_request_holds() -> None:
    driver = FakeDriver()
    regions = SharedMemoryRegions(cuda=CudaMemory(lambda: driver))
    for name in ("held", "free", "failing"):
        regions.register_cuda(name, driver.export(64)[0], 0, 64)
    regions.hold(["held"])
    driver.fails["close_handle"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    regions.close()
    assert [region.name for region in regions.cuda_status()] == ["held"]
    assert len(driver.open) == 1
    regions.release(["held"])
    regions.close()
    assert driver.open == []
