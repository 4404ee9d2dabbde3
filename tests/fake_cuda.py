"""A CUDA driver whose devices are memory of the host: addresses are real, so that copies can be checked."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from isochrone.devices.cuda.interface import CudaDriver, CudaError
from isochrone.devices.cuda.library import host_address


class FakeDriver(CudaDriver):
    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        #: Handle → (device, its memory); what a client allocated.
        self.exported: dict[bytes, tuple[int, Any]] = {}
        #: Addresses that are open.
        self.open: list[int] = []
        #: The calls that copied: (name, bytes).
        self.copies: list[tuple[str, int]] = []
        self.pinned: dict[int, int] = {}
        #: Devices whose context was made, and the threads that made it.
        self.prepared: list[tuple[int, str]] = []
        #: Method → the driver's error of its next call.
        self.fails: dict[str, str] = {}

    def export(self, size: int, device: int = 0) -> tuple[bytes, Any]:
        """As a client does: its memory, and the handle to pass on."""
        memory = np.zeros(size, np.uint8)
        handle = bytes([len(self.exported) + 1]) * 64
        self.exported[handle] = device, memory
        return handle, memory

    def _may_fail(self, method: str) -> None:
        if method in self.fails:
            raise CudaError(method, self.fails.pop(method))

    def version(self) -> int:
        return 13020

    def device_count(self) -> int:
        self._may_fail("device_count")
        return self.devices

    def prepare(self, device: int) -> None:
        self._may_fail("prepare")
        self.prepared.append((device, threading.current_thread().name))

    def open_handle(self, device: int, handle: bytes) -> int:
        self._may_fail("open_handle")
        owner, memory = self.exported.get(handle, (-1, None))
        if memory is None:
            raise CudaError("cuIpcOpenMemHandle_v2", "CUDA_ERROR_INVALID_VALUE")
        if owner != device:
            raise CudaError("cuIpcOpenMemHandle_v2", "CUDA_ERROR_INVALID_DEVICE")
        address = int(memory.ctypes.data)
        if address in self.open:
            raise CudaError("cuIpcOpenMemHandle_v2", "CUDA_ERROR_ALREADY_MAPPED")
        self.open.append(address)
        return address

    def close_handle(self, device: int, address: int) -> None:
        self.open.remove(address)
        self._may_fail("close_handle")

    def allocation(self, device: int, address: int) -> tuple[int, int]:
        self._may_fail("allocation")
        for _, memory in self.exported.values():
            start = int(memory.ctypes.data)
            if start <= address < start + memory.nbytes:
                return start, memory.nbytes
        raise CudaError("cuMemGetAddressRange_v2", "CUDA_ERROR_NOT_FOUND")

    def copy_to_host(self, device: int, target: memoryview, source: int) -> None:
        self._may_fail("copy_to_host")
        self.copies.append(("to_host", target.nbytes))
        ctypes.memmove(host_address(target), source, target.nbytes)

    def copy_from_host(self, device: int, target: int, source: memoryview) -> None:
        self._may_fail("copy_from_host")
        self.copies.append(("from_host", source.nbytes))
        if source.nbytes:
            ctypes.memmove(target, host_address(source), source.nbytes)

    def copy_on_device(self, device: int, target: int, source: int, size: int) -> None:
        self._may_fail("copy_on_device")
        self.copies.append(("on_device", size))
        ctypes.memmove(target, source, size)

    def start_copies(self, device: int, copies: Sequence[tuple[int, int, int]], stream: int) -> None:
        self._may_fail("start_copies")
        for target, source, size in copies:
            self.copies.append(("started", size))
            ctypes.memmove(target, source, size)

    def register_host(self, device: int, address: int, size: int) -> None:
        self._may_fail("register_host")
        self.pinned[address] = size

    def unregister_host(self, device: int, address: int) -> None:
        del self.pinned[address]
        self._may_fail("unregister_host")
