"""One controller: waits to lead, and while it leads takes every rollout and every worker one step further.

What to do is decided elsewhere (``rollout``, ``following``); here it is seen, written and done. All it writes is
written on the condition that it still leads. It holds nothing that the store does not: a controller that dies is
replaced by another that reads the same records.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from isochrone.control.desired.reading import FleetReading, ReadFleet
from isochrone.control.desired.reconcile import FILE, Steps, follow, given_up, retire, superseded
from isochrone.control.evaluation.evaluator import Trying
from isochrone.control.fleet.planning.keeping import needed_pools
from isochrone.control.fleet.processes import repositories_by_worker
from isochrone.control.fleet.reading import fleet_of
from isochrone.control.leader.election import Candidate
from isochrone.control.leader.observation import loading_order, see
from isochrone.control.leader.worker_reports import changes, worker_faults
from isochrone.control.recovery.repair import mend, unreported
from isochrone.control.rollout.decision import Decision
from isochrone.control.rollout.desired_versions import spare, stages_of, wanted
from isochrone.control.rollout.local_times import LocalTimes
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import World
from isochrone.control.state.events import event, trimmed
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import (
    ABORTED,
    BY_ADDRESS,
    EpochRecord,
    EventRecord,
    Fault,
    FleetRecord,
    RolloutRecord,
    WorkerRecord,
    encode,
)
from isochrone.control.state.view import Known, View
from isochrone.control.workers.control import WorkerControl
from isochrone.control.workers.driver import WorkerWatch
from isochrone.control.workers.load_crashes import LoadCrashes
from isochrone.store.base import Compare, Delete, Put, Store, StoreUnavailable
from isochrone.store.mirror import Mirror
from isochrone.store.operations import MAX_OPERATIONS

log = structlog.get_logger()

#: Seconds between looks when nothing is heard: while a rollout is under way, and otherwise.
_BUSY, _IDLE = 0.1, 0.5
#: Rollouts that are over and kept, for people to look at.
_KEPT_ROLLOUTS = 200
#: Rollouts in one transaction: each is a record and an event, and the last one has a few records more.
_MOST_ROLLOUTS = 50


class Controller:
    """Leads when it is its turn."""

    def __init__(
        self, store: Store, keys: Keys, mirror: Mirror, name: str, read_fleet: ReadFleet, lease_seconds: float = 5.0
    ) -> None:
        self.name = name
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._candidate = Candidate(store, keys, mirror, name, lease_seconds)
        #: Records that were decoded before.
        self._known: Known = {}
        #: Records that cannot be read and were reported.
        self._reported: set[Fault] = set()
        #: Workers that gateways send nothing to, as they were reported.
        self._worker_faults: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._watches: dict[str, WorkerWatch] = {}
        self._crashes = LoadCrashes()
        self._trying = Trying(self._wake.set)
        #: When the switch under way was first seen in its phase.
        self._switch_seen: tuple[str, str, float] = ("", "", 0.0)
        self._times = LocalTimes(time.time(), time.monotonic())
        self._fleet = FleetReading(read_fleet, self._wake.set)
        #: The generation of the fleet record, and the repositories that it gives each worker.
        self._repositories: tuple[int, Mapping[str, tuple[str, ...]]] = (0, {})

    @property
    def leads(self) -> bool:
        return self._candidate.leads

    @property
    def store_error(self) -> str:
        """Why this controller can write nothing; "": it can. What it reads may still be there."""
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
                    await self._let_go()
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
                # The mirror has said so in the log, once.
                log.debug("the store does not take what the leader writes", error=str(error))
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

    async def _let_go(self) -> None:
        watches, self._watches = self._watches, {}
        await asyncio.gather(*(watch.stop() for watch in watches.values()))
        await self._trying.stop()
        await self._fleet.stop()

    # One step.

    def _view(self) -> View:
        entries = self._mirror.entries
        if len(self._known) > 2 * len(entries) + 100:
            self._known.clear()
        return View(self._keys, entries, self._known)

    async def _step(self) -> bool:
        """Everything one step further; whether anything is under way."""
        if not await self._mend(self._view()):
            return True
        await self._follow_watches(self._view())
        identities = [record.identity for record in self._view().open_rollouts]
        self._trying.keep_only(set(identities))
        self._times.keep_only(set(identities))
        for identity in identities:
            # Read anew each time: somebody may have asked for an abort while another one was written.
            view = self._view()
            record = view.rollout(identity)
            if record is None or record.is_over:
                continue
            world = self._see(view)
            local = self._times.localised(record, world.now)
            decision = advance(local, world)
            decision = replace(decision, record=self._times.restored(record, local, decision.record))
            self._trying.follow(decision, world)
            await self._carry_out(view, record, decision)
        self._want(self._view())
        await self._follow_fleet(self._view())
        await self._report_workers(self._view())
        await self._tidy(self._view())
        return bool(identities)

    async def _mend(self, view: View) -> bool:
        """Reports records that cannot be read, and mends those that would stop everything; whether one may go on."""
        leads = self._candidate.condition()
        now = time.time()
        for fault, told in unreported(view, self._reported, now):
            log.error("a record cannot be read", key=fault.key, revision=fault.revision, error=fault.reason)
            await self._store.transact((leads,), (event(self._keys, told, secrets.token_hex(4)),))
            self._reported.add(fault)
        asked = {name: each.version for name, each in self._fleet.asked.items()}
        mending = mend(view, asked, now)
        if mending is not None:
            log.warning(mending.event.what, about=mending.event.about, detail=mending.event.detail)
            told_mended = event(self._keys, mending.event, secrets.token_hex(4))
            outcome = await self._store.transact((leads, *mending.compares), (*mending.operations, told_mended))
            await self._mirror.catch_up(outcome.revision)
            view = self._view()
        return not view.is_unreadable(self._keys.epoch) and not view.is_unreadable(self._keys.switch)

    def _see(self, view: View) -> World:
        switch = view.switch
        now = self._times.now(time.monotonic())
        if switch is not None and self._switch_seen[:2] != (switch.identity, switch.phase):
            self._switch_seen = (switch.identity, switch.phase, now)
        views = {name: watch.view for name, watch in self._watches.items()}
        stages = {name: asked.stages for name, asked in self._fleet.asked.items()}
        return see(view, views, self._trying, stages, self._switch_seen[2], now, self._worker_repositories(view))

    def _worker_repositories(self, view: View) -> Mapping[str, tuple[str, ...]]:
        fleet = view.fleet
        if fleet is not None and self._repositories[0] != fleet.generation:
            found = repositories_by_worker(fleet_of(fleet.spec), Path(fleet.directory))
            self._repositories = (fleet.generation, found)
        return self._repositories[1]

    async def _carry_out(self, view: View, record: RolloutRecord, decision: Decision) -> None:
        """One transaction, on the condition that all it was decided by still stands."""
        keys = self._keys
        after = decision.record
        compares = [self._candidate.condition(), view.unchanged(keys.rollout(record.identity))]
        operations: list[Put | Delete] = []
        if after != record:
            operations.append(Put(keys.rollout(record.identity), encode(after)))
        if after.state == ABORTED != record.state:
            followed = view.converged
            converged = given_up(record, followed)
            if converged is not None:
                compares.append(view.unchanged(keys.converged))
                operations.append(Put(keys.converged, encode(converged)))
                if followed.retiring and not converged.retiring:
                    stay = f"{', '.join(followed.retiring)}: rollout {record.identity} of the same file was aborted"
                    operations.append(self._event(FILE, "retirement called off", record.identity, stay))
        if decision.commit is not None:
            # Nobody may have come, gone or switched since.
            compares += [view.unchanged(key) for key in (keys.epoch, keys.switch, keys.gateway_set)]
            operations += _epoch(keys, decision.commit)
        if decision.switch is not None:
            compares += [view.unchanged(key) for key in (keys.switch, keys.epoch) if decision.commit is None]
            operations.append(Put(keys.switch, encode(decision.switch)))
        elif decision.ends_switch:
            if decision.commit is None:
                compares.append(view.unchanged(keys.switch))
            operations.append(Delete(keys.switch))
        if decision.event:
            operations.append(self._event(record.by, f"rollout {decision.event}", record.identity, _changes(record)))
        if operations:
            # A switch's phases mean nothing after the machine's end; what it commits does.
            durable = decision.commit is not None or decision.switch is None
            outcome = await self._store.transact(compares, operations, durable=durable)
            await self._mirror.catch_up(outcome.revision)
            self._wake.set()
            if outcome.succeeded and decision.event:
                log.info("rollout", rollout=record.identity, state=after.state, what=decision.event)

    def _event(self, who: str, what: str, about: str, detail: str = "") -> Put:
        return event(self._keys, EventRecord(time.time(), who, what, about, detail), secrets.token_hex(4))

    # Workers.

    async def _follow_watches(self, view: View) -> None:
        workers = view.workers
        for name in [name for name, watch in self._watches.items() if workers.get(name) != watch.record]:
            await self._watches.pop(name).stop()
        for name, record in workers.items():
            if name not in self._watches:
                control = WorkerControl(record, term=self._candidate.term)
                self._watches[name] = WorkerWatch(
                    record, self._wake.set, lambda: self._candidate.leads, control, crashes=self._crashes
                )

    def _want(self, view: View) -> None:
        epoch = view.epoch or EpochRecord(0)
        rollouts = view.open_rollouts
        if not epoch.epoch and not rollouts:
            # Nothing was ever said: what workers have may be what somebody put there by hand.
            return
        order, stages = loading_order(epoch, rollouts), stages_of(epoch, rollouts)
        for watch in self._watches.values():
            spared = spare(watch.record, epoch, rollouts)
            watch.want(wanted(watch.record, epoch, rollouts), order, spared, stages)

    # The fleet record.

    async def _follow_fleet(self, view: View) -> None:
        fleet = view.fleet
        if fleet is None or not self._fleet.follow(fleet):
            return
        await self._register_servers(view, fleet)
        if view.is_unreadable(self._keys.converged):
            return
        converged, epoch = view.converged, view.epoch or EpochRecord(0)
        number = view.rollout_number
        if converged.generation < fleet.generation:
            late = superseded(self._fleet.asked, view.open_rollouts, fleet.generation)
            if late:
                await self._abort_superseded(view, late)
                return
        if converged.generation >= fleet.generation:
            steps = retire(converged, epoch, view.open_rollouts, time.time())
        else:
            steps = follow(
                fleet.generation, self._fleet.asked, converged, epoch, view.open_rollouts, number + 1, time.time()
            )
        if steps is not None and (steps.epoch is None or view.switch is None):
            await self._write(view, steps, number)

    async def _abort_superseded(self, view: View, rollouts: Sequence[RolloutRecord]) -> None:
        for record in rollouts[:_MOST_ROLLOUTS]:
            key = self._keys.rollout(record.identity)
            compares = (self._candidate.condition(), view.unchanged(key), view.unchanged(self._keys.fleet))
            announced = self._event(FILE, "rollout abort asked", record.identity, record.abort_asked)
            outcome = await self._store.transact(compares, (Put(key, encode(record)), announced))
            await self._mirror.catch_up(outcome.revision)
        self._wake.set()

    async def _write(self, view: View, steps: Steps, number: int) -> None:
        """The rollouts, in as many transactions as the store needs; what is followed and the epoch in the last one.

        A leader that dies in between leaves rollouts that the next one finds, and does not start again.
        """
        keys = self._keys
        batches = [steps.rollouts[at : at + _MOST_ROLLOUTS] for at in range(0, len(steps.rollouts), _MOST_ROLLOUTS)]
        for batch in batches[:-1]:
            number += len(batch)
            if not await self._write_followed(view, self._rollouts(batch, number)):
                return
            view = self._view()
        operations: list[Put | Delete] = [Put(keys.converged, encode(steps.converged))]
        if batches:
            operations += self._rollouts(batches[-1], number + len(batches[-1]))
        if steps.epoch is not None:
            operations += _epoch(keys, steps.epoch)
        # As many as there is room for: an event is worth less than the change that it reports.
        told = steps.events[: MAX_OPERATIONS - len(operations)]
        operations += [self._event(one.who, one.what, one.about, one.detail) for one in told]
        await self._write_followed(view, operations)

    def _rollouts(self, batch: Sequence[RolloutRecord], number: int) -> list[Put | Delete]:
        operations: list[Put | Delete] = [Put(self._keys.rollout_number, str(number).encode())]
        for rollout in batch:
            operations.append(Put(self._keys.rollout(rollout.identity), encode(rollout)))
            operations.append(self._event(FILE, "rollout asked for", rollout.identity, _changes(rollout)))
        return operations

    async def _write_followed(self, view: View, operations: Sequence[Put | Delete]) -> bool:
        """On the condition that nothing of what was followed has changed."""
        keys = self._keys
        compares = [self._candidate.condition()]
        compares += [view.unchanged(key) for key in (keys.fleet, keys.converged, keys.epoch, keys.rollout_number)]
        compares.append(view.unchanged(keys.switch))
        outcome = await self._store.transact(compares, operations)
        await self._mirror.catch_up(outcome.revision)
        self._wake.set()
        return outcome.succeeded

    async def _register_servers(self, view: View, fleet: FleetRecord) -> None:
        """Servers that run already and register nowhere: the leader does it for them. Without a lease: that no leader
        is heard of says nothing of them, and gateways see for themselves whether they are well."""
        wanted_servers = {record.name: record for record in self._kept_servers(view, fleet)}
        wanted_servers |= {record.name: record for record in self._fleet.servers}
        present = {name: record for name, record in view.workers.items() if record.incarnation == BY_ADDRESS}
        operations: list[Put | Delete] = [
            Put(self._keys.worker(name), encode(record))
            for name, record in wanted_servers.items()
            if present.get(name) != record
        ]
        operations += [Delete(self._keys.worker(name)) for name in present if name not in wanted_servers]
        for at in range(0, len(operations), MAX_OPERATIONS):
            batch = operations[at : at + MAX_OPERATIONS]
            outcome = await self._store.transact((self._candidate.condition(),), batch)
            await self._mirror.catch_up(outcome.revision)

    def _kept_servers(self, view: View, fleet: FleetRecord) -> Iterator[WorkerRecord]:
        """Servers of pools that the file no longer has, while they serve what is committed."""
        if any(pool.servers for pool in fleet.kept.values()):
            for pool in needed_pools(fleet, fleet_of(fleet.spec), view.epoch, view.converged, view.open_rollouts):
                yield from fleet.kept[pool].servers

    async def _report_workers(self, view: View) -> None:
        faults = worker_faults(view)
        events = changes(self._worker_faults, faults, view, time.time())
        if events:
            puts = [event(self._keys, each, secrets.token_hex(4)) for each in events[:100]]
            await self._store.transact((self._candidate.condition(),), puts, durable=False)
        self._worker_faults = faults

    async def _tidy(self, view: View) -> None:
        operations: list[Put | Delete] = list(trimmed(self._keys, view.entries))
        over = [record for record in view.rollouts if record.is_over]
        operations += [Delete(self._keys.rollout(record.identity)) for record in over[:-_KEPT_ROLLOUTS][:10]]
        switch = view.switch
        current = self._keys.acknowledgement(switch.identity, "") if switch is not None else "none"
        words = [key for key in view.entries if key.startswith(self._keys.acknowledgements)]
        operations += [Delete(key) for key in words if not key.startswith(current)][: 100 - len(operations)]
        known = set(view.known_gateways)
        operations += [
            Delete(key)
            for key in view.entries
            if key.startswith(self._keys.seen_epochs) and key.removeprefix(self._keys.seen_epochs) not in known
        ]
        compares: list[Compare] = [self._candidate.condition()]
        epoch, copy = view.epoch, view.read(self._keys.epoch_copy, EpochRecord)
        if epoch is not None and epoch != copy:
            compares.append(view.unchanged(self._keys.epoch))
            operations.insert(0, Put(self._keys.epoch_copy, encode(epoch)))
        if epoch is not None:
            operations += [Delete(key) for key in view.entries if key.startswith(self._keys.served_epochs)]
        if operations:
            await self._store.transact(compares, operations[:100], durable=False)


def _epoch(keys: Keys, record: EpochRecord) -> tuple[Put, Put]:
    """The commit, and its copy."""
    value = encode(record)
    return Put(keys.epoch, value), Put(keys.epoch_copy, value)


def _changes(record: RolloutRecord) -> str:
    return ", ".join(f"{name} {change.before or 'none'} → {change.version}" for name, change in record.changes.items())
