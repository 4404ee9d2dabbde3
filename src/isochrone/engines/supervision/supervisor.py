"""Reconciles the processes of a fleet with the fleet record: observes, decides (``reconcile``), acts.

A thin shell around decisions made elsewhere. Only a fleet record makes it stop a process: while the store is
unavailable, everything keeps running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.fleet.engine_processes import processes_on
from isochrone.control.fleet.planning.keeping import kept_processes, needed_pools
from isochrone.control.fleet.processes import ProcessSpec
from isochrone.control.fleet.reading import fleet_of
from isochrone.control.rollout.committed import assigned, has_committed
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EpochRecord, FleetRecord, decode
from isochrone.control.state.view import View
from isochrone.engines.base import Engine, Exit, Running
from isochrone.engines.supervision import probes
from isochrone.engines.supervision.death_events import DeathEvents
from isochrone.engines.supervision.membership import Membership, is_own
from isochrone.engines.supervision.observation import is_heard_of, observe
from isochrone.engines.supervision.ports import reached_at
from isochrone.engines.supervision.process_records import ProcessRecords
from isochrone.engines.supervision.progress import Progress, Waiting
from isochrone.engines.supervision.reconcile import (
    STEADY_SECONDS,
    Drain,
    Observed,
    Replace,
    Start,
    Stop,
    Undrain,
    decide,
    stopping_order,
)
from isochrone.engines.supervision.signs import SignsOfLife
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


def desired_processes(record: FleetRecord, view: View | None = None) -> dict[str, ProcessSpec]:
    """The processes of a fleet record; with a view, also those of dropped pools that still serve."""
    fleet = fleet_of(record.spec)
    found = processes_on(record.engine, fleet, Path(record.directory))
    if view is None or not record.kept:
        return found
    needed = needed_pools(record, fleet, view.epoch, view.reconciled, view.open_rollouts)
    return {**kept_processes(record, needed), **found}


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
        desired: Callable[[FleetRecord, View], Mapping[str, ProcessSpec]] = desired_processes,
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
        self._read = desired
        self._before = frozenset(before)
        self.mirror = Mirror(store, keys.prefix)
        self.view = View(keys, self.mirror.entries)
        self._membership = Membership(store, keys)
        self._deaths = DeathEvents(store, keys)
        self._records = ProcessRecords(store, keys, last_lines)
        self._waiting = Waiting(monotonic())
        self._wake = asyncio.Event()
        self._tasks = BackgroundTasks()
        #: Of the records that ``_desired`` was made of.
        self._revisions: tuple[int, ...] = ()
        self._desired: Mapping[str, ProcessSpec] = {}
        #: The other engine that the fleet record names; "": it names this one.
        self._other_engine = ""
        self._drained_since: dict[str, float] = {}
        self._idle: set[str] = set()
        #: Lost processes that the engine is replacing: a machine that does not answer may take it a minute.
        self._replacing: set[str] = set()
        #: Controller → pid that was seen to answer.
        self._answering: dict[str, int] = {}
        #: Worker or gateway → pid that was seen to serve the committed versions, and since when.
        self._serving: dict[str, tuple[int, float]] = {}
        self._signs = SignsOfLife()
        #: Worker → its last registered host and port.
        self._places: dict[str, tuple[str, int]] = {}
        self.observed: dict[str, Observed] = {}
        #: Set once, as soon as every desired process is ready and every gateway serves the committed models.
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
        self._read_record()
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
        self._read_record()
        self._membership.notice(self.view)
        await self._probe()
        self.observed = self._observe(await self._find_lost())
        serving = {name for name, each in self.observed.items() if each.ready}
        self._records.settle(self._desired, serving, {name: each.waits for name, each in self.observed.items()})
        await self._records.write(self.view)
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

    def _observe(self, lost: frozenset[str]) -> dict[str, Observed]:
        running = self._engine.running()
        now = monotonic()
        serving = {
            name: since for name, (pid, since) in self._serving.items() if name in running and running[name].pid == pid
        }
        behind = {name for name, each in running.items() if each.spec.role != "controller" and name not in serving}
        fresh = {name for name, since in serving.items() if since and now - since < STEADY_SECONDS}
        return observe(self.view, running, self._drained_since, self._idle, self._answering, behind, fresh, lost)

    def _read_record(self) -> None:
        entries, keys = self.mirror.entries, self._keys
        entry = entries.get(keys.fleet)
        revisions = tuple(entries[key].revision for key in (keys.fleet, keys.epoch, keys.reconciled) if key in entries)
        rollouts = [entries[key].revision for key in entries if key.startswith(keys.rollouts)]
        revisions += (max(rollouts, default=0),)
        if entry is None or revisions == self._revisions:
            return
        self._revisions = revisions
        try:
            record = decode(entry.value, FleetRecord)
            if self._is_of_other_engine(record):
                return
            desired = self._read(record, self.view)
            if any(map(self.view.is_unreadable, (keys.epoch, keys.reconciled))):
                # It is unknown which pools are still needed: no process is stopped.
                desired = {**self._desired, **desired}
            self._desired = desired
        except Exception as error:
            # The running processes were right before.
            self._notify(f"this release cannot read the applied fleet; all processes keep running: {error}")

    def _is_of_other_engine(self, record: FleetRecord) -> bool:
        """Its processes are not this supervisor's to run."""
        own = self._engine.name
        before, self._other_engine = self._other_engine, record.engine if record.engine != own else ""
        if self._other_engine and self._other_engine != before:
            self._notify(
                f"the applied fleet is to run on the engine {record.engine}, and this supervisor has {own}: it ignores "
                f"changes, and all processes keep running; stop it, or run 'isochrone up --engine {own}' again"
            )
        return bool(self._other_engine)

    async def _is_up(self) -> bool:
        epoch = self.view.epoch
        if epoch is None or not all(name in self.observed and self.observed[name].ready for name in self._desired):
            return False
        for gateway in self.view.gateways.values():
            for model in epoch.models:
                if not await probes.serves(gateway.host, gateway.port, model):
                    return False
        return bool(self._desired)

    async def _probe(self) -> None:
        """Probe the processes that start or drain."""
        workers = self.view.workers
        for name, each in self._engine.running().items():
            if each.spec.role == "controller" and each.pid and self._answering.get(name) != each.pid:
                place = reached_at(each.spec, each.host)
                if place is None or await probes.answers(*place):
                    self._answering[name] = each.pid
            elif each.spec.role != "controller" and each.pid and self._serving.get(name, (0, 0.0))[0] != each.pid:
                await self._probe_serving(name, each)
            elif name in self._drained_since and name in workers:
                record = workers[name]
                if await probes.in_flight(record.host, record.port) == 0:
                    self._idle.add(name)
                else:
                    self._idle.discard(name)

    async def _find_lost(self) -> frozenset[str]:
        """The processes without any sign of life."""
        self._places |= {name: (record.host, record.port) for name, record in self.view.workers.items()}
        running = self._engine.running()
        # All at once: each of the processes of a lost machine takes the whole time of a probe.
        lives = await asyncio.gather(*(self._lives(name, each) for name, each in running.items()))
        silent = []
        for name, is_alive in zip(running, lives, strict=True):
            if is_alive:
                self._signs.seen(name, monotonic())
            else:
                silent.append(name)
        return self._signs.lost(silent, monotonic())

    async def _lives(self, name: str, each: Running) -> bool:
        if is_heard_of(name, each, self.view):
            return True
        place = reached_at(each.spec, each.host) if each.spec.role == "controller" else self._places.get(name)
        return place is not None and await probes.lives(*place)

    async def _probe_serving(self, name: str, each: Running) -> None:
        """Probe whether a registered process serves the committed versions: only then may others stop."""
        record = self.view.gateways.get(name) if each.spec.role == "gateway" else self.view.workers.get(name)
        if record is None:
            return
        epoch = self.view.epoch or EpochRecord(0)
        if each.spec.role == "gateway":
            models = dict(epoch.models)
            served = all([await probes.serves(record.host, record.port, model) for model in models])
        else:
            models = assigned(epoch, each.spec.pool)
            served = not models or has_committed(await probes.served(record.host, record.port) or {}, models)
        if not served:
            return
        # The first processes of a fleet need not wait: no requests are sent yet.
        self._serving[name] = (each.pid, monotonic() if models else 0.0)

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
        self._answering.pop(name, None)
        self._serving.pop(name, None)
        self._signs.forget(name)
        self._idle.discard(name)
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
