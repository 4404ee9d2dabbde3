"""The records of a fleet as they stand at one moment, decoded when they are asked for.

Made over a mirror's entries for reading, and over a fresh listing of the store for deciding what to write. Never
writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from isochrone.control.keys import Keys
from isochrone.control.records import (
    Assignment,
    ConvergedRecord,
    EpochRecord,
    EventRecord,
    FleetRecord,
    GatewayRecord,
    RolloutRecord,
    SwitchRecord,
    WorkerRecord,
    decode,
)
from isochrone.store.base import Compare, Entry

_Record = TypeVar("_Record", bound=msgspec.Struct)
#: By key: the revision of an entry and its record. Whoever makes views again and again lends them one of these, and
#: each record is decoded once; records are never changed.
Known = dict[str, tuple[int, msgspec.Struct]]


class View:
    """What the store holds of one fleet."""

    def __init__(self, keys: Keys, entries: Mapping[str, Entry], known: Known | None = None) -> None:
        self.keys = keys
        self.entries = entries
        self._known = known if known is not None else {}

    def read(self, key: str, kind: type[_Record]) -> _Record | None:
        entry = self.entries.get(key)
        return None if entry is None else self._decode(entry, kind)

    def _decode(self, entry: Entry, kind: type[_Record]) -> _Record:
        known = self._known.get(entry.key)
        if known is not None and known[0] == entry.revision and isinstance(known[1], kind):
            return known[1]
        record = decode(entry.value, kind)
        self._known[entry.key] = (entry.revision, record)
        return record

    def under(self, prefix: str, kind: type[_Record]) -> dict[str, _Record]:
        """By the rest of the key, in its order."""
        found = sorted(key for key in self.entries if key.startswith(prefix))
        return {key[len(prefix) :]: self._decode(self.entries[key], kind) for key in found}

    def unchanged(self, key: str) -> Compare:
        """The condition that a record is still as it is seen here."""
        entry = self.entries.get(key)
        return Compare(key, 0 if entry is None else entry.revision)

    @property
    def fleet(self) -> FleetRecord | None:
        return self.read(self.keys.fleet, FleetRecord)

    @property
    def epoch(self) -> EpochRecord | None:
        return self.read(self.keys.epoch, EpochRecord)

    @property
    def assignments(self) -> Mapping[str, Assignment]:
        epoch = self.epoch
        return epoch.models if epoch is not None else {}

    @property
    def converged(self) -> ConvergedRecord:
        """How far the leader has followed the fleet record."""
        return self.read(self.keys.converged, ConvergedRecord) or ConvergedRecord(0)

    @property
    def switch(self) -> SwitchRecord | None:
        return self.read(self.keys.switch, SwitchRecord)

    @property
    def leader(self) -> str:
        entry = self.entries.get(self.keys.leader)
        return entry.value.decode("utf-8", "replace") if entry is not None else ""

    @property
    def workers(self) -> dict[str, WorkerRecord]:
        return self.under(self.keys.workers, WorkerRecord)

    @property
    def gateways(self) -> dict[str, GatewayRecord]:
        return self.under(self.keys.gateways, GatewayRecord)

    @property
    def known_gateways(self) -> list[str]:
        prefix = self.keys.known_gateways
        return sorted(key[len(prefix) :] for key in self.entries if key.startswith(prefix))

    @property
    def drains(self) -> dict[str, EventRecord]:
        """By the name of what is drained: who asked for it, and when."""
        return self.under(self.keys.drains, EventRecord)

    @property
    def rollouts(self) -> list[RolloutRecord]:
        """The newest last."""
        records = self.under(self.keys.rollouts, RolloutRecord).values()
        return sorted(records, key=lambda record: (len(record.identity), record.identity))

    def rollout(self, identity: str) -> RolloutRecord | None:
        return self.read(self.keys.rollout(identity), RolloutRecord)

    @property
    def open_rollouts(self) -> list[RolloutRecord]:
        return [record for record in self.rollouts if not record.is_over]

    def events(self, after: int = 0) -> Iterator[tuple[int, EventRecord]]:
        """(revision, event) of those written after a revision, in the order they were written.

        By revision, not by time: clocks of two controllers differ, and a follower must miss none.
        """
        found = [
            entry for key, entry in self.entries.items() if entry.revision > after and key.startswith(self.keys.events)
        ]
        for entry in sorted(found, key=lambda each: (each.revision, each.key)):
            yield entry.revision, decode(entry.value, EventRecord)
