"""What the server needs of the CUDA driver. ``library`` implements it; tests use memory of the host instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

#: CU_IPC_HANDLE_SIZE of cuda.h.
HANDLE_BYTES = 64


class CudaError(Exception):
    """A call of the driver failed, or there is no driver."""

    def __init__(self, call: str, name: str) -> None:
        self.call = call
        #: The driver's name of the error, such as CUDA_ERROR_INVALID_VALUE.
        self.name = name
        super().__init__(f"{call}: {name}")


class CudaDriver(Protocol):
    """Calls of the driver, by the number of the device. Every method raises ``CudaError``.

    Addresses are the device's. Copies are complete when the method returns; they wait for no other work on the device;
    except those of ``start_copies``.
    """

    def version(self) -> int:
        """The newest CUDA version that the driver supports: 13020 is 13.2."""
        ...

    def device_count(self) -> int: ...

    def prepare(self, device: int) -> None:
        """Make the device's context, which the first other call would make: it takes some hundred milliseconds."""
        ...

    def open_handle(self, device: int, handle: bytes) -> int:
        """The address of another process's memory, by its IPC handle of 64 bytes."""
        ...

    def close_handle(self, device: int, address: int) -> None: ...

    def allocation(self, device: int, address: int) -> tuple[int, int]:
        """The start and the size in bytes of the allocation that contains an address."""
        ...

    def copy_to_host(self, device: int, target: memoryview, source: int) -> None:
        """Fill ``target``, which is writable and contiguous."""
        ...

    def copy_from_host(self, device: int, target: int, source: memoryview) -> None: ...

    def copy_on_device(self, device: int, target: int, source: int, size: int) -> None: ...

    def start_copies(self, device: int, copies: Sequence[tuple[int, int, int]], stream: int) -> None:
        """Start copies of (target, source, size) from pinned memory of the host, on a stream of any framework.

        It returns before they are complete. In what order they happen is not defined.
        """
        ...

    def register_host(self, device: int, address: int, size: int) -> None:
        """Lock pages of the host in memory, so that devices can copy from and to them directly."""
        ...

    def unregister_host(self, device: int, address: int) -> None: ...
