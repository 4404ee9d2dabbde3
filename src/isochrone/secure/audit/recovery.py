"""Where a log goes on: its last record, and what is odd about its end.

A process that was killed leaves an end without a seal, perhaps a torn line. That is noted in the record of the next
start, and so is an end that was changed meanwhile: a restart does not whitewash it.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from isochrone.secure.audit.keys import AuditKey
from isochrone.secure.audit.records import NO_HASH, MalformedRecord, Record, is_whole, read_line
from isochrone.secure.audit.retention import first_record, seconds_of
from isochrone.secure.audit.seals import Seal, read_seal
from isochrone.secure.audit.segments import NO_LINK, Segment, segments_in, sync_directory

#: Bytes at the end of a segment among which its last lines are looked for. A record has at most some 20 kB.
_END_BYTES: Final = 1 << 18


@dataclass(slots=True)
class End:
    """The end of a log."""

    log: str
    #: The segment that goes on; 0: a new one begins.
    segment: int = 0
    sequence: int = 0
    hash: str = NO_HASH
    #: When its segment began, by the wall clock.
    began_ns: int = 0
    #: For the record of the start. Findings of ``verification`` rest on ``problem``.
    notes: dict[str, Any] = field(default_factory=dict)


def find_end(directory: Path, key: AuditKey | None) -> End:
    """Puts a torn line aside. Raises ``OSError``."""
    segments, seal = segments_in(directory), read_seal(directory)
    while segments and not segments[-1].path.stat().st_size:
        # The process ended between the making of a segment and its first record.
        segments.pop().path.unlink()
    if not segments:
        return _begin(seal)
    first = first_record(segments[-1])
    log = str(first.details.get("log", "")) if first is not None else ""
    end = End(log or (seal.log if seal is not None else "") or secrets.token_hex(8), segments[-1].number)
    end.began_ns = int(seconds_of(first.time) * 1e9) if first is not None else 0
    last = _last_record(segments[-1], end.notes)
    if last is None:
        # Nothing says how the chain went on: a new segment begins where the seal was.
        end.segment = 0
        end.sequence, end.hash = (seal.sequence, seal.hash) if seal is not None else (0, NO_HASH)
        end.notes |= {"problem": f"the last record of {segments[-1].path.name} could not be read", "kind": "edited"}
        return end
    end.sequence, end.hash = last.sequence, last.hash
    _compare(end, seal, key)
    return end


def _begin(seal: Seal | None) -> End:
    if seal is None:
        return End(secrets.token_hex(8))
    problem = f"{seal.sequence} sealed records were missing, with all segments"
    return End(seal.log, 0, seal.sequence, seal.hash, notes={"problem": problem})


def _compare(end: End, seal: Seal | None, key: AuditKey | None) -> None:
    """What the seal says of the end that was found."""
    notes = end.notes
    if seal is None:
        notes["problem"] = "the seal was missing"
    elif seal.log != end.log:
        notes |= {"problem": "the seal was another log's", "kind": "forged"}
    elif seal.state(key) == "forged":
        notes |= {"problem": "the seal was forged, or made with another key", "kind": "forged"}
    elif seal.state(key) == "not keyed":
        notes |= {"problem": "the seal was made without the key", "kind": "forged"}
    elif seal.sequence > end.sequence:
        notes["problem"] = f"sealed records {end.sequence + 1} to {seal.sequence} were missing"
        notes["sealed_hash"] = seal.hash
    elif seal.sequence == end.sequence and seal.hash != end.hash:
        notes |= {"problem": f"record {seal.sequence} was not the sealed one", "kind": "edited"}
    elif seal.sequence < end.sequence:
        notes["unsealed"] = end.sequence - seal.sequence


def _last_record(segment: Segment, notes: dict[str, Any]) -> Record | None:
    with os.fdopen(os.open(segment.path, os.O_RDWR | NO_LINK), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            torn = content[whole:]
            aside = segment.path.with_name(f"torn-{segment.number:08d}-{size - len(torn)}")
            _put_aside(aside, torn)
            file.truncate(size - len(torn))
            os.fsync(file.fileno())
            notes["torn_bytes"], notes["torn_file"] = len(torn), aside.name
    lines = content[:whole].splitlines()
    try:
        record = read_line(lines[-1]) if lines else None
        return record if record is not None and is_whole(lines[-1], record) else None
    except MalformedRecord:
        return None


def _put_aside(path: Path, torn: bytes) -> None:
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(torn)
        os.fsync(file.fileno())
    sync_directory(path.parent)
