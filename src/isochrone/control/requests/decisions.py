"""What every request shares: its context, its decision, and the errors of a request that cannot be granted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from isochrone.control.fleet.reading import fleet_of
from isochrone.control.fleet.spec import Fleet
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.view import View
from isochrone.errors import GRPC_ALREADY_EXISTS, IsochroneError, NotFound
from isochrone.store.base import Compare, Delete, Put
from isochrone.suggestions import suggestion

Answer = TypeVar("Answer")


class Conflict(IsochroneError):
    """What is asked does not fit what is under way; the message says what is, and what to do."""

    code = "conflict"
    http_status = 409
    grpc_status = GRPC_ALREADY_EXISTS


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, when (seconds since 1970), and a word that no other request has."""

    who: str
    at: float
    unique: str


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """A transaction, and what is answered once it is written. No operations: it is so already."""

    answer: Answer
    compares: tuple[Compare, ...] = ()
    operations: tuple[Put | Delete, ...] = ()


def applied_fleet(view: View) -> tuple[FleetRecord, Fleet]:
    record = view.fleet
    if record is None:
        raise Conflict("no fleet.yaml has been applied yet; do it with 'isochrone apply FILE'")
    return record, fleet_of(record.spec)


def one_of(name: str, known: Sequence[str], kind: str) -> None:
    """Raises when a name is none of the known, with the nearest."""
    if name not in known:
        expected = suggestion(name, list(known), kind) if known else f"a {kind}, but the fleet has none"
        raise NotFound(f"{kind} '{name}': expected {expected}")
