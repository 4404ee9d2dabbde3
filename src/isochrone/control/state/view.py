"""The records of a fleet at one moment, decoded on access.

A view is made over a mirror's entries for reading, and over a fresh listing of the store for deciding what to write. It
never writes. A record that cannot be read is left out and listed by ``faults``: one bad record must never stop
anything. A decision that depends on a single record (the epoch, the switch) calls ``require`` first, since an
unreadable record is not an absent one. A record that was refused by its seal is one that cannot be read; where its
presence alone would mean something (a drain, a known gateway), it means nothing. An epoch that is older than one that
was served (``newest_epoch``) cannot be read either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from isochrone.control.state.codec import Unreadable, decode
from isochrone.control.state.keys import Keys
from isochrone.control.state.newest_epoch import NewestEpoch, newest_epoch, reported_epoch
from isochrone.control.state.process_records import (
    GatewayRecord,
    ProcessRecord,
    RestartsRecord,
    WorkerRecord,
    XdsServerRecord,
)
from isochrone.control.state.records import (
    AccessFaultRecord,
    AccessRecord,
    Assignment,
    EpochRecord,
    EventRecord,
    Fault,
    FiguresRecord,
    FleetRecord,
    LoadFailuresRecord,
    PlacementRecord,
    PoolSizeRecord,
    ReconciledRecord,
    SignersRecord,
    SloTotalsRecord,
    WaitingRecord,
)
from isochrone.control.state.rollout_records import AcknowledgementRecord, RolloutRecord, SwitchRecord
from isochrone.store.base import Compare, Entry
from isochrone.store.seals import refusal

#: The advice for an epoch whose copy cannot be read either.
RESTORE = "restore it with 'isochrone restore-epoch'"

_Record = TypeVar("_Record", bound=msgspec.Struct)
#: By key: the revision of an entry and its record, or why it cannot be read. A caller that makes many views passes them
#: the same dictionary, so that each record is decoded once.
Known = dict[str, tuple[int, msgspec.Struct | str]]


class View:
    """The records of one fleet."""

    def __init__(
        self, keys: Keys, entries: Mapping[str, Entry], known: Known | None = None, *, is_lasting: bool = False
    ) -> None:
        """``is_lasting``: it is kept while its entries change, and shows the records of each moment."""
        self.keys = keys
        self.entries = entries
        self._known = known if known is not None else {}
        self._is_lasting = is_lasting
        self._newest_epoch: NewestEpoch | None = None

    def read(self, key: str, kind: type[_Record]) -> _Record | None:
        """None: the record is absent or cannot be read."""
        entry = self.entries.get(key)
        found = None if entry is None else self._decode(entry, kind)
        if isinstance(found, EpochRecord) and self.newest_epoch.why_put_back(found.epoch):
            return None
        return None if isinstance(found, str) else found

    def _decode(self, entry: Entry, kind: type[_Record]) -> _Record | str:
        """The record, or why it cannot be read."""
        known = self._known.get(entry.key)
        if known is not None and known[0] == entry.revision and isinstance(known[1], (kind, str)):
            return known[1]
        found: _Record | str
        try:
            found = decode(entry.value, kind)
        except Unreadable as error:
            found = error.message
        self._known[entry.key] = (entry.revision, found)
        return found

    def under(self, prefix: str, kind: type[_Record]) -> dict[str, _Record]:
        """By the rest of the key, sorted; without those that cannot be read."""
        found = sorted(key for key in self.entries if key.startswith(prefix))
        decoded = {key[len(prefix) :]: self._decode(self.entries[key], kind) for key in found}
        return {name: record for name, record in decoded.items() if not isinstance(record, str)}

    def faults(self) -> list[Fault]:
        """Every record that cannot be read, by key."""
        found = []
        for key in sorted(self.entries):
            entry = self.entries[key]
            reason = self._fault(entry)
            if reason:
                hint = f"; {RESTORE}" if key == self.keys.epoch and self.is_epoch_lost else ""
                found.append(Fault(key, entry.revision, reason + hint))
        return found

    def _fault(self, entry: Entry) -> str:
        if reason := refusal(entry.value):
            return reason
        kind = self._kind(entry.key)
        if kind is not None:
            found = self._decode(entry, kind)
            if isinstance(found, EpochRecord) and entry.key in (self.keys.epoch, self.keys.epoch_copy):
                return self.newest_epoch.why_put_back(found.epoch)
            return found if isinstance(found, str) else ""
        if entry.key == self.keys.rollout_number and not entry.value.isdigit():
            return f"expected a number, given {entry.value[:40]!r}"
        if entry.key.startswith(self.keys.known_gateways) and not entry.value.isascii():
            return f"expected an incarnation, given {entry.value[:40]!r}"
        if entry.key.startswith(self.keys.seen_epochs) and reported_epoch(entry.value) is None:
            return f"expected an incarnation and the number of an epoch, given {entry.value[:40]!r}"
        return ""

    @property
    def newest_epoch(self) -> NewestEpoch:
        """The newest that anybody has served."""
        if self._newest_epoch is None or self._is_lasting:
            self._newest_epoch = newest_epoch(self.keys, self.entries)
        return self._newest_epoch

    @property
    def newest_put_back(self) -> EpochRecord | None:
        """The newer of the record and its copy, if both were put back; the other one may be absent or damaged."""
        entries = (self.entries.get(key) for key in (self.keys.epoch, self.keys.epoch_copy))
        decoded = (self._decode(entry, EpochRecord) for entry in entries if entry is not None)
        found = [each for each in decoded if isinstance(each, EpochRecord)]
        newest = max(found, key=lambda each: each.epoch, default=None)
        return newest if newest is not None and self.newest_epoch.why_put_back(newest.epoch) else None

    def _kind(self, key: str) -> type[msgspec.Struct] | None:
        keys = self.keys
        singles: dict[str, type[msgspec.Struct]] = {
            keys.fleet: FleetRecord,
            keys.epoch: EpochRecord,
            keys.epoch_copy: EpochRecord,
            keys.switch: SwitchRecord,
            keys.reconciled: ReconciledRecord,
            keys.access: AccessRecord,
            keys.access_fault: AccessFaultRecord,
            keys.restarts: RestartsRecord,
            keys.load_failures: LoadFailuresRecord,
            keys.signers: SignersRecord,
            keys.figures: FiguresRecord,
        }
        if key in singles:
            return singles[key]
        groups: dict[str, type[msgspec.Struct]] = {
            keys.events: EventRecord,
            keys.workers: WorkerRecord,
            keys.gateways: GatewayRecord,
            keys.rollouts: RolloutRecord,
            keys.drains: EventRecord,
            keys.standbys: EventRecord,
            keys.pool_sizes: PoolSizeRecord,
            keys.waiting: WaitingRecord,
            keys.placements: PlacementRecord,
            keys.slo_totals: SloTotalsRecord,
            keys.processes: ProcessRecord,
            keys.served_epochs: EpochRecord,
            keys.acknowledgements: AcknowledgementRecord,
            keys.xds_servers: XdsServerRecord,
        }
        return next((kind for prefix, kind in groups.items() if key.startswith(prefix)), None)

    def is_unreadable(self, key: str) -> bool:
        """Whether the record is present and cannot be read."""
        entry = self.entries.get(key)
        return entry is not None and bool(self._fault(entry))

    def holds(self, key: str) -> bool:
        """Whether a record is present whose presence alone counts, readable or not. A refused one does not count."""
        entry = self.entries.get(key)
        return entry is not None and not refusal(entry.value)

    def unsealed(self) -> list[Entry]:
        """Entries without a seal of the fleet's present key that were accepted all the same, by key."""
        found = [entry for entry in self.entries.values() if not entry.is_sealed and not refusal(entry.value)]
        return sorted(found, key=lambda entry: entry.key)

    def require(self, *keys: str) -> None:
        """Raise ``Unreadable`` if one of the records is present and cannot be read."""
        for key in keys:
            if self.is_unreadable(key):
                way = RESTORE if key == self.keys.epoch and self.is_epoch_lost else "see isochrone status"
                raise Unreadable(f"the record {key} cannot be read; {way}")

    @property
    def is_epoch_lost(self) -> bool:
        """Whether there is an epoch, and neither its record nor the copy can be read."""
        return self.is_unreadable(self.keys.epoch) and self.read(self.keys.epoch_copy, EpochRecord) is None

    def unchanged(self, key: str) -> Compare:
        """The condition that a record has not changed since this view."""
        entry = self.entries.get(key)
        return Compare(key, 0 if entry is None else entry.revision)

    @property
    def fleet(self) -> FleetRecord | None:
        return self.read(self.keys.fleet, FleetRecord)

    @property
    def generation(self) -> int:
        """Of the fleet record; if that cannot be read, of the one reconciled last. 0: none."""
        fleet, reconciled = self.fleet, self.read(self.keys.reconciled, ReconciledRecord)
        if fleet is not None:
            return fleet.generation
        return reconciled.generation if reconciled is not None and self.keys.fleet in self.entries else 0

    @property
    def epoch(self) -> EpochRecord | None:
        return self.read(self.keys.epoch, EpochRecord)

    @property
    def assignments(self) -> Mapping[str, Assignment]:
        epoch = self.epoch
        return epoch.models if epoch is not None else {}

    @property
    def reconciled(self) -> ReconciledRecord:
        """How far the leader has reconciled the fleet record."""
        return self.read(self.keys.reconciled, ReconciledRecord) or ReconciledRecord(0)

    @property
    def access(self) -> AccessRecord | None:
        """The access rules of the fleet."""
        return self.read(self.keys.access, AccessRecord)

    @property
    def access_fault(self) -> AccessFaultRecord | None:
        """Why the access file is not followed; None: it is, or there is none."""
        return self.read(self.keys.access_fault, AccessFaultRecord)

    @property
    def restarts(self) -> RestartsRecord | None:
        """The restarts that are not over; None: no supervisor runs the processes, or one of an earlier release."""
        return self.read(self.keys.restarts, RestartsRecord)

    @property
    def load_failures(self) -> Mapping[str, Mapping[str, str]]:
        """By worker, by model: the versions that it cannot load, and why."""
        record = self.read(self.keys.load_failures, LoadFailuresRecord)
        return record.workers if record is not None else {}

    @property
    def signers(self) -> Mapping[str, Mapping[str, str]]:
        """By model, by version: who signed it, when, and from what."""
        record = self.read(self.keys.signers, SignersRecord)
        return record.models if record is not None else {}

    @property
    def switch(self) -> SwitchRecord | None:
        return self.read(self.keys.switch, SwitchRecord)

    @property
    def leader(self) -> str:
        entry = self.entries.get(self.keys.leader)
        return entry.value.decode("utf-8", "replace") if entry is not None and not refusal(entry.value) else ""

    @property
    def workers(self) -> dict[str, WorkerRecord]:
        return self.under(self.keys.workers, WorkerRecord)

    @property
    def gateways(self) -> dict[str, GatewayRecord]:
        return self.under(self.keys.gateways, GatewayRecord)

    @property
    def xds_servers(self) -> dict[str, XdsServerRecord]:
        """By controller."""
        return self.under(self.keys.xds_servers, XdsServerRecord)

    @property
    def served_epochs(self) -> dict[str, EpochRecord]:
        """By gateway: the epoch that it offers while the record cannot be read."""
        return self.under(self.keys.served_epochs, EpochRecord)

    @property
    def epochs_seen(self) -> dict[str, tuple[str, int]]:
        """By gateway, registered or not: the incarnation that last reported an epoch, and that epoch."""
        found = {}
        for key, entry in self.entries.items():
            if key.startswith(self.keys.seen_epochs) and not refusal(entry.value):
                found[key.removeprefix(self.keys.seen_epochs)] = reported_epoch(entry.value) or ("", 0)
        return found

    @property
    def known_gateways(self) -> list[str]:
        """Gateways that may be serving, registered or not."""
        return list(self.known_incarnations)

    @property
    def known_incarnations(self) -> dict[str, str]:
        """By known gateway, sorted: its incarnation."""
        prefix, gateways = self.keys.known_gateways, self.gateways
        found = sorted((key[len(prefix) :], entry) for key, entry in self.entries.items() if key.startswith(prefix))
        return {
            name: entry.value.decode("utf-8", "replace")
            for name, entry in found
            # Nothing waits for a gateway that only a refused record names; one that is registered still counts.
            if name in gateways or not refusal(entry.value)
        }

    @property
    def drains(self) -> dict[str, EventRecord]:
        """By the name of the drained process: the event of the drain."""
        return self.under(self.keys.drains, EventRecord)

    @property
    def standbys(self) -> dict[str, EventRecord]:
        """By the name of a worker that stands by: the event of that."""
        return self.under(self.keys.standbys, EventRecord)

    @property
    def pool_sizes(self) -> dict[str, PoolSizeRecord]:
        """By pool: the size that the autoscaler gave it."""
        return self.under(self.keys.pool_sizes, PoolSizeRecord)

    @property
    def waiting_models(self) -> dict[str, int]:
        """By model: requests that wait in gateways for a worker, as far as gateways have said so."""
        found: dict[str, int] = {}
        for record in self.under(self.keys.waiting, WaitingRecord).values():
            for model, count in record.models.items():
                found[model] = found.get(model, 0) + count
        return found

    @property
    def placements(self) -> dict[str, PlacementRecord]:
        """By planned pool: the workers that have each model."""
        return self.under(self.keys.placements, PlacementRecord)

    @property
    def figures(self) -> FiguresRecord | None:
        """What is measured of models and workers; None: nothing."""
        return self.read(self.keys.figures, FiguresRecord)

    @property
    def slo_totals(self) -> dict[str, SloTotalsRecord]:
        """By model: its requests of the last day that met its SLO, and the others."""
        return self.under(self.keys.slo_totals, SloTotalsRecord)

    @property
    def processes(self) -> dict[str, ProcessRecord]:
        """By name: processes that died and do not serve yet."""
        return self.under(self.keys.processes, ProcessRecord)

    @property
    def rollouts(self) -> list[RolloutRecord]:
        """The newest last."""
        records = self.under(self.keys.rollouts, RolloutRecord).values()
        return sorted(records, key=lambda record: (len(record.identity), record.identity))

    @property
    def rollout_number(self) -> int:
        """Of the newest rollout; taken from the rollouts' names if the counter cannot be read."""
        counter = self.entries.get(self.keys.rollout_number)
        if counter is None or counter.value.isdigit():
            return int(counter.value) if counter is not None else 0
        prefix = self.keys.rollouts + "r"
        numbers = (
            key[len(prefix) :]
            for key, entry in self.entries.items()
            if key.startswith(prefix) and not refusal(entry.value)
        )
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def rollout(self, identity: str) -> RolloutRecord | None:
        return self.read(self.keys.rollout(identity), RolloutRecord)

    @property
    def open_rollouts(self) -> list[RolloutRecord]:
        return [record for record in self.rollouts if not record.is_over]

    def events(self, after: int = 0) -> Iterator[tuple[int, EventRecord]]:
        """(revision, event) of the events written after a revision, in the order of writing.

        By revision, not by time: the clocks of two controllers differ, and a reader must not miss an event.
        """
        found = [
            entry for key, entry in self.entries.items() if entry.revision > after and key.startswith(self.keys.events)
        ]
        for entry in sorted(found, key=lambda each: (each.revision, each.key)):
            record = self._decode(entry, EventRecord)
            if not isinstance(record, str):
                yield entry.revision, record


class Views:
    """Makes many views of the same records, one after the other: a record that has not changed is decoded once."""

    def __init__(self, keys: Keys, entries: Callable[[], Mapping[str, Entry]]) -> None:
        self._keys = keys
        self._entries = entries
        self._known: Known = {}

    def view(self) -> View:
        """The records as they stand now."""
        entries = self._entries()
        if len(self._known) > 2 * len(entries) + 100:
            self._known.clear()
        return View(self._keys, entries, self._known)
