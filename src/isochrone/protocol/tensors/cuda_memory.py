"""CUDA shared memory: memory of a client's process on a GPU, which it passes as a CUDA IPC handle.

A handle opens only memory that its owner exported. The server exports none, and CUDA refuses to open a process's own
memory: no region can show what belongs to the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from isochrone.devices.cuda.interface import HANDLE_BYTES, CudaDriver, CudaError
from isochrone.devices.cuda.memory import CudaTensor, device_address
from isochrone.devices.cuda.opened import OpenedHandles
from isochrone.devices.device_array import DeviceArray
from isochrone.errors import Internal, InvalidArgument
from isochrone.protocol.tensors.datatypes import shown
from isochrone.protocol.tensors.regions import Region, is_size


class CudaMemory:
    """What regions of CUDA shared memory have in common: the driver, which is loaded for the first of them."""

    def __init__(self, load_driver: Callable[[], CudaDriver]) -> None:
        self._load_driver = load_driver
        self._handles: OpenedHandles | None = None
        self._prepared: set[int] = set()

    def is_prepared(self, device_id: object) -> bool:
        """Whether ``prepare`` has nothing to do, as for what is no device."""
        return not is_size(device_id) or device_id in self._prepared

    def prepare(self, device_id: int) -> None:
        """Load the driver and make the device's context, which takes some hundred milliseconds. On any thread.

        It raises nothing: the registration that follows names what is wrong.
        """
        try:
            driver = self._load_driver()
            if device_id < driver.device_count():
                driver.prepare(device_id)
                self._prepared.add(device_id)
        except CudaError:
            pass

    def handles(self) -> OpenedHandles:
        """Raises ``CudaError`` if there is no driver."""
        if self._handles is None:
            self._handles = OpenedHandles(self._load_driver())
        return self._handles


@dataclass(frozen=True, slots=True)
class CudaSharedMemoryRegion:
    """A region as the status call reports it."""

    name: str
    device_id: int
    byte_size: int


class CudaRegion(Region):
    """``byte_size`` bytes from the start of the memory that ``handle`` names on device ``device_id``."""

    kind = "cuda"

    def __init__(self, memory: CudaMemory, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        # Triton's words for whatever is wrong.
        where = f"failed to register shared memory region: invalid args: region {shown(name)}"
        if len(handle) != HANDLE_BYTES:
            raise InvalidArgument(f"{where}: expected a handle of {HANDLE_BYTES} bytes, given {len(handle)}")
        if not is_size(byte_size) or byte_size < 1:
            raise InvalidArgument(f"{where}: expected byte_size 1 or more, given {shown(byte_size)}")
        try:
            self._handles = memory.handles()
            count = self._handles.driver.device_count()
        except CudaError as error:
            raise InvalidArgument(f"{where}: this server can use no GPU: {error}") from None
        if not is_size(device_id) or device_id >= count:
            expected = f"a device_id from 0 to {count - 1}" if count else "no region, since this server sees no GPU"
            raise InvalidArgument(f"{where}: expected {expected}, given {shown(device_id)}")
        try:
            self._memory = self._handles.open(device_id, handle)
        except CudaError as error:
            raise InvalidArgument(
                f"{where}: its handle cannot be opened on device {device_id} ({error.name}); expected one from "
                "cudaIpcGetMemHandle, for memory of cudaMalloc on this GPU, of another process on this machine that "
                "still runs"
            ) from None
        if byte_size > self._memory.size:
            self._handles.close(self._memory)
            raise InvalidArgument(
                f"{where}: expected byte_size of at most {self._memory.size}, which the allocation has, "
                f"given {byte_size}"
            )
        super().__init__(name, byte_size)
        self.device_id = device_id

    def status(self) -> CudaSharedMemoryRegion:
        return CudaSharedMemoryRegion(self.name, self.device_id, self.byte_size)

    def is_aligned(self, offset: int, dtype: np.dtype[Any]) -> bool:
        """Whether a tensor of that type may begin there: a kernel that reads another one ends the use of the GPU."""
        return (self._memory.address + offset) % dtype.itemsize == 0

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """The memory itself, as a tensor of that type."""
        address = self._memory.address + offset
        return DeviceArray(CudaTensor(self._handles.driver, self.device_id, address, shape, dtype))

    def read(self, offset: int, byte_size: int) -> memoryview:
        """A read-only copy."""
        copy = np.empty(byte_size, np.uint8)
        try:
            self._handles.driver.copy_to_host(self.device_id, copy.data, self._memory.address + offset)
        except CudaError as error:
            raise Internal(f"CUDA shared memory region {shown(self.name)} cannot be read: {error}") from None
        return copy.data.toreadonly()

    def write(self, offset: int, byte_size: int, data: Any) -> int:
        size = data.nbytes if isinstance(data, DeviceArray) else len(data)
        if size > byte_size:
            return int(size)
        driver, target = self._handles.driver, self._memory.address + offset
        try:
            if isinstance(data, DeviceArray):
                source = device_address(data.foreign)
                # A model that was given the target has written it.
                if source != target:
                    driver.copy_on_device(self.device_id, target, source, size)
            else:
                driver.copy_from_host(self.device_id, target, memoryview(data))
        except CudaError as error:
            raise Internal(f"CUDA shared memory region {shown(self.name)} cannot be written: {error}") from None
        return int(size)

    def close(self) -> None:
        try:
            self._handles.close(self._memory)
        except CudaError as error:
            raise Internal(f"failed to close CUDA IPC handle: {error}") from None
