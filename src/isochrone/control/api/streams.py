"""Server-sent events: the changes of a rollout, and the fleet's events.

The mirror feeds them. A comment line every few seconds keeps proxies from closing a quiet stream, and detects a reader
that has gone. The stream of a rollout ends when the rollout is over, every stream when the controller stops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from isochrone.control.api.messages import Event, in_full
from isochrone.control.api.service import ControlService
from isochrone.control.state.records import EventRecord

#: Seconds without a change before a comment is sent.
_QUIET_SECONDS = 10.0
_COMMENT = b": still here\n\n"


def event_stream(source: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(source, media_type="text/event-stream", headers={"cache-control": "no-store"})


def event_message(revision: int, record: EventRecord) -> Event:
    return Event(revision, record.at, record.who, record.what, record.about, record.detail)


async def rollout_changes(
    service: ControlService, identity: str, quiet_seconds: float = _QUIET_SECONDS
) -> AsyncIterator[bytes]:
    """The record now, and whenever it changes, until the rollout is over."""
    mirror = service.mirror
    key = service.keys.rollout(identity)
    sent = 0
    while not service.stopping.is_set():
        seen = mirror.revision
        entry = mirror.entries.get(key)
        if entry is None:
            return
        if entry.revision != sent:
            sent = entry.revision
            record = service.view().rollout(identity)
            if record is not None:
                yield _message("rollout", sent, record)
            if record is None or record.is_over:
                return
        if not await service.changed(seen, quiet_seconds):
            yield _COMMENT


async def event_changes(
    service: ControlService, after: int, quiet_seconds: float = _QUIET_SECONDS
) -> AsyncIterator[bytes]:
    """Every event written after a revision, until the controller stops."""
    mirror = service.mirror
    while not service.stopping.is_set():
        seen = mirror.revision
        for revision, record in service.view().events(after):
            after = revision
            yield _message("event", revision, event_message(revision, record))
        if not await service.changed(seen, quiet_seconds):
            yield _COMMENT


def _message(name: str, revision: int, record: Any) -> bytes:
    # JSON has no line break inside: one data line is enough.
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (revision, name.encode(), msgspec.json.encode(in_full(record)))
