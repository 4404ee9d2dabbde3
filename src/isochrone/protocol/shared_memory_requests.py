"""Requests whose tensors are in shared memory: they hold their regions from arrival until the answer is written.

A mixin for the transports' request classes, so that requests without shared memory pay nothing. However a request ends
(answered, failed, dropped, rejected before it was accepted), its regions are released exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from isochrone.devices.device_array import DeviceArray
from isochrone.errors import InvalidArgument, Unsupported
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters
from isochrone.protocol.tensors.binary import from_binary, size_mismatch, to_binary
from isochrone.protocol.tensors.cuda_memory import CudaRegion
from isochrone.protocol.tensors.datatypes import element_count, name_of, numpy_of
from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions, reject_cuda_region

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import OutputChoice, Plan, Tensor, Tensors
    from isochrone.protocol.services.service import InferenceService
    from isochrone.protocol.tensors.cuda_memory import CudaSharedMemoryRegion


#: BYTES have no form on a device, and BOOL may have bytes other than 0 and 1: both are decoded into new arrays.
UNSHAREABLE = frozenset(("BYTES", "BOOL"))


def regions_named(inputs: Iterable[object], choices: dict[str, OutputChoice]) -> tuple[str, ...]:
    """The regions that a request names, for inputs and outputs."""
    named = [*inputs, *(choice.region for choice in choices.values() if choice.region)]
    # A name that is not a string matches no region; the later lookup raises the error.
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str)))


def registered_regions(service: InferenceService) -> SharedMemoryRegions:
    """The regions for calls that register system regions and report on them; raises ``Unsupported`` if they are off."""
    if service.shared_memory is None or not service.shared_memory.allows_system:
        raise Unsupported("shared memory is switched off; start the server with --allow-shared-memory")
    return service.shared_memory


def cuda_status(service: InferenceService, name: str = "") -> list[CudaSharedMemoryRegion]:
    """The CUDA regions. Where they are off there are none, as in Triton without a GPU: clients ask when they start."""
    return (service.shared_memory or SharedMemoryRegions()).cuda_status(name)


def register_cuda_region(service: InferenceService, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
    """Register a region with this process; raises ``InvalidArgument`` where CUDA regions are off."""
    if service.shared_memory is None:
        reject_cuda_region(name)
    service.shared_memory.register_cuda(name, handle, device_id, byte_size)


def unregister_cuda_region(service: InferenceService, name: str) -> None:
    """Unregister a region, or all of them, from this process. Where they are off, there is nothing to do."""
    if service.shared_memory is not None:
        service.shared_memory.unregister(name, "cuda")


class SharedInput:
    """An input in shared memory, as a request describes it."""

    __slots__ = ("datatype", "dtype", "expected_bytes", "name", "offset", "region", "shape", "size")

    def __init__(self, name: str, datatype: str, shape: tuple[int, ...], region: Any, offset: Any, size: Any) -> None:
        self.name = name
        #: None: its bytes have to be decoded.
        self.dtype: Any = None if datatype in UNSHAREABLE else numpy_of(datatype)
        self.shape = shape
        self.expected_bytes = 0 if self.dtype is None else element_count(shape, f"input '{name}'") * self.dtype.itemsize
        self.datatype = datatype
        #: Of any types: REST passes JSON values.
        self.region = region
        self.offset = offset
        self.size = size


def read_input(shared: SharedInput, plan: Plan, service: InferenceService) -> Tensor:
    """An input in shared memory.

    In a CUDA region it stays where it is if the model takes it there, and is copied to the host otherwise.
    """
    regions = service.shared_memory
    if regions is None:
        raise _switched_off(f"input '{shared.name}' is in shared memory")
    offset, size = shared.offset, shared.size
    region = regions.region(shared.region, offset, size)
    if shared.dtype is None:
        return from_binary(shared.name, shared.datatype, shared.shape, region.read(offset, size), plan.model_name)
    if size != shared.expected_bytes:
        raise size_mismatch(shared.name, plan.model_name, shared.expected_bytes, size)
    if (
        isinstance(region, CudaRegion)
        and region.is_aligned(offset, shared.dtype)
        and service.takes_device_arrays(plan.model_name, plan.model_version)
    ):
        return cast("Tensor", region.tensor(offset, shared.shape, shared.dtype))
    array: Tensor = np.frombuffer(region.read(offset, size), shared.dtype) if size else np.empty(0, shared.dtype)
    return array.reshape(shared.shape)


def write_output(name: str, choice: OutputChoice, array: Tensor, service: InferenceService) -> None:
    """Write an output, an array or a ``DeviceArray``, to the requested region."""
    if service.shared_memory is None:
        raise _switched_off(f"output '{name}' asks for shared memory")
    offset, room = choice.region_offset, choice.region_size
    region = service.shared_memory.region(choice.region, offset, room)
    # mypy knows Tensors as arrays of the host.
    data: Any = array
    size = region.write(offset, room, data if isinstance(data, DeviceArray) else to_binary(array, name_of(array.dtype)))
    if size > room:
        raise InvalidArgument(
            f"shared memory size specified with the request for output '{name}' ({room} bytes) should be at "
            f"least {size} bytes to hold the results"
        )


def infer_with_regions(
    service: InferenceService, request: SharedMemoryRequest, choices: dict[str, OutputChoice]
) -> None:
    """Call ``infer`` for a request that holds its regions; if ``infer`` raises, the regions are released."""
    regions = service.shared_memory
    for name, choice in choices.items():
        if choice.region:
            if regions is None:
                raise _switched_off(f"output '{name}' asks for shared memory")
            # Checked before the model runs: its result must not be lost because a region does not exist.
            regions.region(choice.region, choice.region_offset, choice.region_size)
    if regions is not None:
        request.hold(regions)
    try:
        service.infer(request)
    except BaseException:
        request.release()
        raise


def _switched_off(request: str) -> InvalidArgument:
    return InvalidArgument(
        f"{request}, which is switched off; start the server with --allow-shared-memory or --allow-cuda-shared-memory"
    )


class SharedMemoryRequest(InferRequest):
    """The mixin for a transport's request class: holds the regions that the request names."""

    # Without slots: Python cannot combine two base classes that both define slots.
    _regions: SharedMemoryRegions | None = None
    _held: tuple[str, ...] = ()

    def hold(self, regions: SharedMemoryRegions) -> None:
        plan: Any = self.plan
        self._regions, self._held = regions, plan.regions
        regions.hold(self._held)

    def release(self) -> None:
        regions, self._regions = self._regions, None
        if regions is not None:
            regions.release(self._held)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        try:
            super().complete(outputs, parameters)
        finally:
            self.release()

    def fail(self, error: IsochroneError) -> None:
        self.release()
        super().fail(error)

    def dropped(self) -> None:
        self.release()
        super().dropped()

    def finish(self) -> None:
        self.release()
        super().finish()

    def finish_with(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        try:
            super().finish_with(outputs, parameters)
        finally:
            self.release()

    @property
    def shares_inputs(self) -> bool:
        """The regions are the caller's."""
        return True

    def output_target(self, output: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray | None:
        plan: Any = self.plan
        choice = plan.choices.get(output)
        if choice is None or self._regions is None:
            return None
        return self._regions.device_target(choice, shape, dtype)

    def keeps_on_device(self, output: str) -> bool:
        """An output that goes to a CUDA region is copied there from the device. On any thread: the region is held."""
        plan: Any = self.plan
        choice = plan.choices.get(output)
        regions = self._regions
        return choice is not None and regions is not None and regions.is_on_device(choice.region)


def with_shared_memory(request_type: type[InferRequest]) -> type[InferRequest]:
    """A request of a transport that holds shared memory."""
    return type(f"SharedMemory{request_type.__name__}", (SharedMemoryRequest, request_type), {})
