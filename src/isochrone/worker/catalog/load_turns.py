"""Loads of one model that wait or are under way, and which of them a later call makes useless.

Beside the catalog, which changes one model at a time. A load that names its versions (a controller's does) is given up
when a later call of the same model leaves one of them out: a model whose ``load`` hangs must not block the versions
that come after it. A thread cannot be ended, so the thread of a load that was given up runs on; what it prepares is
discarded when it comes, and never served. A load without versions, as Triton's programs send it, is never given up.
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

log = structlog.get_logger()


class GivenUp(Unavailable):
    """A later call wants other versions of the model."""


class LoadTurn:
    """One call for one model, from its arrival to its end. ``versions``: all it wants; None: as the files say."""

    def __init__(self, model: str, versions: Collection[int] | None, number: int) -> None:
        self.model = model
        self.versions = None if versions is None else frozenset(versions)
        #: In the order of arrival of all calls.
        self.number = number
        self.given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def replaces(self, other: LoadTurn) -> bool:
        """Whether it came later than another call and leaves out a version that the other one wants."""
        if self.versions is None or other.versions is None:
            return False
        return self.number > other.number and bool(other.versions - self.versions)

    def give_up(self) -> None:
        if not self.given_up.done():
            self.given_up.set_result(None)

    def check(self) -> None:
        if self.given_up.done():
            raise GivenUp(f"the load of model '{self.model}' was given up: a later call wants other versions")


class LoadTurns:
    """Of one catalog, on the loop's thread."""

    def __init__(self) -> None:
        self._turns: dict[str, list[LoadTurn]] = {}
        self._late = BackgroundTasks()
        self._numbers = count(1)

    def arrive(self) -> int:
        """Numbers a call as it arrives. A call may enter later than one that arrived after it."""
        return next(self._numbers)

    def enter(self, model: str, versions: Collection[int] | None, number: int) -> LoadTurn:
        """Gives up earlier loads that this call replaces, and this one if a later call replaces it. An unload wants no
        version."""
        turn = LoadTurn(model, versions, number)
        turns = self._turns.setdefault(model, [])
        for other in turns:
            if turn.replaces(other):
                other.give_up()
            elif other.replaces(turn):
                turn.give_up()
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
        """The result of ``work`` on a thread. Raises ``GivenUp`` at once when the load is given up."""
        turn.check()
        started = now_ns()
        running = asyncio.ensure_future(in_thread(work))
        try:
            await asyncio.wait((running, turn.given_up), return_when=asyncio.FIRST_COMPLETED)
            if turn.given_up.done() and not running.done():
                log.warning(
                    "a load was given up; its thread runs until the model returns",
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
        """The threads of loads that were given up end with the process."""
        await self._late.end()


async def _discard_late(
    running: asyncio.Future[Result], discard: Callable[[Result], None], model: str, versions: list[int]
) -> None:
    try:
        result = await running
    except Exception as error:
        log.info("a load that was given up has failed", model=model, versions=versions, error=str(error))
        return
    await in_thread(lambda: discard(result))
    log.info("a load that was given up has ended; what it loaded is freed", model=model, versions=versions)
