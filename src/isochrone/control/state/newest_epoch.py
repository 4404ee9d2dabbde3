"""The newest epoch that anybody has served, as the records of those who serve tell it. Pure.

A commit writes its record before anything can serve it, so nothing has ever served a later epoch than that of the
record. An epoch record with a lower number was put back: by somebody, or with a backup of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from isochrone.control.state.keys import Keys
from isochrone.store.base import Entry
from isochrone.store.seals import refusal

#: Digits of a number that anything can have served: one that is made up must not be beyond those of all machines.
_MOST_DIGITS = 18


class NewestEpoch(NamedTuple):
    """``by``: who has it. Number 0: nobody has served anything."""

    number: int = 0
    by: str = ""

    def why_put_back(self, number: int) -> str:
        """Why an epoch with this number is not what was committed last; "": it may be."""
        return f"epoch {number} was put back: {self.by} has epoch {self.number}" if number < self.number else ""


class _Numbered(msgspec.Struct, frozen=True):
    """Any record that has an epoch's number. What else it has is skipped: it can be large."""

    epoch: int = 0


def newest_epoch(keys: Keys, entries: Mapping[str, Entry]) -> NewestEpoch:
    """Of all records but that of the epoch."""
    sources = {
        keys.gateways: ("gateway", _number),
        keys.seen_epochs: ("gateway", _reported),
        keys.xds_servers: ("the xDS server of", _number),
    }
    prefixes = tuple(sources)
    copy = entries.get(keys.epoch_copy)
    found = NewestEpoch() if copy is None else NewestEpoch(_number(copy), "the copy of the record")
    for key, entry in entries.items():
        if key.startswith(prefixes):
            prefix = next(each for each in prefixes if key.startswith(each))
            who, number_of = sources[prefix]
            number = number_of(entry)
            if number > found.number:
                found = NewestEpoch(number, f"{who} {key.removeprefix(prefix)}")
    return found


def reported_epoch(value: bytes) -> tuple[str, int] | None:
    """A gateway's incarnation and the epoch that it reported; None: the value is malformed."""
    incarnation, _, epoch = value.decode("utf-8", "replace").rpartition(" ")
    is_number = epoch.isascii() and epoch.isdigit() and len(epoch) <= _MOST_DIGITS
    return (incarnation, int(epoch)) if is_number else None


def _reported(entry: Entry) -> int:
    found = None if refusal(entry.value) else reported_epoch(entry.value)
    return 0 if found is None else found[1]


def _number(entry: Entry) -> int:
    if refusal(entry.value):
        return 0
    try:
        number = msgspec.json.decode(entry.value, type=_Numbered).epoch
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return 0
    return number if number < 10**_MOST_DIGITS else 0
