"""Memory of other processes on this machine's GPUs, opened by their IPC handles."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.devices.cuda.interface import CudaDriver


@dataclass(frozen=True, slots=True)
class OpenedMemory:
    """An opened handle. The allocation's bytes from ``address`` on are ``size``."""

    device: int
    handle: bytes
    address: int
    size: int


class OpenedHandles:
    """Opens each handle once, and closes it when everyone who opened it has closed it.

    Drivers differ: the second opening of a handle in one process is an error, or gives the same address again.
    """

    def __init__(self, driver: CudaDriver) -> None:
        self.driver = driver
        self._opened: dict[tuple[int, bytes], tuple[OpenedMemory, int]] = {}

    def open(self, device: int, handle: bytes) -> OpenedMemory:
        """Raises ``CudaError``. Every call must be followed by one of ``close``."""
        memory, count = self._opened.get((device, handle)) or (self._new(device, handle), 0)
        self._opened[device, handle] = memory, count + 1
        return memory

    def _new(self, device: int, handle: bytes) -> OpenedMemory:
        address = self.driver.open_handle(device, handle)
        try:
            start, size = self.driver.allocation(device, address)
        except BaseException:
            self.driver.close_handle(device, address)
            raise
        # The handle of a part of an allocation opens at that part.
        return OpenedMemory(device, handle, address, max(0, start + size - address))

    def close(self, memory: OpenedMemory) -> None:
        key = memory.device, memory.handle
        _, count = self._opened[key]
        if count > 1:
            self._opened[key] = memory, count - 1
        else:
            del self._opened[key]
            self.driver.close_handle(memory.device, memory.address)
