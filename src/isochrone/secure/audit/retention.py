"""Which segments have expired, and the checkpoint that says so. Pure but for reading first records.

Only whole segments go, the oldest first. The checkpoint is a record like others: with it, the chain shows that the log
itself deleted what is missing at its beginning, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from isochrone.secure.audit.records import MalformedRecord, Record, read_line
from isochrone.secure.audit.segments import Segment

_DAY = 86_400


class Expired(NamedTuple):
    segments: tuple[Segment, ...]
    #: The first record that stays.
    kept: Record

    @property
    def checkpoint(self) -> dict[str, Any]:
        """Details of the record."""
        return {
            "deleted_through": self.segments[-1].number,
            "last_sequence": self.kept.sequence - 1,
            "last_hash": self.kept.previous,
        }


def expired(segments: Sequence[Segment], keep_days: float, now: float) -> Expired | None:
    """None: no segment is. Raises ``OSError``. ``now``: seconds since 1970; a segment ends where the next begins."""
    if not keep_days:
        return None
    found: Expired | None = None
    for index in range(1, len(segments)):
        first = first_record(segments[index])
        if first is None or seconds_of(first.time) > now - keep_days * _DAY:
            break
        found = Expired(tuple(segments[:index]), first)
    return found


def seconds_of(time: str) -> float:
    """Of a record's time. Raises ``ValueError``."""
    return datetime.strptime(time, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()


def first_record(segment: Segment) -> Record | None:
    """None: it cannot be read. Raises ``OSError``."""
    with segment.path.open("rb") as file:
        line = file.readline().rstrip(b"\n")
    with contextlib.suppress(MalformedRecord, ValueError):
        record = read_line(line)
        seconds_of(record.time)
        return record
    return None
