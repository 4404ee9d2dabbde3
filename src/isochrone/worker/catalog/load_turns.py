"""Competing loads of one model: a later call abandons an earlier load that it makes useless.

A load that names its versions, as a controller's does, is abandoned when a later call for the same model leaves one of
them out: a model whose ``load`` hangs must not block the versions after it. A thread cannot be stopped, so the thread
of an abandoned load runs on; its result is discarded and never served. A load without versions, as Triton's programs
send it, is never abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import count

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import SECOND, now_ns
from isochrone.errors import Unavailable
from isochrone.worker.catalog.off_loop import Result, in_thread

log = structlog.get_logger(__name__)


class LoadAbandoned(Unavailable):
    """A later call requests other versions of the model."""


class LoadTurn:
    """One call for one model, from its arrival to its end. ``versions`` None: those that the files state."""

    def __init__(self, model: str, versions: Collection[int] | None, number: int) -> None:
        self.model = model
        self.versions = None if versions is None else frozenset(versions)
        #: Calls are numbered in order of arrival.
        self.number = number
        self.abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def replaces(self, other: LoadTurn) -> bool:
        """Whether it arrived after another call and leaves out a version of that call."""
        if self.versions is None or other.versions is None:
            return False
        return self.number > other.number and bool(other.versions - self.versions)

    def abandon(self) -> None:
        if not self.abandoned.done():
            self.abandoned.set_result(None)

    def check(self) -> None:
        if self.abandoned.done():
            raise LoadAbandoned(f"the load of model '{self.model}' was abandoned: a later call requests other versions")


class LoadTurns:
    """The calls of one catalog, on the loop's thread."""

    def __init__(self) -> None:
        self._turns: dict[str, list[LoadTurn]] = {}
        self._late = BackgroundTasks()
        self._numbers = count(1)

    def arrive(self) -> int:
        """The number of a call that arrives now. A call may ``enter`` after one that arrived later."""
        return next(self._numbers)

    def enter(self, model: str, versions: Collection[int] | None, number: int) -> LoadTurn:
        """Abandons earlier loads that this call replaces, or this one if a later call replaces it.

        An unload enters without versions.
        """
        turn = LoadTurn(model, versions, number)
        turns = self._turns.setdefault(model, [])
        for other in turns:
            if turn.replaces(other):
                other.abandon()
            elif other.replaces(turn):
                turn.abandon()
        turns.append(turn)
        return turn

    def leave(self, turn: LoadTurn) -> None:
        turns = self._turns[turn.model]
        turns.remove(turn)
        if not turns:
            del self._turns[turn.model]

    async def prepare(
        self, turn: LoadTurn, work: Callable[[], Result], discard: Callable[[Result], None], versions: Collection[int]
    ) -> Result:
        """The result of ``work`` on a thread. Raises ``LoadAbandoned`` as soon as the load is abandoned."""
        turn.check()
        started = now_ns()
        running = asyncio.ensure_future(in_thread(work))
        try:
            await asyncio.wait((running, turn.abandoned), return_when=asyncio.FIRST_COMPLETED)
            if turn.abandoned.done() and not running.done():
                log.warning(
                    "a load was abandoned; its thread runs until the model returns",
                    model=turn.model,
                    versions=sorted(versions),
                    seconds=round((now_ns() - started) / SECOND, 1),
                )
            turn.check()
        except BaseException:
            self._late.start(_discard_late(running, discard, turn.model, sorted(versions)))
            raise
        return running.result()

    async def close(self) -> None:
        """Stops waiting for abandoned loads; their threads end with the process."""
        await self._late.end()


async def _discard_late(
    running: asyncio.Future[Result], discard: Callable[[Result], None], model: str, versions: list[int]
) -> None:
    try:
        result = await running
    except Exception as error:
        log.info("an abandoned load has failed", model=model, versions=versions, error=str(error))
        return
    await in_thread(lambda: discard(result))
    log.info("an abandoned load has ended; its model is freed", model=model, versions=versions)
