"""One controller: waits to lead and, while it leads, takes every rollout and every worker one step further.

The decisions are made elsewhere (``rollout``, ``desired``); this module observes, writes and acts. It holds nothing
that the store does not: a controller that dies is replaced by another one that reads the same records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from isochrone.control.desired.reading import ReadFleet
from isochrone.control.evaluation.evaluator import Evaluator
from isochrone.control.figures.history import History
from isochrone.control.fleet.derived.locations import repositories_by_worker
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.leader.access_publishing import AccessPublishing
from isochrone.control.leader.autoscaling import Autoscaling
from isochrone.control.leader.election import Candidate
from isochrone.control.leader.fleet_reconciler import FleetReconciler
from isochrone.control.leader.housekeeping import Housekeeping
from isochrone.control.leader.measuring import Measuring
from isochrone.control.leader.model_placement import ModelPlacement
from isochrone.control.leader.observation import loading_order, observe
from isochrone.control.leader.readings import FleetReadings
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.leader.rollout_writes import rollout_writes
from isochrone.control.leader.slo_totals import SloTotals
from isochrone.control.leader.standby_workers import StandbyWorkers
from isochrone.control.rollout.decision import Decision
from isochrone.control.rollout.desired_versions import spare, stages_of
from isochrone.control.rollout.local_times import LocalTimes
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.memory import loadable_versions
from isochrone.control.rollout.observed_state import ObservedState
from isochrone.control.scaling.reading.fleet_reading import FleetReader
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import NO_FIELDS
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.control.state.view import View
from isochrone.control.workers.control import WorkerControl
from isochrone.control.workers.driver import WorkerDriver
from isochrone.control.workers.load_crashes import LoadCrashes
from isochrone.store.base import Store, StoreUnavailable
from isochrone.store.mirror import Mirror

log = structlog.get_logger(__name__)

#: Seconds between steps if nothing changes: while a rollout is in progress, and otherwise.
_BUSY, _IDLE = 0.1, 0.5


class Controller:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        mirror: Mirror,
        name: str,
        read_fleet: ReadFleet,
        lease_seconds: float = 5.0,
        history: History | None = None,
        access_file: Path | None = None,
        own_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        """``history``: this controller's figures of the fleet; without one, no totals for budgets are recorded.
        ``access_file``: the rules of the fleet are read from it. ``own_fields``: headers that prove to workers and
        gateways that a controller calls."""
        self.name = name
        self._mirror = mirror
        self._candidate = Candidate(store, keys, mirror, name, lease_seconds)
        self._records = LeaderRecords(store, keys, mirror, self._candidate)
        self._wake = asyncio.Event()
        self._fleet = FleetReconciler(self._records, read_fleet, self._wake.set)
        self._access = AccessPublishing(self._records, access_file, name)
        self._own_fields = own_fields
        self._housekeeping = Housekeeping(self._records)
        self._standbys = StandbyWorkers(self._records)
        self._autoscaling = Autoscaling(self._records, self._wake.set)
        self._placement = ModelPlacement(self._records)
        self._measuring = Measuring(self._records, self._wake.set)
        self._readings = FleetReadings(
            self._records, (self._autoscaling, self._measuring), lambda: FleetReader(own_fields=own_fields)
        )
        self._slo_totals = SloTotals(self._records, history) if history is not None else None
        self._drivers: dict[str, WorkerDriver] = {}
        self._crashes = LoadCrashes()
        self._evaluator = Evaluator(self._wake.set, own_fields)
        #: When the switch in progress was first seen in its phase.
        self._switch_seen: tuple[str, str, float] = ("", "", 0.0)
        self._times = LocalTimes(time.time(), time.monotonic())
        #: The generation of the fleet record, and the repositories that it gives each worker.
        self._repositories: tuple[int, Mapping[str, tuple[str, ...]]] = (0, {})

    @property
    def leads(self) -> bool:
        return self._candidate.leads

    @property
    def store_error(self) -> str:
        """Why this controller can write nothing; "": it can. Reading may still work."""
        return self._candidate.error

    async def run(self) -> None:
        """Until cancelled. The mirror must have been started."""
        self._mirror.on_change.append(self._wake.set)
        try:
            while True:
                await self._candidate.campaign()
                try:
                    await self._lead()
                finally:
                    await self._stop_leading()
                log.warning("leads no more", controller=self.name)
        finally:
            self._mirror.on_change.remove(self._wake.set)
            await self._candidate.resign()

    async def _lead(self) -> None:
        while self._candidate.leads:
            self._wake.clear()
            busy = False
            try:
                busy = await self._step()
            except StoreUnavailable as error:
                # The mirror has logged it, once.
                log.debug("the store does not accept the leader's writes", error=str(error))
                await asyncio.sleep(0.2)
            except Exception as error:
                # One record that makes no sense must not end the control of all others.
                log.error("the leader failed unexpectedly", exc_info=error)
                await asyncio.sleep(1.0)
            try:
                # Not wait_for: before Python 3.12 it may lose a cancellation that comes with the event.
                async with asyncio.timeout(_BUSY if busy else _IDLE):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _stop_leading(self) -> None:
        drivers, self._drivers = self._drivers, {}
        await asyncio.gather(*(driver.stop() for driver in drivers.values()))
        await self._evaluator.stop()
        await self._fleet.stop()
        await self._readings.stop()
        self._autoscaling.stop()
        self._measuring.stop()
        if self._slo_totals is not None:
            self._slo_totals.stop()

    async def _step(self) -> bool:
        """Take everything one step further; return whether anything is in progress."""
        await self._access.reconcile(self._records.view())
        view, desired = self._records.view(), self._fleet.desired
        if not await self._housekeeping.repair(view, {name: each.version for name, each in desired.items()}):
            return True
        await self._reconcile_drivers(self._records.view())
        # Before rollouts, which may be many: a standby worker serves within milliseconds, and a request that waits for
        # an empty pool wakes it as fast.
        views = {name: driver.observed for name, driver in self._drivers.items()}
        await self._autoscaling.reconcile(self._records.view(), views)
        await self._measuring.reconcile(self._records.view())
        self._readings.start()
        await self._standbys.reconcile(self._records.view(), views)
        # Before rollouts, too: those of new models wait for the workers that are to have them.
        is_moving = await self._placement.reconcile(self._records.view(), views)
        identities = [record.identity for record in self._records.view().open_rollouts]
        self._evaluator.keep_only(set(identities))
        self._times.keep_only(set(identities))
        for identity in identities:
            # Read again each time: a user may have asked for an abort while another one was written.
            view = self._records.view()
            record = view.rollout(identity)
            if record is None or record.is_over:
                continue
            observed = self._observe(view)
            local = self._times.localised(record, observed.now)
            decision = advance(local, observed)
            decision = replace(decision, record=self._times.restored(record, local, decision.record))
            self._evaluator.update(decision, observed)
            await self._write(view, record, decision)
        self._set_desired(self._records.view())
        await self._fleet.reconcile(self._records.view())
        await self._housekeeping.seal(self._records.view())
        await self._housekeeping.report_workers(self._records.view())
        failures = {name: driver.observed.failures for name, driver in self._drivers.items()}
        await self._housekeeping.report_loads(self._records.view(), failures)
        workers = [driver.observed for driver in self._drivers.values()]
        await self._housekeeping.report_signers(self._records.view(), workers)
        await self._housekeeping.tidy(self._records.view())
        if self._slo_totals is not None:
            await self._slo_totals.reconcile(self._records.view())
        return bool(identities) or is_moving

    async def _write(self, view: View, record: RolloutRecord, decision: Decision) -> None:
        compares, operations = rollout_writes(view, record, decision, self._records.event)
        if not operations:
            return
        # The phases of a switch mean nothing after the machine's end; what it commits does.
        durable = decision.commit is not None or decision.switch is None
        succeeded = await self._records.write(compares, operations, durable=durable)
        self._wake.set()
        if succeeded and decision.event:
            log.info("rollout", rollout=record.identity, state=decision.record.state, what=decision.event)

    def _observe(self, view: View) -> ObservedState:
        switch = view.switch
        now = self._times.now(time.monotonic())
        if switch is not None and self._switch_seen[:2] != (switch.identity, switch.phase):
            self._switch_seen = (switch.identity, switch.phase, now)
        views = {name: driver.observed for name, driver in self._drivers.items()}
        stages = {name: desired.stages for name, desired in self._fleet.desired.items()}
        return observe(
            view,
            views,
            self._evaluator,
            stages,
            self._switch_seen[2],
            now,
            self._worker_repositories(view),
            self._placement.placements(view),
        )

    def _worker_repositories(self, view: View) -> Mapping[str, tuple[str, ...]]:
        fleet = view.fleet
        if fleet is not None and self._repositories[0] != fleet.generation:
            found = repositories_by_worker(fleet_of(fleet.spec), Path(fleet.directory))
            self._repositories = (fleet.generation, found)
        return self._repositories[1]

    # Workers.

    async def _reconcile_drivers(self, view: View) -> None:
        """One driver for each registered process of a worker."""
        workers = view.workers
        for name in [name for name, driver in self._drivers.items() if workers.get(name) != driver.record]:
            await self._drivers.pop(name).stop()
        for name, record in workers.items():
            if name not in self._drivers:
                control = WorkerControl(record, term=self._candidate.term, own_fields=self._own_fields)
                self._drivers[name] = WorkerDriver(
                    record, self._wake.set, lambda: self._candidate.leads, control, crashes=self._crashes
                )

    def _set_desired(self, view: View) -> None:
        epoch = view.epoch or EpochRecord(0)
        rollouts = view.open_rollouts
        if not epoch.epoch and not rollouts:
            # Nothing was ever committed or asked for: what workers have may have been loaded by hand.
            return
        order, stages = loading_order(epoch, rollouts), stages_of(epoch, rollouts)
        placements = self._placement.placements(view)
        for driver in self._drivers.values():
            if self._placement.is_undecided(view, driver.record):
                continue
            spared = spare(driver.record, epoch, rollouts, placements)
            versions = loadable_versions(driver.observed, epoch, rollouts, placements)
            driver.set_desired(versions, order, spared, stages)
