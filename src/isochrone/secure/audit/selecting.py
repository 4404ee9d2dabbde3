"""Which records a reader asked for, and records as rows of a table. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from isochrone.errors import FlagError
from isochrone.secure.audit.records import Record, timestamp

_AGO: Final = re.compile(r"(\d{1,9})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: Characters at which a spreadsheet takes a cell for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

COLUMNS: Final = (
    "log",
    "sequence",
    "time",
    "actor",
    "actor_kind",
    "address",
    "action",
    "object",
    "outcome",
    "details",
    "hash",
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Empty texts select everything."""

    #: A time as records have it.
    since: str = ""
    #: The actor's name, or an agent's.
    actor: str = ""
    model: str = ""
    #: An action, or the part of it before a dot. A change that was refused is found by the change too.
    action: str = ""

    def takes(self, record: Record) -> bool:
        if self.since and record.time < self.since:
            return False
        details = record.details
        if self.action and not (self._is_of_action(record.action) or self._is_of_action(details.get("change"))):
            return False
        if self.model and self.model != record.object and self.model != details.get("model"):
            return False
        return not self.actor or self.actor in (record.actor.get("name"), details.get("agent"), details.get("user"))

    def _is_of_action(self, named: Any) -> bool:
        return isinstance(named, str) and (named == self.action or named.startswith(f"{self.action}."))


def read_since(text: str, now_ns: int, flag: str = "--since") -> str:
    """``15m``, or a time of ISO 8601, in UTC where it names no zone. Raises ``FlagError``."""
    if not text:
        return ""
    if match := _AGO.fullmatch(text):
        return timestamp(max(0, now_ns - int(match[1]) * _SECONDS[match[2]] * 1_000_000_000))
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise FlagError(flag, "a duration such as 15m, 2h or 7d, or a time such as 2026-01-31T08:00", text) from None
    given = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    return f"{given:%Y-%m-%dT%H:%M:%S.%f}Z"


def row_of(log: str, record: Record) -> list[str]:
    """The values of ``COLUMNS``, none of which a spreadsheet runs."""
    actor = record.actor
    values: list[Any] = [
        log,
        str(record.sequence),
        record.time,
        actor.get("name", ""),
        actor.get("kind", ""),
        actor.get("address", ""),
        record.action,
        record.object,
        record.outcome,
        msgspec.json.encode(record.details).decode(),
        record.hash,
    ]
    return [f"'{value}" if value.startswith(_FORMULA) else value for value in values]


def sentence_of(log: str, record: Record) -> str:
    """One line for a terminal; what is not printable is escaped."""
    actor = record.actor
    who = actor.get("name", "")
    if address := actor.get("address"):
        who += f"@{address}"
    details = " ".join(f"{name}={_plain(value)}" for name, value in record.details.items())
    words = (record.time, log, who, record.action, record.object, record.outcome, details)
    line = "  ".join(word for word in words if word)
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
