"""The leader's hand on one worker: what it serves, and making it serve what is wanted.

What to tell it is decided in ``loads``; here it is told, each model by a call of its own. A worker that answers "no"
has failed, and what it said is kept until something else is wanted; one that does not answer is asked again. Nothing
is told by a controller that may not act any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.rollout.observed_state import READY, Loaded, WorkerView
from isochrone.control.state.records import WorkerRecord
from isochrone.control.workers.control import LOADING, ControlFailed, ServedState, WorkerControl
from isochrone.control.workers.load_crashes import Effect, LoadCrashes, effect
from isochrone.control.workers.loads import Call, Loads

log = structlog.get_logger()

#: Seconds between looks at what it serves: while something is to change, and otherwise.
_BUSY, _IDLE = 0.1, 1.0
#: Seconds a load may take; the rollout has its own limit.
_LOAD_SECONDS = 600.0


class Drives(Protocol):
    """What is asked of a worker: see ``WorkerControl``."""

    async def index(self) -> dict[str, dict[str, ServedState]]: ...

    async def serve(self, model: str, versions: Sequence[str], seconds: float) -> None: ...

    async def config_digest(self, model: str, version: str) -> str: ...

    async def close(self) -> None: ...


class WorkerWatch:
    """One registered worker. ``changed`` is called when something was learned.

    ``may_act`` is asked right before each load and unload: one who does not lead any more must not undo what the new
    leader does. ``crashes``: what is known of loads under which a worker's process ended, over all workers.
    """

    def __init__(
        self,
        record: WorkerRecord,
        changed: Callable[[], None],
        may_act: Callable[[], bool] = lambda: True,
        control: Drives | None = None,
        crashes: LoadCrashes | None = None,
    ) -> None:
        self.record = record
        self._changed = changed
        self._may_act = may_act
        self._control: Drives = control or WorkerControl(record)
        self._models: dict[str, dict[str, Loaded]] | None = None
        self._loads = Loads()
        self._crashes = crashes or LoadCrashes()
        #: A call that may end the worker's process is in progress: no other is begun.
        self._retries_alone = False
        #: By model: the call under way.
        self._calls: dict[str, tuple[Call, asyncio.Task[None]]] = {}
        #: Those and the ones given up, until they have ended.
        self._tasks = BackgroundTasks()
        self._wake = asyncio.Event()
        self._tasks.start(self._run())

    @property
    def view(self) -> WorkerView:
        return WorkerView(self.record, self._models, dict(self._loads.failures))

    def want(
        self,
        models: Mapping[str, frozenset[str]],
        order: Sequence[str],
        spare: Mapping[str, frozenset[str]] | None = None,
        stages: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """What it should serve from now on.

        ``order``: models that others stand on come first. ``spare``: versions among ``models`` that nothing waits for,
        and that wait for all else. ``stages``: of ensembles; where they are told, other models do not wait.
        """
        changed = self._loads.want(models, order, spare or {}, stages)
        for model in changed & set(self._calls):
            call, task = self._calls[model]
            if self._loads.next_of(model, self._present()) != call:
                # It may hang, and what it is for is not wanted any more.
                del self._calls[model]
                task.cancel()
        if changed:
            self._wake.set()

    async def stop(self) -> None:
        await self._tasks.end()
        await self._control.close()

    async def _run(self) -> None:
        while True:
            # What ends while it looks may not be in what it sees.
            asked = set(self._calls)
            busy = True
            try:
                await self._look()
                self._begin(asked)
                busy = bool(self._calls) or self._loads.is_busy(self._present())
            except ControlFailed as error:
                # It does not answer: its lease decides whether it is still there.
                log.debug("a worker does not answer", worker=self.record.name, error=str(error))
            except Exception as error:
                log.error("a watch failed unexpectedly", worker=self.record.name, exc_info=error)
                busy = False
            try:
                # Not wait_for: Python 3.11's forgets that it was cancelled when the event comes at the same moment.
                async with asyncio.timeout(_BUSY if busy else _IDLE):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _look(self) -> None:
        index = await self._control.index()
        models: dict[str, dict[str, Loaded]] = {}
        for model, versions in index.items():
            for version, told in versions.items():
                digest = told.digest
                if not digest and told.state == READY and self.record.kind != "isochrone":
                    digest = await self._config_digest(model, version)
                models.setdefault(model, {})[version] = Loaded(told.state, digest, told.reason)
        if models != self._models:
            self._models = models
            self._changed()

    async def _config_digest(self, model: str, version: str) -> str:
        """Of a server that tells no digest: asked once per version."""
        known = (self._models or {}).get(model, {}).get(version)
        if known is not None and known.state == READY and known.digest:
            return known.digest
        return "config-" + await self._control.config_digest(model, version)

    def _present(self) -> dict[str, frozenset[str]]:
        return self._in_state(READY)

    def _loading(self) -> dict[str, frozenset[str]]:
        """A Triton cannot be made to give up a load."""
        return self._in_state(LOADING) if self.record.kind == "isochrone" else {}

    def _in_state(self, state: str) -> dict[str, frozenset[str]]:
        found = {
            model: frozenset(version for version, loaded in versions.items() if loaded.state == state)
            for model, versions in (self._models or {}).items()
        }
        return {model: versions for model, versions in found.items() if versions}

    def _begin(self, asked: set[str]) -> None:
        for call in self._loads.due(self._present(), self._calls, time.monotonic(), self._loading()):
            if call.model in asked or self._retries_alone:
                continue
            now, present = time.monotonic_ns(), self._present()
            change = effect(call, present.get(call.model, frozenset()))
            if rejection := self._crashes.rejection(change, now):
                self._loads.refused(call, present, rejection, time.monotonic())
                self._changed()
                continue
            # What may kill the worker goes last, and alone.
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
        """Whether it was only the connection that ended."""
        try:
            await self._control.index()
        except ControlFailed:
            return False
        return True


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0


def _without_worker(text: str) -> str:
    """The reason alone: whoever tells it names the worker."""
    head, colon, rest = text.partition("): ")
    return rest if colon and head.startswith("worker ") else text
