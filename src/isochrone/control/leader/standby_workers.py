"""Keeps the records of standby workers as ``workers.standbys`` decides: gateways read them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.reading.present_fleet import at_present
from isochrone.control.fleet.settings.process_names import worker_names
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.rollout.observed_state import ObservedWorker
from isochrone.control.state.assignment import Placements, is_assigned
from isochrone.control.state.codec import encode
from isochrone.control.state.records import Assignment, EventRecord
from isochrone.control.state.view import View
from isochrone.control.workers.standbys import standbys
from isochrone.store.base import Delete, Put
from isochrone.store.operations import MAX_OPERATIONS

_WHO = "controller"


class StandbyWorkers:
    """Of one fleet."""

    def __init__(self, records: LeaderRecords) -> None:
        self._records = records
        self._keys = records.keys
        #: The fleet record's generation, and the fleet that was read from it, with the sizes of the file.
        self._fleet: tuple[int, Fleet | None] = (0, None)

    async def reconcile(self, view: View, observed: Mapping[str, ObservedWorker]) -> None:
        """Write the records of workers that change places, each with its event."""
        fleet = self._read_fleet(view)
        if fleet is None:
            return
        desired = desired_standbys(fleet, view, observed)
        present = view.standbys
        operations: list[Put | Delete] = []
        for name in sorted(desired - present.keys()):
            event = EventRecord(time.time(), _WHO, "worker stands by", name)
            operations += [Put(self._keys.standby(name), encode(event)), self._records.event_of(event)]
        for name in sorted(present.keys() - desired):
            operations.append(Delete(self._keys.standby(name)))
            if name in view.workers:
                operations.append(self._records.event(_WHO, "standby worker serves", name))
        for at in range(0, len(operations), MAX_OPERATIONS):
            compares = (view.unchanged(self._keys.fleet),)
            await self._records.write(compares, operations[at : at + MAX_OPERATIONS], durable=False)

    def _read_fleet(self, view: View) -> Fleet | None:
        record = view.fleet
        if record is None:
            return None
        if self._fleet[0] != record.generation:
            self._fleet = record.generation, fleet_of(record.spec)
        # The autoscaler gives pools other sizes without a new generation.
        fleet = self._fleet[1]
        return at_present(fleet, record.engine, view) if fleet is not None else None


def desired_standbys(fleet: Fleet, view: View, observed: Mapping[str, ObservedWorker]) -> set[str]:
    """The workers of all pools that should stand by."""
    standing_by, drained = view.standbys, view.drains
    placements, committed = view.placements, view.assignments
    found: set[str] = set()
    for pool, spec in fleet.pools.items():
        if not spec.warm:
            continue
        registered = {name for name, record in view.workers.items() if record.pool == pool}
        if not spec.workers:
            # All are about to stop, and none is put in place before.
            found |= registered & standing_by.keys()
            continue
        names = _all_names(worker_names(fleet, pool), registered)
        # A drained one gets no requests either way, and stands by again when it is back.
        found |= {name for name in names if name in drained and name in standing_by}
        names = [name for name in names if name not in drained]
        # More than the file asks for: an autoscaler of the cluster has added some, or some are about to stop.
        serving = max(spec.workers, sum(name in registered for name in names) - spec.warm)
        ready = {
            name
            for name in registered
            # One that serves and has not reported to this leader yet goes on serving.
            if _is_ready(observed.get(name), committed, placements, unknown=name not in standing_by)
        }
        found |= standbys(names, serving, standing_by, registered, ready)
    return found


def _all_names(planned: Sequence[str], registered: Collection[str]) -> list[str]:
    return [*planned, *sorted(set(registered) - set(planned))]


def _is_ready(
    worker: ObservedWorker | None, committed: Mapping[str, Assignment], placements: Placements, *, unknown: bool
) -> bool:
    """Whether it has loaded every committed version that it has to have; ``unknown``: if it has not reported yet."""
    if worker is None or worker.models is None:
        return unknown
    return all(
        each.version in worker.ready(model)
        for model, each in committed.items()
        if is_assigned(worker.record, model, each.pools, placements)
    )
