"""What every request shares: its context, its decision, and the errors of a request that cannot be granted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.view import View
from isochrone.errors import GRPC_ALREADY_EXISTS, IsochroneError, NotFound
from isochrone.store.base import Compare, Delete, Put
from isochrone.suggestions import suggestion

Answer = TypeVar("Answer")


class Conflict(IsochroneError):
    """The request conflicts with the present state; the message has the reason and what to do."""

    code = "conflict"
    http_status = 409
    grpc_status = GRPC_ALREADY_EXISTS


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The requester, the time (seconds since 1970), and a string that is unique to the request."""

    who: str
    at: float
    unique: str


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """A transaction, and the answer once it is written. No operations: nothing needs to change."""

    answer: Answer
    compares: tuple[Compare, ...] = ()
    operations: tuple[Put | Delete, ...] = ()


def applied_fleet(view: View) -> tuple[FleetRecord, Fleet]:
    record = view.fleet
    if record is None:
        raise Conflict("no fleet.yaml has been applied yet; run 'isochrone apply FILE'")
    return record, fleet_of(record.spec)


def one_of(name: str, known: Sequence[str], kind: str) -> None:
    """Raise ``NotFound`` for an unknown name, with the nearest known one."""
    if name not in known:
        expected = suggestion(name, list(known), kind) if known else f"a {kind}, but the fleet has none"
        raise NotFound(f"{kind} '{name}': expected {expected}")
