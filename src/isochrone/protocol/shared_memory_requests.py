"""Requests whose tensors lie in shared memory: they hold their regions from arrival until the answer is written.

Mixed into a transport's own request for those alone, so that requests without shared memory pay nothing. Whichever way
a request ends (answered, failed, dropped, refused before it was taken), its regions are let go exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from isochrone.errors import InvalidArgument
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import OutputChoice, Tensors
    from isochrone.protocol.service import InferenceService
    from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions


def regions_named(inputs: Iterable[object], choices: dict[str, OutputChoice]) -> tuple[str, ...]:
    """The regions a request names, for inputs and outputs; most name none."""
    named = [*inputs, *(choice.region for choice in choices.values() if choice.region)]
    # Names of another type are no region's; looking them up says so.
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str)))


def write_output(name: str, choice: OutputChoice, data: Any, service: InferenceService) -> None:
    """Puts an output's bytes where the caller wants them."""
    if service.shared_memory is None:
        raise _switched_off(name)
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
    """Hands a request over that holds its regions; raises as ``infer`` does, and then holds nothing."""
    regions = service.shared_memory
    for name, choice in choices.items():
        if choice.region:
            if regions is None:
                raise _switched_off(name)
            # Before anything runs: a model's work must not be lost to a region that was never there.
            regions.view(choice.region, choice.region_offset, choice.region_size)
    if regions is not None:
        request.hold(regions)
    try:
        service.infer(request)
    except BaseException:
        request.release()
        raise


def _switched_off(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"output '{name}' asks for shared memory, which is switched off; start the server with --allow-shared-memory"
    )


class SharedMemoryRequest(InferRequest):
    """What the transports' requests become when they name regions."""

    # Without slots: two bases with slots of their own cannot be combined.
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
