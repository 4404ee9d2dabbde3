"""The leader's upkeep of the records: reports and repairs unreadable ones, seals those without a seal, reports workers,
deletes old records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import structlog

from isochrone.control.leader.records import LeaderRecords
from isochrone.control.leader.worker_reports import changes, load_failures, signers, worker_faults
from isochrone.control.recovery.repair import find_repair, unreported
from isochrone.control.rollout.observed_state import Failure, ObservedWorker
from isochrone.control.state.codec import encode
from isochrone.control.state.events import trimmed
from isochrone.control.state.records import EpochRecord, Fault, LoadFailuresRecord, SignersRecord
from isochrone.control.state.view import View
from isochrone.store.base import Compare, Delete, Put

log = structlog.get_logger(__name__)

#: Finished rollouts that are kept for users to look at.
_KEPT_ROLLOUTS = 200
#: Operations in one transaction, and records that are sealed in one.
_AT_ONCE, _SEALED_AT_ONCE = 100, 60


class Housekeeping:
    def __init__(self, records: LeaderRecords) -> None:
        self._records = records
        self._keys = records.keys
        #: Unreadable records that were reported.
        self._reported: set[Fault] = set()
        #: By worker that gets no requests: the reasons that were reported.
        self._reasons: dict[str, list[str]] = {}

    async def repair(self, view: View, desired: Mapping[str, str]) -> bool:
        """Report unreadable records and repair those that would stop the leader; return whether it may go on.
        ``desired``: the versions that the applied file asks for."""
        now = time.time()
        for fault, report in unreported(view, self._reported, now):
            log.error("a record cannot be read", key=fault.key, revision=fault.revision, error=fault.reason)
            await self._records.write((), (self._records.event_of(report),))
            self._reported.add(fault)
        repair = find_repair(view, desired, now)
        if repair is not None:
            log.warning(repair.event.what, about=repair.event.about, detail=repair.event.detail)
            report_repair = self._records.event_of(repair.event)
            await self._records.write(repair.compares, (*repair.operations, report_repair))
            view = self._records.view()
        return not view.is_unreadable(self._keys.epoch) and not view.is_unreadable(self._keys.switch)

    async def seal(self, view: View) -> None:
        """Write some of the records again that have no seal of the fleet's present key, as they are. Records with a
        lease are left to the processes that keep them."""
        if not self._records.seals:
            return
        found = [entry for entry in view.unsealed() if not entry.lease][:_SEALED_AT_ONCE]
        if found:
            puts = [Put(entry.key, entry.value) for entry in found]
            await self._records.write([view.unchanged(entry.key) for entry in found], puts)

    async def report_workers(self, view: View) -> None:
        """Write an event for each worker that stopped or started to get requests, or gets none for another reason."""
        events, reasons = changes(self._reasons, worker_faults(view), view, time.time())
        if events:
            await self._records.write_transient((), [self._records.event_of(each) for each in events[:_AT_ONCE]])
        self._reasons = reasons

    async def report_loads(self, view: View, failures: Mapping[str, Mapping[str, Failure]]) -> None:
        """Keep the record of what workers cannot load current: status shows it. ``failures``: by worker, by model."""
        found = load_failures(failures)
        if found != view.load_failures or view.is_unreadable(self._keys.load_failures):
            put = Put(self._keys.load_failures, encode(LoadFailuresRecord(found)))
            await self._records.write_transient((), [put if found else Delete(self._keys.load_failures)])

    async def report_signers(self, view: View, workers: Iterable[ObservedWorker]) -> None:
        """Keep the record of who signed what is served current: status shows it."""
        found = signers(workers)
        if found is not None and (found != view.signers or view.is_unreadable(self._keys.signers)):
            put = Put(self._keys.signers, encode(SignersRecord(found)))
            await self._records.write_transient((), [put if found else Delete(self._keys.signers)])

    async def tidy(self, view: View) -> None:
        """Delete records that are no longer needed, and keep the copy of the epoch current."""
        keys = self._keys
        operations: list[Put | Delete] = list(trimmed(keys, view.entries))
        over = [record for record in view.rollouts if record.is_over]
        operations += [Delete(keys.rollout(record.identity)) for record in over[:-_KEPT_ROLLOUTS][:10]]
        switch = view.switch
        current = keys.acknowledgement(switch.identity, "") if switch is not None else "none"
        acknowledgements = [key for key in view.entries if key.startswith(keys.acknowledgements)]
        room = _AT_ONCE - len(operations)
        operations += [Delete(key) for key in acknowledgements if not key.startswith(current)][:room]
        known = set(view.known_gateways)
        operations += [
            Delete(key)
            for key in view.entries
            if key.startswith(keys.seen_epochs) and key.removeprefix(keys.seen_epochs) not in known
        ]
        compares: list[Compare] = []
        epoch, copy = view.epoch, view.read(keys.epoch_copy, EpochRecord)
        if epoch is not None and epoch != copy:
            compares.append(view.unchanged(keys.epoch))
            operations.insert(0, Put(keys.epoch_copy, encode(epoch)))
        if epoch is not None:
            operations += [Delete(key) for key in view.entries if key.startswith(keys.served_epochs)]
        if operations:
            await self._records.write_transient(compares, operations[:_AT_ONCE])
