"""Applies the records of the store to a gateway: its rules, its workers and the committed epoch.

A record that cannot be read is reported and changes nothing. A worker whose record vanishes is kept for a while if it
still answers, since only the store may have lost it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import msgspec
import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.agents.commitments import commitments
from isochrone.control.agents.discovery import discover
from isochrone.control.agents.epoch_reading import EpochReader
from isochrone.control.agents.link_rules import LinkRules
from isochrone.control.recovery.offers import offer
from isochrone.control.state.codec import Unreadable, decode
from isochrone.control.state.keys import Keys
from isochrone.control.state.newest_epoch import NewestEpoch, newest_epoch
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import EpochRecord
from isochrone.errors import IsochroneError
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.prepared_epoch import PreparedEpoch
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.housekeeping import Steps
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import EITHER, OUTSIDE, PLAIN, TLS, Upstream
from isochrone.store.base import Compare, Entry, Put
from isochrone.store.mirror import Mirror
from isochrone.store.seals import refusal

log = structlog.get_logger(__name__)

#: Workers' records read in one turn of the loop: some 10 µs each.
_WORKERS_PER_TURN = 32
#: Names the control plane among the sources of a gateway's workers.
SOURCE = "control plane"


class Write(Protocol):
    """Writes to the store, and retries until it is reachable."""

    def __call__(self, operation: Put, *compares: Compare) -> Coroutine[None, None, None]: ...


class RecordFaults:
    """The records that a gateway cannot read."""

    def __init__(self) -> None:
        #: By key: why.
        self.reasons: dict[str, str] = {}

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Keep the reason if the record cannot be read; what was applied before stays in effect."""
        try:
            yield
        except (IsochroneError, msgspec.MsgspecError, ValueError) as error:
            reason = str(error)
            if self.reasons.get(key) != reason:
                log.error("a record cannot be read; the gateway keeps its last state", key=key, error=reason)
            self.reasons[key] = reason
        else:
            self.reasons.pop(key, None)

    def forget_absent(self, entries: Mapping[str, Entry]) -> None:
        self.reasons = {key: reason for key, reason in self.reasons.items() if key in entries}


class GatewayRecords:
    """The records as one gateway has applied them. ``read_rules``: the gateway rules in a fleet record."""

    def __init__(
        self,
        mirror: Mirror,
        keys: Keys,
        gateway: Gateway,
        name: str,
        read_rules: Callable[[bytes], GatewayRules],
        rules: LinkRules,
        tasks: BackgroundTasks,
        write: Write,
    ) -> None:
        self._mirror = mirror
        self._keys = keys
        self._gateway = gateway
        self._name = name
        self._read_rules = read_rules
        self._rules = rules
        self._tasks = tasks
        self._write = write
        self.faults = RecordFaults()
        #: Revisions that have been applied: no record is applied twice.
        self._epoch_revision = self._fleet_revision = 0
        self._upstreams: tuple[Upstream, ...] = ()
        self._workers: dict[str, WorkerRecord] = {}
        self._worker_revisions: dict[str, int] = {}
        #: Names that get no new requests.
        self._drained: set[str] = set()
        #: Names that get no requests for now, and are watched all the same: they may serve within milliseconds.
        self._standbys: set[str] = set()
        #: Keys of the gateways that are registered.
        self._gateways: set[str] = set()
        #: By key: the record of a worker that vanished, and until when it is kept.
        self._vanished: dict[str, tuple[WorkerRecord, float]] = {}
        #: Epochs in the order of the store, and the place of the one that is served: discovery takes a while, and an
        #: earlier epoch must not replace a later one. Of a store that lost its end, two can have the same number.
        self._epochs_received = self._epoch_served = 0
        self._served: EpochRecord | None = None
        #: The last one that was read, and its commitments.
        self._received: tuple[EpochRecord, Mapping[str, Commitment]] | None = None
        self._reader = EpochReader()
        #: Revision and number of the epoch that was read last, followed or not.
        self._last_read = (0, 0)
        #: What the last look for a reason to offer an epoch depended on.
        self._offer_looked_at: tuple[int, ...] = ()

    @property
    def is_epoch_readable(self) -> bool:
        return self._keys.epoch not in self.faults.reasons

    def apply(self, changed: Collection[str] | None = None) -> Steps[None]:
        """Apply what changed, in steps. Called after changes of the mirror, which holds whole revisions only; one call
        ends before the next one begins.

        ``changed``: the keys that may differ from what is applied; None: any.
        """
        entries, keys = self._mirror.entries, self._keys
        # As of now: the mirror may change between two steps.
        fleet, epoch = entries.get(keys.fleet), entries.get(keys.epoch)
        is_new = epoch is not None and epoch.revision != self._epoch_revision
        newest = newest_epoch(keys, entries) if is_new else NewestEpoch()
        with self.faults.reading(keys.fleet):
            self._apply_rules(fleet)
        yield from self._apply_workers(changed)
        with self.faults.reading(keys.epoch):
            yield from self._apply_epoch(epoch, newest)
        if not self.is_epoch_readable:
            self._offer()

    def _apply_rules(self, entry: Entry | None) -> None:
        if entry is None or entry.revision == self._fleet_revision:
            return
        self._gateway.fleet.configure(self._read_rules(entry.value))
        self._fleet_revision = entry.revision

    # Workers.

    def _apply_workers(self, changed: Collection[str] | None) -> Steps[None]:
        keys, entries = self._keys, self._mirror.entries
        is_whole = changed is None
        if changed is None:
            prefixes = (keys.workers, keys.drains, keys.standbys)
            changed = [key for key in {**entries, **self._workers} if key.startswith(prefixes)]
            changed += self._gateways.union(key for key in entries if key.startswith(keys.gateways))
        workers = [key for key in changed if key.startswith(keys.workers)]
        drains = [key for key in changed if key.startswith(keys.drains)]
        standbys = [key for key in changed if key.startswith(keys.standbys)]
        self._count_gateways(key for key in changed if key.startswith(keys.gateways))
        if self.faults.reasons:
            self.faults.forget_absent(entries)
        moved = False
        for number, key in enumerate(workers, 1):
            moved = self._apply_worker(key, entries.get(key)) or moved
            if not number % _WORKERS_PER_TURN:
                yield
        if drains or is_whole:
            self._drained = _names_under(keys.drains, entries)
            self._gateway.draining = self._name in self._drained
        if standbys or is_whole:
            self._standbys = _names_under(keys.standbys, entries)
        if drains or is_whole or moved:
            self._set_upstreams()
        if workers or standbys or is_whole:
            self._set_standbys()

    def _count_gateways(self, changed: Iterable[str]) -> None:
        """Quotas are divided among the gateways that are registered."""
        entries = self._mirror.entries
        for key in changed:
            entry = entries.get(key)
            if entry is None:
                self._gateways.discard(key)
            elif not refusal(entry.value):
                self._gateways.add(key)
            # A refused record adds no gateway, and removes none whose record it replaced.
        self._gateway.fleet.count_gateways(len(self._gateways))

    def _apply_worker(self, key: str, entry: Entry | None) -> bool:
        """Take one worker's record; whether requests go elsewhere for it."""
        before = self._workers.get(key)
        if entry is None:
            if before is not None:
                self._vanished[key] = (before, time.monotonic() + self._rules.linger)
                del self._workers[key]
            return False  # it is kept for a while
        if self._worker_revisions.get(key) == entry.revision:
            return False
        self._worker_revisions[key] = entry.revision
        read: list[WorkerRecord] = []
        with self.faults.reading(key):
            read.append(decode(entry.value, WorkerRecord))
        # A worker whose record cannot be read is there: the last readable one stands.
        record = read[0] if read else before
        if record is None:
            return False
        vanished = self._vanished.pop(key, None)
        self._workers[key] = record
        known = before if before is not None else vanished[0] if vanished is not None else None
        return known is None or _upstream(known) != _upstream(record) or known.name != record.name

    @property
    def has_vanished(self) -> bool:
        """Whether workers are used whose records are gone."""
        return bool(self._vanished)

    def drop_vanished(self) -> None:
        """Stop using workers whose records have been gone for too long."""
        now = time.monotonic()
        overdue = [key for key, (_, until) in self._vanished.items() if now >= until]
        # While the store is unreachable, an absent record means nothing.
        if overdue and self._mirror.connected:
            for key in overdue:
                del self._vanished[key]
                self._worker_revisions.pop(key, None)
            self._set_upstreams()

    def _set_upstreams(self) -> None:
        found: dict[str, Upstream] = {}
        records = [self._workers[key] for key in sorted(self._workers)]
        for record in (*records, *(record for record, _ in self._vanished.values())):
            if record.name not in self._drained:
                upstream = _upstream(record)
                found.setdefault(upstream.address, upstream)
        upstreams = tuple(found.values())
        if upstreams != self._upstreams:
            self._upstreams = upstreams
            self._gateway.set_upstreams(SOURCE, upstreams)

    def _set_standbys(self) -> None:
        records = (*self._workers.values(), *(record for record, _ in self._vanished.values()))
        self._gateway.fleet.set_standbys({each.address for each in records if each.name in self._standbys})

    # The epoch.

    def _apply_epoch(self, entry: Entry | None, newest: NewestEpoch) -> Steps[None]:
        """``newest``: that anybody has served, as of the moment of the entry."""
        if entry is None or entry.revision == self._epoch_revision:
            return
        # Always in a turn of the loop of its own: with a thousand models it takes some 0.4 ms.
        yield
        if entry.revision == self._last_read[0]:
            # An epoch that was put back is not read again with every change of the store.
            self._check_not_put_back(self._last_read[1], newest)
        record = yield from self._reader.read(entry.value)
        self._last_read = entry.revision, record.epoch
        self._check_not_put_back(record.epoch, newest)
        self._epoch_revision = entry.revision
        if self._received is not None and record == self._received[0]:
            return  # it was written again as it was, with a seal
        self._epochs_received += 1
        yield
        committed = yield from commitments(record, self._received)
        self._received = record, committed
        place, fleet = self._epochs_received, self._gateway.fleet
        if fleet.holding:
            # Discovery was done before the switch was acknowledged; now requests wait.
            yield
            prepared = yield from fleet.prepare(committed)
            self._commit(record, prepared, place)
        else:
            self._tasks.start(self._discover_and_commit(record, committed, place))

    def _check_not_put_back(self, number: int, newest: NewestEpoch) -> None:
        """Raise ``Unreadable`` for an earlier epoch than one that was served, or is about to be: that one stays."""
        received = self._received[0].epoch if self._received is not None else 0
        own = max(self._gateway.fleet.epoch, received)
        reason = f"epoch {number} was put back: this gateway has epoch {own}" if number < own else ""
        if reason := reason or newest.why_put_back(number):
            raise Unreadable(reason)

    async def _discover_and_commit(self, record: EpochRecord, committed: Mapping[str, Commitment], place: int) -> None:
        gateway = self._gateway
        await discover(gateway, {name: model.version for name, model in record.models.items()}, self._rules)
        prepared = await gateway.housekeeping.do(gateway.fleet.prepare(committed))
        self._commit(record, prepared, place)

    def _commit(self, record: EpochRecord, prepared: PreparedEpoch, place: int) -> None:
        if place <= self._epoch_served:
            return
        before, self._served = self._served, record
        self._epoch_served = place
        if record.epoch == self._gateway.fleet.epoch:
            log.error("the store lost an epoch; another one has its number", epoch=record.epoch)
        self._gateway.fleet.commit(record.epoch, prepared.committed, prepared)
        versions = _changed_versions(prepared.changed, record, before)
        log.info("epoch", epoch=record.epoch, models=len(record.models), versions=versions)
        if not self.is_epoch_readable:
            # The record was damaged during discovery.
            self._offer()

    def _offer(self) -> None:
        """Offer the epoch that is served here while the record cannot be read, so that it can be restored."""
        entries, keys = self._mirror.entries, self._keys
        served = self._served.epoch if self._served is not None else 0
        records = (entries.get(key) for key in (keys.epoch, keys.epoch_copy, keys.served_epoch(self._name)))
        revisions = [entry.revision if entry is not None else 0 for entry in records]
        looked_at = (*revisions, newest_epoch(keys, entries).number, served)
        if looked_at == self._offer_looked_at:
            return
        self._offer_looked_at = looked_at
        offered = offer(self._keys, self._mirror.entries, self._name, self._served)
        if offered is not None:
            compare, put = offered
            self._tasks.start(self._write(put, compare))


def _names_under(prefix: str, entries: Mapping[str, Entry]) -> set[str]:
    """Of records whose presence counts, whatever they hold, unless their seal refuses them."""
    return {
        key.removeprefix(prefix)
        for key, entry in entries.items()
        if key.startswith(prefix) and not refusal(entry.value)
    }


def _upstream(record: WorkerRecord) -> Upstream:
    return Upstream(
        record.host,
        record.port,
        record.grpc_port,
        0 if record.kind == "isochrone" else record.metrics_port,
        record.tier,
        record.device,
        record.region,
        is_of_fleet=record.is_of_fleet,
        tls=_tls(record),
    )


def _tls(record: WorkerRecord) -> str:
    if record.kind != "isochrone":
        return OUTSIDE
    if not record.tls:
        return PLAIN
    return EITHER if record.permissive else TLS


def _changed_versions(changed: Iterable[str], record: EpochRecord, before: EpochRecord | None) -> dict[str, str]:
    """Of each model that another version is served of than before. ``changed``: all models that may be among them."""
    known = before.models if before is not None else {}
    return {
        name: record.models[name].version
        for name in changed
        if name in record.models and (name not in known or known[name].version != record.models[name].version)
    }
