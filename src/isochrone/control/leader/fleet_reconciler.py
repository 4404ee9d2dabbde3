"""Reconciles the models and the outside servers with the applied fleet record: starts, aborts and retires.

``desired.reconcile`` decides; this module reads the applied fleet in the background and writes what was decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from isochrone.control.desired.reading import AppliedFleet, ReadFleet
from isochrone.control.desired.reconcile import FILE, DesiredModel, Reconciliation, reconcile, retire, superseded
from isochrone.control.fleet.planning.keeping import needed_pools
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.leader.rollout_writes import epoch_writes
from isochrone.control.state.codec import encode
from isochrone.control.state.process_records import BY_ADDRESS, WorkerRecord
from isochrone.control.state.records import EpochRecord, FleetRecord
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Put
from isochrone.store.operations import MAX_OPERATIONS

#: Rollouts in one transaction: each is a record and an event, and the last transaction has a few records more.
_MOST_ROLLOUTS = 50


class FleetReconciler:
    """``changed`` is called when there is more to do."""

    def __init__(self, records: LeaderRecords, read_fleet: ReadFleet, changed: Callable[[], None]) -> None:
        self._records = records
        self._keys = records.keys
        self._changed = changed
        self._fleet = AppliedFleet(read_fleet, changed)

    @property
    def desired(self) -> Mapping[str, DesiredModel]:
        """By model: what the fleet that was read last asks for."""
        return self._fleet.desired

    async def stop(self) -> None:
        await self._fleet.stop()

    async def reconcile(self, view: View) -> None:
        fleet = view.fleet
        if fleet is None or not self._fleet.is_read(fleet):
            return
        await self._register_servers(view, fleet)
        if view.is_unreadable(self._keys.reconciled):
            return
        reconciled, epoch = view.reconciled, view.epoch or EpochRecord(0)
        number = view.rollout_number
        if reconciled.generation < fleet.generation:
            late = superseded(self.desired, view.open_rollouts, fleet.generation)
            if late:
                await self._abort_superseded(view, late)
                return
        if reconciled.generation >= fleet.generation:
            steps = retire(reconciled, epoch, view.open_rollouts, time.time())
        else:
            steps = reconcile(
                fleet.generation, self.desired, reconciled, epoch, view.open_rollouts, number + 1, time.time()
            )
        if steps is not None and (steps.epoch is None or view.switch is None):
            await self._write(view, steps, number)

    async def _abort_superseded(self, view: View, rollouts: Sequence[RolloutRecord]) -> None:
        for record in rollouts[:_MOST_ROLLOUTS]:
            key = self._keys.rollout(record.identity)
            announced = self._records.event(FILE, "rollout abort asked", record.identity, record.abort_asked)
            compares = (view.unchanged(key), view.unchanged(self._keys.fleet))
            await self._records.write(compares, (Put(key, encode(record)), announced))
        self._changed()

    async def _write(self, view: View, steps: Reconciliation, number: int) -> None:
        """The rollouts, in as many transactions as the store needs; the epoch and the progress in the last one.

        A leader that dies in between leaves rollouts that the next leader finds and does not start again.
        """
        keys = self._keys
        batches = [steps.rollouts[at : at + _MOST_ROLLOUTS] for at in range(0, len(steps.rollouts), _MOST_ROLLOUTS)]
        for batch in batches[:-1]:
            number += len(batch)
            if not await self._write_if_unchanged(view, self._rollouts(batch, number)):
                return
            view = self._records.view()
        operations: list[Put | Delete] = [Put(keys.reconciled, encode(steps.reconciled))]
        if batches:
            operations += self._rollouts(batches[-1], number + len(batches[-1]))
        if steps.epoch is not None:
            operations += epoch_writes(keys, steps.epoch)
        # As many events as there is room for: an event is worth less than the change that it reports.
        events = steps.events[: MAX_OPERATIONS - len(operations)]
        operations += [self._records.event(each.who, each.what, each.about, each.detail) for each in events]
        await self._write_if_unchanged(view, operations)

    def _rollouts(self, batch: Sequence[RolloutRecord], number: int) -> list[Put | Delete]:
        operations: list[Put | Delete] = [Put(self._keys.rollout_number, str(number).encode())]
        for rollout in batch:
            operations.append(Put(self._keys.rollout(rollout.identity), encode(rollout)))
            operations.append(self._records.event(FILE, "rollout asked for", rollout.identity, rollout.summary))
        return operations

    async def _write_if_unchanged(self, view: View, operations: Sequence[Put | Delete]) -> bool:
        """Conditional on everything that the reconciliation was decided by."""
        keys = self._keys
        decided_by = (keys.fleet, keys.reconciled, keys.epoch, keys.rollout_number, keys.switch)
        succeeded = await self._records.write([view.unchanged(key) for key in decided_by], operations)
        self._changed()
        return succeeded

    # Servers that run already.

    async def _register_servers(self, view: View, fleet: FleetRecord) -> None:
        """Outside servers register nowhere, so the leader does it for them. Without a lease: the absence of a leader
        says nothing about them, and gateways check their health themselves."""
        desired = {record.name: record for record in self._kept_servers(view, fleet)}
        desired |= {record.name: record for record in self._fleet.servers}
        present = {name: record for name, record in view.workers.items() if record.incarnation == BY_ADDRESS}
        operations: list[Put | Delete] = [
            Put(self._keys.worker(name), encode(record))
            for name, record in desired.items()
            if present.get(name) != record
        ]
        operations += [Delete(self._keys.worker(name)) for name in present if name not in desired]
        for at in range(0, len(operations), MAX_OPERATIONS):
            await self._records.write((), operations[at : at + MAX_OPERATIONS])

    def _kept_servers(self, view: View, fleet: FleetRecord) -> Iterator[WorkerRecord]:
        """Servers of pools that the file no longer has, while they serve what is committed."""
        if any(pool.servers for pool in fleet.kept.values()):
            for pool in needed_pools(fleet, fleet_of(fleet.spec), view.epoch, view.reconciled, view.open_rollouts):
                yield from fleet.kept[pool].servers
