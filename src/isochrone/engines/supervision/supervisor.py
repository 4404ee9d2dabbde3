"""Reconciles the processes of a fleet with the fleet record: observes (``observer``), decides (``reconcile``), acts.

A thin shell around decisions made elsewhere. Only a fleet record makes it stop a process: while the store is
unavailable, everything keeps running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EpochRecord, FleetRecord
from isochrone.control.state.view import View
from isochrone.engines.base import Engine, Exit
from isochrone.engines.supervision.death_events import DeathEvents
from isochrone.engines.supervision.desired import FleetRecordReader, awaited_models, desired_processes
from isochrone.engines.supervision.membership import Membership, is_own
from isochrone.engines.supervision.observer import Observer
from isochrone.engines.supervision.pending_restarts import PendingRestarts
from isochrone.engines.supervision.process_records import ProcessRecords
from isochrone.engines.supervision.progress import Progress, Waiting
from isochrone.engines.supervision.reconcile import (
    Drain,
    Observed,
    Replace,
    Start,
    Stop,
    Undrain,
    decide,
    stopping_order,
)
from isochrone.store.base import Store, StoreUnavailable
from isochrone.store.mirror import Mirror
from isochrone.store.retrying import until_available

log = structlog.get_logger(__name__)

#: Seconds for a process to end after SIGTERM. It must include the process's own grace for requests in flight, 30 s.
GRACE = 35.0
#: Seconds between two turns while a process starts or drains.
_SOON = 0.1
#: While only the models are not served yet, which may take minutes.
_SERVING = 0.25
#: While everything is as desired: every change wakes the supervisor.
_LATER = 5.0
#: Seconds to write the last events when everything has stopped.
_LAST_WORDS = 2.0


class Supervisor:
    """``notify`` gets every line for people; ``desired`` makes the processes of a fleet record.

    ``before``: names of the processes that ran here last, of the fleet record before this one. ``last_lines``: the end
    of a process's log. ``outlived``: the processes go on when the supervisor ends.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        keys: Keys,
        notify: Callable[[str], None],
        on_exit: Callable[[Exit], None] = lambda ended: None,
        desired: Callable[[FleetRecord, View, Mapping[str, int]], Mapping[str, ProcessSpec]] = desired_processes,
        before: Collection[str] = (),
        last_lines: Callable[[str], Sequence[str]] = lambda name: (),
        *,
        outlived: bool = False,
    ) -> None:
        self._engine = engine
        self._outlived = outlived
        self._keys = keys
        self._notify = notify
        self._on_exit = on_exit
        self._before = frozenset(before)
        self.mirror = Mirror(store, keys.prefix)
        self.view = View(keys, self.mirror.entries, is_lasting=True)
        self._fleet_record = FleetRecordReader(engine.name, self.mirror.entries, self.view, desired, notify)
        self._observer = Observer(engine, self.view, self._awaited)
        self._membership = Membership(store, keys)
        self._deaths = DeathEvents(store, keys)
        self._records = ProcessRecords(store, keys, last_lines)
        self._restarts = PendingRestarts(store, keys)
        self._waiting = Waiting(monotonic())
        self._wake = asyncio.Event()
        self._tasks = BackgroundTasks()
        self._desired: Mapping[str, ProcessSpec] = {}
        self._drained_since: dict[str, float] = {}
        #: Lost processes that the engine is replacing: a machine that does not answer may take it a minute.
        self._replacing: set[str] = set()
        self.observed: dict[str, Observed] = {}
        #: Set once, as soon as every desired process is ready and every gateway serves the committed models, except
        #: those of pools that are empty until a request comes.
        self.up = asyncio.Event()

    async def run(self, stopping: asyncio.Event, hurry: asyncio.Event) -> None:
        """Run until ``stopping`` is set; then stop everything in order, unless it goes on. ``hurry``: without grace."""
        await self.mirror.start()
        try:
            progress = Progress(self.view)
            self._engine.on_exit(self._ended)
            await self._engine.open()
            await self._clear_up()
            self.mirror.on_change.append(self._wake.set)
            while not stopping.is_set():
                self._wake.clear()
                try:
                    await self._reconcile(progress)
                except Exception as error:
                    # The processes are not affected; if the supervisor ended, they all would.
                    log.error("the supervisor failed unexpectedly; all processes keep running", exc_info=error)
                    await asyncio.sleep(1.0)
                await self._rest(stopping)
            if not self._outlived:
                await self._stop_all(hurry)
        finally:
            await self._tasks.end()
            await self._engine.close()
            await self.mirror.stop()

    def give_way(self) -> None:
        """Another supervisor runs the fleet. It adopts the processes if it can; if not, they end with this one."""
        self._outlived = self._outlived or self._engine.adoptable

    def restarts_of(self, name: str) -> int:
        """How often a process has been restarted."""
        running = self._engine.running().get(name)
        return running.restarts if running is not None else 0

    async def _rest(self, stopping: asyncio.Event) -> None:
        settled = all(
            each.serves and each.steady and self._desired.get(name) == each.spec for name, each in self.observed.items()
        )
        if not settled or self.observed.keys() != self._desired.keys():
            pause = _SOON
        else:
            pause = _LATER if self.up.is_set() else _SERVING
        waiting = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(stopping.wait())]
        await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()

    async def _clear_up(self) -> None:
        """Remove the records that an earlier supervisor left, except those of processes that still run.

        Gateways of other names may run elsewhere; their records stay.
        """
        self._desired = self._fleet_record.read()
        for entry in self.mirror.under(self._keys.drains):
            if is_own(entry):
                self._tasks.start(self._undrain(entry.key.removeprefix(self._keys.drains)))
        self._membership.notice(self.view)
        registered = self.view.gateways
        for name in self.view.known_gateways:
            pid = registered[name].pid if name in registered else 0
            # A gateway that still runs is stopping, and deregisters itself.
            if (name in self._desired or name in self._before) and not self._engine.may_run(name, pid):
                self._tasks.start(self._membership.forget_gateway(name, pid))

    # One turn.

    async def _reconcile(self, progress: Progress) -> None:
        self._desired = self._fleet_record.read()
        self._membership.notice(self.view)
        self.observed = await self._observer.observe(self._drained_since)
        serving = {name for name, each in self.observed.items() if each.ready}
        self._records.settle(self._desired, serving, {name: each.waits for name, each in self.observed.items()})
        await self._records.write(self.view)
        await self._restarts.write(self.view, self._fleet_record.generation, self._desired, self.observed)
        for line in progress.lines(self.view, self.observed):
            self._notify(line)
        if not self.up.is_set():
            if await self._is_up():
                self.up.set()
            elif line := self._waiting.line(self.view, self._desired, self.observed, self._records.dead, monotonic()):
                self._notify(line)
        for action in decide(self._desired, self.observed, monotonic()):
            match action:
                case Start(spec):
                    await self._start(spec)
                case Drain(name):
                    await self._drain(name)
                case Undrain(name):
                    self._drained_since.pop(name, None)
                    self._tasks.start(self._undrain(name))
                case Stop(name):
                    self._tasks.start(self._stop(name))
                case Replace(name):
                    if name not in self._replacing:
                        self._replacing.add(name)
                        self._tasks.start(self._replace(name))

    async def _is_up(self) -> bool:
        epoch = self.view.epoch
        if epoch is None or not all(name in self.observed and self.observed[name].ready for name in self._desired):
            return False
        gateways, models = self.view.gateways.values(), self._awaited(epoch)
        ready = await asyncio.gather(*(self._observer.gateway_serves(each, models) for each in gateways))
        return all(ready) and bool(self._desired)

    def _awaited(self, epoch: EpochRecord) -> list[str]:
        record = self.view.fleet
        return awaited_models(record, self._desired, epoch.models) if record is not None else list(epoch.models)

    # Actions.

    async def _start(self, spec: ProcessSpec) -> None:
        self._drained_since.pop(spec.name, None)
        try:
            await self._engine.start(spec)
        except OSError as error:
            self._notify(f"{spec.role} {spec.name} could not be started: {error}")

    async def _drain(self, name: str) -> None:
        try:
            await self._membership.drain(name)
        except StoreUnavailable:
            return  # the next turn decides again
        self._drained_since[name] = monotonic()

    async def _undrain(self, name: str) -> None:
        await until_available(lambda: self._membership.undrain((name,)))

    async def _stop(self, name: str) -> None:
        await self._engine.stop(name, GRACE)
        self._wake.set()

    async def _replace(self, name: str) -> None:
        try:
            await self._engine.replace(name)
        except Exception as error:
            log.error("a lost process could not be replaced; the next turn tries again", process=name, exc_info=error)
        finally:
            self._replacing.discard(name)
        self._wake.set()

    def _ended(self, ended: Exit) -> None:
        name = ended.spec.name
        if ended.again_in is not None:
            self._records.died(ended)
        if ended.again_in is not None and name not in self.view.known_gateways:
            self._tasks.start(self._deaths.report(ended))
        if ended.spec.role == "gateway" and ended.pid:
            # This also writes the event for a known gateway.
            self._tasks.start(self._membership.forget_gateway(name, ended.pid))
        self._observer.forget(name)
        if self._drained_since.pop(name, None) is not None:
            # The next process of that name should get work.
            self._tasks.start(self._undrain(name))
        self._on_exit(ended)
        self._wake.set()

    async def _stop_all(self, hurry: asyncio.Event) -> None:
        """Gateways first, while the workers behind them still answer; controllers last."""
        for kind in stopping_order(each.spec for each in self._engine.running().values()):
            names = [spec.name for spec in kind]
            self._notify(f"stopping {', '.join(names)}")
            ends = asyncio.gather(*(self._engine.stop(name, GRACE) for name in names))
            forced = asyncio.ensure_future(hurry.wait())
            await asyncio.wait((ends, forced), return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
            if not ends.done():
                await asyncio.gather(*(self._engine.stop(name, 0.0) for name in names))
            await ends
            if left := [name for name in names if name in self._engine.running()]:
                self._notify(f"could not stop {', '.join(left)}")
        await self._tasks.wait(_LAST_WORDS)
