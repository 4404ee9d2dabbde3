"""The latest events of the fleet, the newest first. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from isochrone.control.state.records import EventRecord

#: Events that are shown; ``isochrone events`` has all.
MOST: Final = 200
_LONGEST_DETAIL: Final = 400


@dataclass(frozen=True, slots=True)
class EventView:
    revision: int
    at: float
    who: str
    what: str
    about: str
    detail: str


def event_views(events: Iterable[tuple[int, EventRecord]]) -> tuple[EventView, ...]:
    newest = [*events][-MOST:]
    return tuple(
        EventView(revision, each.at, each.who, each.what, each.about, each.detail[:_LONGEST_DETAIL])
        for revision, each in reversed(newest)
    )
