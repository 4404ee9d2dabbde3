"""Memory on a device without a framework: shapes, interfaces, handles that are opened once, pinned pages."""

from __future__ import annotations

import gc
import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from fake_cuda import FakeDriver
from isochrone.devices.cuda import dlpack
from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.cuda.memory import CudaTensor, device_address
from isochrone.devices.cuda.opened import OpenedHandles
from isochrone.devices.cuda.pinning import pin
from isochrone.devices.device_array import DeviceArray, on_host

BRAIN: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


def on_device(array: Any) -> CudaTensor:
    return CudaTensor(FakeDriver(), 0, int(array.ctypes.data), array.shape, array.dtype)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.uint8, ml_dtypes.bfloat16])
def test_a_copy_in_the_host(kind: Any) -> None:
    array = np.arange(12).astype(kind).reshape(3, 4)
    tensor = on_device(array)
    copy = tensor.get()
    assert copy.dtype == array.dtype
    assert copy.tobytes() == array.tobytes()
    given = DeviceArray(tensor)
    assert (given.shape, given.dtype, given.nbytes) == ((3, 4), array.dtype, array.nbytes)
    assert on_host(given.foreign).tobytes() == array.tobytes()


def test_rows_and_other_shapes_are_the_same_memory() -> None:
    array = np.arange(24, dtype=np.int32).reshape(6, 4)
    tensor = on_device(array)
    assert len(tensor) == 6
    assert np.array_equal(tensor[2:5].get(), array[2:5])
    assert tensor[2:2].get().shape == (0, 4)
    assert np.array_equal(tensor[-2:].get(), array[-2:])
    assert np.array_equal(tensor.reshape((2, -1)).get(), array.reshape(2, 12))
    assert DeviceArray(tensor).reshape((3, 8)).shape == (3, 8)
    assert device_address(tensor[1:]) == array[1:].ctypes.data
    with pytest.raises(ValueError, match="step of 1"):
        tensor[::2]
    for shape in ((5, -1), (-1, -1), (3, 9), (0, -1)):
        with pytest.raises(ValueError, match="cannot reshape"):
            tensor.reshape(shape)


def test_the_array_interface() -> None:
    array = np.zeros((2, 3), np.float16)
    shown = on_device(array).__cuda_array_interface__
    assert shown == {
        "shape": (2, 3),
        "typestr": "<f2",
        "data": (array.ctypes.data, False),
        "strides": None,
        "stream": None,
        "version": 3,
    }
    assert on_device(np.zeros(2, BRAIN)).__cuda_array_interface__["typestr"] == "<i2"


class OnHost:
    """The same memory, shown as the host's, which every library can read."""

    def __init__(self, tensor: CudaTensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, **wishes: Any) -> Any:
        tensor = self._tensor
        return dlpack.capsule_of(tensor.address, tensor.shape, tensor.dtype, self.__dlpack_device__(), tensor)


def test_a_capsule_is_read_and_freed() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    living = len(dlpack._living)
    read = torch.from_dlpack(OnHost(on_device(array)))
    assert len(dlpack._living) == living + 1
    assert read.tolist() == array.tolist()
    assert read.data_ptr() == array.ctypes.data
    del read
    gc.collect()
    assert len(dlpack._living) == living


def test_a_capsule_that_nobody_takes_is_freed() -> None:
    # Sets the types of the interpreter's functions for the whole process.
    importlib.import_module("tritonclient.utils._dlpack")
    living = len(dlpack._living)
    tensor = on_device(np.zeros(3, np.int8))
    assert tensor.__dlpack_device__() == (dlpack.CUDA, 0)
    capsule = tensor.__dlpack__(stream=7, max_version=(1, 0))
    assert "dltensor" in repr(capsule)
    assert len(dlpack._living) == living + 1
    del capsule
    gc.collect()
    assert len(dlpack._living) == living


def test_types_of_capsules() -> None:
    brain = np.arange(3).astype(BRAIN)
    read = torch.from_dlpack(OnHost(on_device(brain)))
    assert read.dtype == torch.bfloat16
    assert read.tolist() == [0.0, 1.0, 2.0]
    assert torch.from_dlpack(OnHost(on_device(np.array([True, False])))).dtype == torch.bool
    scalar = torch.from_dlpack(OnHost(on_device(np.array(7, np.int64))))
    assert (scalar.shape, int(scalar)) == ((), 7)
    with pytest.raises(BufferError, match="DLPack has no type for"):
        on_device(np.array([b"x"])).__dlpack__()


def test_a_handle_is_opened_once() -> None:
    driver = FakeDriver()
    handles = OpenedHandles(driver)
    handle, memory = driver.export(64)
    first, second = handles.open(0, handle), handles.open(0, handle)
    assert first is second
    assert (first.address, first.size) == (memory.ctypes.data, 64)
    handles.close(first)
    assert driver.open == [first.address]
    handles.close(second)
    assert driver.open == []
    handles.close(handles.open(0, handle))


def test_a_handle_without_an_allocation_is_closed_again() -> None:
    driver = FakeDriver()
    handle, _ = driver.export(64)
    driver.fails["allocation"] = "CUDA_ERROR_NOT_FOUND"
    handles = OpenedHandles(driver)
    with pytest.raises(CudaError, match="CUDA_ERROR_NOT_FOUND"):
        handles.open(0, handle)
    assert driver.open == []
    assert handles.open(0, handle).size == 64


def test_pinned_pages() -> None:
    driver = FakeDriver()
    memory = bytearray(4096)
    pinned = pin(driver, 0, memoryview(memory))
    assert list(driver.pinned.values()) == [4096]
    pinned.unpin()
    pinned.unpin()
    assert driver.pinned == {}
    driver.fails["register_host"] = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    with pytest.raises(CudaError, match="ALREADY_REGISTERED"):
        pin(driver, 0, memoryview(memory))
