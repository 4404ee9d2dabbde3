"""Drives one worker: observes the versions that it serves and makes it serve the desired ones.

``loads`` decides which calls to make; this module makes them, one call per model. A call that the worker rejects is a
failure, whose reason is kept until the desired versions change; a call without an answer is retried. A controller that
no longer leads makes no calls.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.rollout.observed_state import READY, Loaded, ObservedWorker
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import LOADING, ControlFailed, ServedState, WorkerControl
from isochrone.control.workers.load_crashes import Effect, LoadCrashes, effect
from isochrone.control.workers.loads import Call, Loads
from isochrone.models.repository.names import MEASURED_SECONDS, is_measured

log = structlog.get_logger(__name__)

#: Seconds between two reads of the worker's index: while something is to change, and otherwise.
_BUSY, _IDLE = 0.1, 1.0
#: Seconds that a load may take; the rollout has its own limit.
_LOAD_SECONDS = 600.0


class Control(Protocol):
    """The calls to a worker: see ``WorkerControl``."""

    async def index(self) -> dict[str, dict[str, ServedState]]: ...

    async def serve(self, model: str, versions: Sequence[str], seconds: float) -> None: ...

    async def config_digest(self, model: str, version: str) -> str: ...

    async def close(self) -> None: ...


class WorkerDriver:
    """The driver of one registered worker. ``changed`` is called when its observed state changes.

    ``may_act`` is checked right before each load and unload: a controller that no longer leads must not undo what the
    new leader does. ``crashes``: loads during which a process ended, shared by the drivers of all workers.
    """

    def __init__(
        self,
        record: WorkerRecord,
        changed: Callable[[], None],
        may_act: Callable[[], bool] = lambda: True,
        control: Control | None = None,
        crashes: LoadCrashes | None = None,
    ) -> None:
        self.record = record
        self._changed = changed
        self._may_act = may_act
        self._control: Control = control or WorkerControl(record)
        self._models: dict[str, dict[str, Loaded]] | None = None
        #: Models that a command measures, and when each was first seen.
        self._measured: dict[str, float] = {}
        #: When it last answered; -inf: not to the last read.
        self._read_at = -math.inf
        self._loads = Loads()
        self._crashes = crashes or LoadCrashes()
        #: A call that may end the worker's process is in progress: no other is begun.
        self._retries_alone = False
        #: By model: the call in progress.
        self._calls: dict[str, tuple[Call, asyncio.Task[None]]] = {}
        #: Those and the cancelled ones, until they have ended.
        self._tasks = BackgroundTasks()
        self._wake = asyncio.Event()
        self._tasks.start(self._run())

    @property
    def observed(self) -> ObservedWorker:
        return ObservedWorker(self.record, self._models, dict(self._loads.failures), self._read_at)

    def set_desired(
        self,
        models: Mapping[str, frozenset[str]],
        order: Sequence[str],
        spare: Mapping[str, frozenset[str]] | None = None,
        stages: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """Set the versions that it should serve, by model.

        ``order``: models that others depend on come first. ``spare``: versions among ``models`` that are loaded after
        all others. ``stages``: by ensemble; if given, a model waits only for its own stages.
        """
        changed = self._loads.set_desired(models, order, spare or {}, stages)
        for model in changed & set(self._calls):
            call, task = self._calls[model]
            if self._loads.next_of(model, self._present()) != call:
                # It may hang, and its result is no longer desired.
                del self._calls[model]
                task.cancel()
        if changed:
            self._wake.set()

    async def stop(self) -> None:
        await self._tasks.end()
        await self._control.close()

    async def _run(self) -> None:
        while True:
            # A call that ends during the read may not be in its result.
            in_progress = set(self._calls)
            busy = True
            try:
                await self._read_index()
                self._begin(in_progress)
                busy = bool(self._calls) or self._loads.is_busy(self._present())
            except ControlFailed as error:
                # Its lease decides whether it is still registered.
                self._unread()
                log.debug("a worker does not answer", worker=self.record.name, error=str(error))
            except Exception as error:
                self._unread()
                log.error("the driver of a worker failed unexpectedly", worker=self.record.name, exc_info=error)
                busy = False
            try:
                # Not wait_for: before Python 3.12 it may lose a cancellation that comes with the event.
                async with asyncio.timeout(_BUSY if busy else _IDLE):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _read_index(self) -> None:
        index = self._own(await self._control.index())
        models: dict[str, dict[str, Loaded]] = {}
        for model, versions in index.items():
            for version, reported in versions.items():
                digest = reported.digest
                if not digest and reported.state == READY and self.record.kind != "isochrone":
                    digest = await self._config_digest(model, version)
                models.setdefault(model, {})[version] = Loaded(
                    reported.state, digest, reported.reason, reported.signed_by
                )
        was_read, self._read_at = math.isfinite(self._read_at), time.monotonic()
        if models != self._models or not was_read:
            self._models = models
            self._changed()

    def _own(self, index: dict[str, dict[str, ServedState]]) -> dict[str, dict[str, ServedState]]:
        """Without what a command measures on the worker, as long as a measurement may take."""
        now = time.monotonic()
        self._measured = {model: self._measured.get(model, now) for model in index if is_measured(model)}
        left_alone = {model for model, since in self._measured.items() if now - since < MEASURED_SECONDS}
        return {model: versions for model, versions in index.items() if model not in left_alone}

    def _unread(self) -> None:
        """It did not answer."""
        was_read, self._read_at = math.isfinite(self._read_at), -math.inf
        if was_read:
            self._changed()

    async def _config_digest(self, model: str, version: str) -> str:
        """The digest of a server that reports none: read once per version."""
        known = (self._models or {}).get(model, {}).get(version)
        if known is not None and known.state == READY and known.digest:
            return known.digest
        return "config-" + await self._control.config_digest(model, version)

    def _present(self) -> dict[str, frozenset[str]]:
        return self._in_state(READY)

    def _loading(self) -> dict[str, frozenset[str]]:
        """Versions whose load can be cancelled: not those of a Triton."""
        return self._in_state(LOADING) if self.record.kind == "isochrone" else {}

    def _in_state(self, state: str) -> dict[str, frozenset[str]]:
        found = {
            model: frozenset(version for version, loaded in versions.items() if loaded.state == state)
            for model, versions in (self._models or {}).items()
        }
        return {model: versions for model, versions in found.items() if versions}

    def _begin(self, in_progress: set[str]) -> None:
        for call in self._loads.due(self._present(), self._calls, time.monotonic(), self._loading()):
            if call.model in in_progress or self._retries_alone:
                continue
            now, present = time.monotonic_ns(), self._present()
            change = effect(call, present.get(call.model, frozenset()))
            if rejection := self._crashes.rejection(change, now):
                self._loads.refused(call, present, rejection, time.monotonic())
                self._changed()
                continue
            # A call that may end the process is made last, and alone.
            suspect = self._crashes.is_suspect(change, now)
            if suspect and (self._calls or not self._crashes.begin_retry(change, now)):
                continue
            self._retries_alone = suspect
            task = self._tasks.start(self._make(call, change, suspect))
            # Not in a ``finally`` of the task: one that is cancelled before its first step never enters its body.
            task.add_done_callback(partial(self._over, call, change, suspect))
            self._calls[call.model] = (call, task)

    async def _make(self, call: Call, change: Effect, suspect: bool) -> None:
        """``suspect``: the change may end the worker's process."""
        try:
            if not self._may_act():
                self._loads.unanswered(call, time.monotonic())
                return
            await self._control.serve(call.model, sorted(call.versions, key=_number), _LOAD_SECONDS)
            self._loads.succeeded(call)
            self._crashes.survived(change, time.monotonic_ns())
        except ControlFailed as error:
            if error.refused:
                self._crashes.survived(change, time.monotonic_ns())
                self._loads.refused(call, self._present(), _without_worker(str(error)), time.monotonic())
                log.warning("a worker refused a load", worker=self.record.name, model=call.model, error=str(error))
            else:
                self._loads.unanswered(call, time.monotonic())
                log.debug("a worker does not answer", worker=self.record.name, error=str(error))
                if error.cut and not await self._answers():
                    self._crashes.died(change, self.record.name, suspect, time.monotonic_ns())
                    log.warning("a worker's process ended during a load", worker=self.record.name, model=call.model)
        except Exception as error:
            self._loads.unanswered(call, time.monotonic())
            log.error("a load failed unexpectedly", worker=self.record.name, model=call.model, exc_info=error)

    def _over(self, call: Call, change: Effect, suspect: bool, task: asyncio.Task[None]) -> None:
        """A call has ended, or was cancelled."""
        if suspect:
            self._retries_alone = False
            self._crashes.end_retry(change)
        known = self._calls.get(call.model)
        if known is not None and known[1] is task:
            del self._calls[call.model]
            self._wake.set()
            self._changed()

    async def _answers(self) -> bool:
        """Whether only the connection ended, and not the process."""
        try:
            await self._control.index()
        except ControlFailed:
            return False
        return True


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0


def _without_worker(text: str) -> str:
    """The reason without the worker's name, which the caller adds."""
    head, colon, rest = text.partition("): ")
    return rest if colon and head.startswith("worker ") else text
