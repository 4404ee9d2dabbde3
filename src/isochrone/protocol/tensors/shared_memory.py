"""Shared-memory regions that clients registered, for tensors that are not in a request's body.

A transport uses a region instead of bytes from the wire, and holds the regions of a request until its answer is
written: a held region cannot be unregistered. System and CUDA regions share one set of names, as in Triton.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from isochrone.errors import AlreadyExists, Internal, InvalidArgument, NotFound, PayloadTooLarge, Unavailable
from isochrone.protocol.tensors.cuda_memory import CudaMemory, CudaRegion, CudaSharedMemoryRegion
from isochrone.protocol.tensors.datatypes import shown
from isochrone.protocol.tensors.regions import Region
from isochrone.protocol.tensors.system_memory import SharedMemoryRegion, SystemRegion

if TYPE_CHECKING:
    import numpy as np

    from isochrone.devices.device_array import DeviceArray
    from isochrone.protocol.messages import OutputChoice

#: Each region uses a file descriptor, of which a process has 1,024 by default.
MAX_REGIONS = 256

_CALLED = {"system": "system", "cuda": "CUDA"}


class SharedMemoryRegions:
    """The regions registered with this server, by name. For the event loop's thread only; any thread may use views."""

    def __init__(self, *, allows_system: bool = True, cuda: CudaMemory | None = None) -> None:
        self.allows_system = allows_system
        #: None: regions of CUDA shared memory are not allowed.
        self.cuda = cuda
        self._regions: dict[str, Region] = {}
        #: Name → number of requests that hold the region; no entry: none.
        self._holders: dict[str, int] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map ``byte_size`` bytes at ``offset`` of the shared memory ``key`` as the region ``name``."""
        self._check_new(name)
        self._regions[name] = SystemRegion(name, key, offset, byte_size)

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Open the memory that a CUDA IPC handle names, as the region ``name``."""
        if self.cuda is None:
            reject_cuda_region(name)
        self._check_new(name)
        self._regions[name] = CudaRegion(self.cuda, name, handle, device_id, byte_size)

    def _check_new(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"failed to register shared memory region: expected a name, given {shown(name)}")
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MAX_REGIONS:
            where = f"failed to register shared memory region {shown(name)}"
            raise PayloadTooLarge(f"{where}: {MAX_REGIONS} regions are registered, which is the limit")

    def unregister(self, name: str = "", kind: str = "system") -> None:
        """Unregister a region, or all of that kind if the name is empty.

        As in Triton, a name that is unknown or of the other kind is no error. A region that a request holds stays
        registered, and the call fails; without a name the others are removed.
        """
        if name:
            region = self._regions.get(name)
            if region is None or region.kind != kind:
                return
            if name in self._holders:
                raise Unavailable(f"Cannot unregister shared memory region {shown(name)}, it is currently in use.")
            del self._regions[name]
            region.close()
            return
        of_kind = [region for region in self._regions.values() if region.kind == kind]
        for region in of_kind:
            if region.name not in self._holders:
                del self._regions[region.name]
                region.close()
        if held := [region.name for region in of_kind if region.name in self._holders]:
            raise Unavailable(f"Failed to unregister the following {kind} shared memory regions: {' ,'.join(held)} ,")

    def close(self) -> None:
        """Unregister every region that no request holds: the server has stopped."""
        for name in [name for name in self._regions if name not in self._holders]:
            with suppress(Internal):  # the device is lost
                self._regions.pop(name).close()

    def hold(self, names: Iterable[str]) -> None:
        """A request holds these regions until ``release`` is called with the same names."""
        for name in names:
            self._holders[name] = self._holders.get(name, 0) + 1

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            left = self._holders[name] - 1
            if left:
                self._holders[name] = left
            else:
                del self._holders[name]

    def status(self, name: str = "") -> list[SharedMemoryRegion]:
        """The system region of that name, or every one if the name is empty."""
        return [region.status() for region in self._of_kind(name, "system") if isinstance(region, SystemRegion)]

    def cuda_status(self, name: str = "") -> list[CudaSharedMemoryRegion]:
        """The same of CUDA regions."""
        return [region.status() for region in self._of_kind(name, "cuda") if isinstance(region, CudaRegion)]

    def _of_kind(self, name: str, kind: str) -> list[Region]:
        if not name:
            return [region for region in self._regions.values() if region.kind == kind]
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find {kind} shared memory region: {shown(name)}")
        if region.kind != kind:
            raise NotFound(
                f"The region named {shown(name)} is registered as {_CALLED[region.kind]} shared memory, not "
                f"{_CALLED[kind]} shared memory"
            )
        return [region]

    def region(self, name: object, offset: object, byte_size: object) -> Region:
        """The region of that name, which has these bytes."""
        region = self._regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise NotFound(f"Unable to find shared memory region: {shown(name)}")
        region.check(offset, byte_size)
        return region

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        """Bytes of a region in the host's memory: a writable view, or a copy of what is on a device."""
        return self.region(name, offset, byte_size).read(offset, byte_size)

    def device_target(self, choice: OutputChoice, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray | None:
        """The memory of a CUDA region for an output; None: it goes to the host, or does not fit."""
        region = self._regions.get(choice.region) if isinstance(choice.region, str) else None
        if not isinstance(region, CudaRegion) or prod(shape) * dtype.itemsize > choice.region_size:
            return None
        if not region.is_aligned(choice.region_offset, dtype):
            return None
        return region.tensor(choice.region_offset, shape, dtype)

    def is_on_device(self, name: object) -> bool:
        return isinstance(self._regions.get(name) if isinstance(name, str) else None, CudaRegion)


def reject_cuda_region(name: str) -> NoReturn:
    """Reject the registration of a CUDA region by a server that does not allow them; as Triton without a GPU."""
    raise InvalidArgument(
        f"failed to register shared memory region: invalid args: region {shown(name)} is CUDA shared memory, "
        "which is switched off; start the server with --allow-cuda-shared-memory"
    )
