"""The applied fleet as the leader has read it. It is read on a thread, since repositories may be slow or broken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from isochrone.control.desired.reconcile import DesiredModel
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import FleetRecord
from isochrone.errors import IsochroneError

log = structlog.get_logger(__name__)

#: Reads a fleet record: the desired models and the outside servers. It reads the repositories, so it may fail.
ReadFleet = Callable[[FleetRecord], tuple[Mapping[str, DesiredModel], tuple[WorkerRecord, ...]]]

#: Seconds before a failed read is retried.
_PAUSE = 5.0


class AppliedFleet:
    """The fleet that was read last. ``changed`` is called when another one has been read."""

    def __init__(self, read: ReadFleet, changed: Callable[[], None]) -> None:
        self._read = read
        self._changed = changed
        self.desired: Mapping[str, DesiredModel] = {}
        self.servers: tuple[WorkerRecord, ...] = ()
        #: Of the fleet that was read; 0: none.
        self.generation = 0
        self._task: asyncio.Task[None] | None = None
        self._failed: tuple[int, float] = (0, 0.0)

    def is_read(self, fleet: FleetRecord) -> bool:
        """Whether this fleet record has been read; if not, start reading it."""
        if fleet.generation == self.generation:
            return True
        generation, again_at = self._failed
        waits = generation == fleet.generation and time.monotonic() < again_at
        if not waits and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run(fleet))
        return False

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.generation = 0

    async def _run(self, fleet: FleetRecord) -> None:
        try:
            self.desired, self.servers = await asyncio.to_thread(self._read, fleet)
        except Exception as error:
            # A record of another release, or a repository that cannot be read: the fleet stays as it is.
            self._failed = (fleet.generation, time.monotonic() + _PAUSE)
            known = isinstance(error, IsochroneError)
            log.error(
                "the applied fleet cannot be read",
                generation=fleet.generation,
                error=str(error),
                exc_info=None if known else error,
            )
            return
        self.generation = fleet.generation
        self._changed()
