"""Records of the audit log as lines, and lines as records. Pure.

A line is a JSON object that ends with its own hash: SHA-256 of the bytes before the member ``hash``. Among these bytes
are the sequence number and the hash of the record before, so that no byte, no place and no neighbour of a record can
change unnoticed. Callers choose names and ids: they are cut, and JSON escapes what would end a line.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from isochrone.secure.audit.actor import Actor

#: What the first record of a log has in place of a hash before it.
NO_HASH: Final = "0" * 64
#: Characters of a text that callers choose.
MAX_TEXT: Final = 200
_HASH_MEMBER: Final = b',"hash":"'
#: The member, 64 digits, a quote and a brace.
_TAIL: Final = len(_HASH_MEMBER) + 64 + 2

# Actions of the log itself.
SEGMENT: Final = "audit.segment"
START: Final = "audit.start"
STOP: Final = "audit.stop"
RETENTION: Final = "audit.retention"
#: A request for inference.
INFER: Final = "infer"
#: Requests that access rules refused, counted (``refusals``).
ACCESS_REFUSE: Final = "access.refuse"

#: The outcome of a record that is written before its action.
ATTEMPT: Final = "attempt"
DONE: Final = "done"
FAILED: Final = "failed"
REFUSED: Final = "refused"


class Entry(NamedTuple):
    """What a server says; the log adds the sequence number and the hashes."""

    wall_ns: int
    actor: Actor
    action: str
    object: str
    outcome: str
    #: Plain values by name. Empty ones are left out.
    details: dict[str, Any]


class Record(msgspec.Struct, frozen=True):
    """A record that was read."""

    sequence: int
    time: str
    actor: dict[str, str]
    action: str
    object: str
    outcome: str
    details: dict[str, Any]
    previous: str
    hash: str


class MalformedRecord(ValueError):
    """A line that the log cannot have written."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def line_of(entry: Entry, sequence: int, previous: str) -> tuple[bytes, str]:
    """The line of an entry, and its hash."""
    body = _body(entry, sequence, previous)[:-1]
    digest = hashlib.sha256(body).hexdigest()
    return b'%b%b%b"}\n' % (body, _HASH_MEMBER, digest.encode()), digest


def read_line(line: bytes) -> Record:
    """A line without its end. Raises ``MalformedRecord``; ``is_whole`` says whether the hash is its own."""
    if line[-_TAIL : -_TAIL + len(_HASH_MEMBER)] != _HASH_MEMBER or not line.endswith(b'"}'):
        raise MalformedRecord("it does not end with its hash")
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRecord(str(error)) from None


def is_whole(line: bytes, record: Record) -> bool:
    """Whether the record's hash is that of its line."""
    # The hash's own place: JSON takes the last of two members with one name, so that it is the one that was read.
    return hashlib.sha256(line[:-_TAIL]).hexdigest() == record.hash


def _body(entry: Entry, sequence: int, previous: str) -> bytes:
    _, actor, action, subject, outcome, details = entry
    values = {
        "sequence": sequence,
        "time": timestamp(entry.wall_ns),
        "actor": {"name": actor.name[:MAX_TEXT], "kind": actor.kind, "address": actor.address},
        "action": action,
        "object": subject[:MAX_TEXT],
        "outcome": outcome,
        "details": {name: _short(value) for name, value in details.items() if value is not None and value != ""},
        "previous": previous,
    }
    try:
        return _encode(values)
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError):
        # One value that JSON has no form for must not keep the records behind it from being written.
        return _encode(_valid(values))


def _short(value: Any) -> Any:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _valid(value: Any) -> Any:
    """The same without lone surrogates, which UTF-8 has no bytes for, and with texts for what JSON cannot say."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else str(value)[:MAX_TEXT]
    if isinstance(value, dict):
        return {_valid(name): _valid(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_valid(each) for each in value]
    return ascii(value)[:MAX_TEXT]


#: Seconds → their text: a batch has thousands of records of one second.
_last_second: tuple[int, str] = (-1, "")


def timestamp(wall_ns: int) -> str:
    global _last_second
    seconds, below = divmod(wall_ns, 1_000_000_000)
    known, text = _last_second
    if known != seconds:
        text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
        _last_second = seconds, text
    return f"{text}.{below // 1000:06d}Z"
