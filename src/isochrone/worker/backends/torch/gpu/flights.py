"""Batches on the device: which rows and outputs of a batch belong to which request. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isochrone.devices.cuda.host_ranges import HostRange
    from isochrone.protocol.messages import Tensor, Tensors

#: The names of each request's outputs; None: all.
Wanted = list[tuple[str, ...] | None]


@dataclass(slots=True)
class Flight:
    """A batch on the device."""

    slot: int
    #: Rows of each request.
    parts: list[int]
    wanted: Wanted
    #: Name → array of the slot that holds it, once ``copied_out`` has happened.
    arrays: dict[str, Tensor]
    #: Index of a request → its outputs that are in its caller's memory on the device by then.
    on_device: dict[int, Tensors]
    #: Callers' memory that the device reads.
    held: list[HostRange] = field(default_factory=list)
    #: ``copied_out`` is known to have happened.
    is_complete: bool = False


def split(arrays: dict[str, Tensor], flight: Flight) -> list[Tensors]:
    """The outputs of each request, from those of all."""
    if len(flight.parts) == 1:
        return [{**_named(arrays, flight.wanted[0]), **flight.on_device.get(0, {})}]
    results: list[Tensors] = []
    start = 0
    for index, (rows, wanted) in enumerate(zip(flight.parts, flight.wanted, strict=True)):
        stop = start + rows
        own = {name: array[start:stop] for name, array in _named(arrays, wanted).items()}
        results.append({**own, **flight.on_device[index]} if index in flight.on_device else own)
        start = stop
    return results


def names_in(wanted: Wanted) -> set[str] | None:
    """The outputs that any request wants; None: all."""
    names: set[str] = set()
    for each in wanted:
        if each is None:
            return None
        names.update(each)
    return names


def _named(arrays: dict[str, Tensor], wanted: tuple[str, ...] | None) -> dict[str, Tensor]:
    return arrays if wanted is None else {name: array for name, array in arrays.items() if name in wanted}
