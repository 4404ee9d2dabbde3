"""Requests whose tensors are in shared memory: they hold their regions from arrival until the answer is written.

A mixin for the transports' request classes, so that requests without shared memory pay nothing. However a request ends
(answered, failed, dropped, rejected before it was accepted), its regions are released exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from isochrone.errors import InvalidArgument, Unsupported
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import OutputChoice, Tensors
    from isochrone.protocol.service import InferenceService
    from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions


def regions_named(inputs: Iterable[object], choices: dict[str, OutputChoice]) -> tuple[str, ...]:
    """The regions that a request names, for inputs and outputs."""
    named = [*inputs, *(choice.region for choice in choices.values() if choice.region)]
    # A name that is not a string matches no region; the later lookup raises the error.
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str)))


def registered_regions(service: InferenceService) -> SharedMemoryRegions:
    """The regions for calls that register them and report on them; raises ``Unsupported`` if shared memory is off."""
    if service.shared_memory is None:
        raise Unsupported("shared memory is switched off; start the server with --allow-shared-memory")
    return service.shared_memory


def input_view(name: str, region: str, offset: int, size: int, service: InferenceService) -> memoryview:
    """The bytes of an input in a region."""
    if service.shared_memory is None:
        raise _switched_off(f"input '{name}' is in shared memory")
    return service.shared_memory.view(region, offset, size)


def write_output(name: str, choice: OutputChoice, data: Any, service: InferenceService) -> None:
    """Write an output's bytes to the requested region."""
    if service.shared_memory is None:
        raise _switched_off(f"output '{name}' asks for shared memory")
    view = service.shared_memory.view(choice.region, choice.region_offset, choice.region_size)
    if len(data) > len(view):
        raise InvalidArgument(
            f"shared memory size specified with the request for output '{name}' ({len(view)} bytes) should be at "
            f"least {len(data)} bytes to hold the results"
        )
    view[: len(data)] = data


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
            regions.view(choice.region, choice.region_offset, choice.region_size)
    if regions is not None:
        request.hold(regions)
    try:
        service.infer(request)
    except BaseException:
        request.release()
        raise


def _switched_off(request: str) -> InvalidArgument:
    return InvalidArgument(f"{request}, which is switched off; start the server with --allow-shared-memory")


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


def with_shared_memory(request_type: type[InferRequest]) -> type[InferRequest]:
    """A request of a transport that holds shared memory."""
    return type(f"SharedMemory{request_type.__name__}", (SharedMemoryRequest, request_type), {})
