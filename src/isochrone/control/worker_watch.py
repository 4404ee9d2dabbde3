"""The leader's hand on one worker: what it serves, and making it serve what is wanted, one load at a time.

A worker that answers "no" has failed, and what it said is kept until something else is wanted; one that does not answer
is asked again. Committed versions are tried again after a pause that grows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from isochrone.control.records import WorkerRecord
from isochrone.control.rollout.wanted import differing
from isochrone.control.rollout.world import READY, Failure, Loaded, WorkerView
from isochrone.control.worker_control import ControlFailed, WorkerControl

log = structlog.get_logger()

#: Seconds between looks at what it serves: while something is to change, and otherwise.
_BUSY, _IDLE = 0.1, 1.0
#: Seconds a load may take; the rollout has its own limit.
_LOAD_SECONDS = 600.0
_LONGEST_PAUSE = 30.0


class WorkerWatch:
    """One registered worker. ``changed`` is called when something was learned."""

    def __init__(self, record: WorkerRecord, changed: Callable[[], None]) -> None:
        self.record = record
        self._changed = changed
        self._control = WorkerControl(record)
        self._models: dict[str, dict[str, Loaded]] | None = None
        self._failures: dict[str, Failure] = {}
        self._retry_at: dict[str, float] = {}
        self._pause: dict[str, float] = {}
        #: None: nothing has been said yet, and nothing may be touched: what is there may be what is committed.
        self._wanted: Mapping[str, frozenset[str]] | None = None
        self._order: Sequence[str] = ()
        self._wake = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    @property
    def view(self) -> WorkerView:
        return WorkerView(self.record, self._models, dict(self._failures))

    def want(self, models: Mapping[str, frozenset[str]], order: Sequence[str]) -> None:
        """What it should serve from now on. ``order``: models that others stand on come first."""
        self._order = order
        if models == self._wanted:
            return
        before = self._wanted or {}
        for model in {*models, *before}:
            if models.get(model) != before.get(model):
                self._failures.pop(model, None)
                self._retry_at.pop(model, None)
                self._pause.pop(model, None)
        self._wanted = dict(models)
        self._wake.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._control.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
                busy = await self._change()
            except ControlFailed as error:
                # It does not answer: its lease decides whether it is still there.
                log.debug("a worker does not answer", worker=self.record.name, error=str(error))
                busy = True
            except Exception as error:
                log.error("a watch failed unexpectedly", worker=self.record.name, exc_info=error)
                busy = False
            try:
                await asyncio.wait_for(self._wake.wait(), _BUSY if busy else _IDLE)
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

    async def _change(self) -> bool:
        """Makes one model what is wanted, if one is not; whether there is more to do."""
        if self._wanted is None:
            return False
        present = {
            model: [version for version, loaded in versions.items() if loaded.state == READY]
            for model, versions in (self._models or {}).items()
        }
        wanted = self._wanted
        names = differing(wanted, {model: versions for model, versions in present.items() if versions})
        now = time.monotonic()
        due = [name for name in names if now >= self._retry_at.get(name, 0.0)]
        for name in sorted(due, key=lambda name: self._rank(name, wanted)):
            await self._serve(name, wanted.get(name, frozenset()), set(present.get(name, ())))
            return True
        return bool(names)

    def _rank(self, model: str, wanted: Mapping[str, frozenset[str]]) -> tuple[int, int]:
        """Loads before unloads; stages before what runs them."""
        place = self._order.index(model) if model in self._order else len(self._order)
        return (0, place) if wanted.get(model) else (1, -place)

    async def _serve(self, model: str, wanted: frozenset[str], present: set[str]) -> None:
        try:
            await self._control.serve(model, sorted(wanted, key=_number), _LOAD_SECONDS)
        except ControlFailed as error:
            if not error.refused:
                raise
            self._failures[model] = Failure(wanted - present, _without_worker(str(error)))
            pause = self._pause[model] = min(_LONGEST_PAUSE, self._pause.get(model, 0.5) * 2)
            self._retry_at[model] = time.monotonic() + pause
            log.warning("a worker refused a load", worker=self.record.name, model=model, error=str(error))
        else:
            self._failures.pop(model, None)
            self._pause.pop(model, None)
        self._changed()
        await self._look()


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0


def _without_worker(text: str) -> str:
    """The reason alone: whoever tells it names the worker."""
    head, colon, rest = text.partition("): ")
    return rest if colon and head.startswith("worker ") else text
