"""Asks the registered workers which versions they serve, as gateways do: by their repository indexes.

Never raises: a worker that does not answer keeps what it said last, and is marked after a second failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.state.records import WorkerRecord
from isochrone.control.workers.control import READY, ControlFailed, WorkerControl
from isochrone.control.xds.snapshot import Served, ServingWorker
from isochrone.resolving.resolver import resolver

log = structlog.get_logger(__name__)

#: Seconds between two reads of an index, and after a read that failed.
_PAUSE, _PAUSE_AFTER_FAILURE = 1.0, 0.2
#: Failures in a row after which a worker counts as silent.
_FAILURES = 2


class _Reader:
    """Reads one worker's index again and again."""

    def __init__(self, record: WorkerRecord, changed: Callable[[], None]) -> None:
        self.record = record
        self._changed = changed
        self._control = WorkerControl(record)
        self._wake = asyncio.Event()
        #: None: not known yet.
        self.served: Served | None = None
        self.address = ""
        self.failures = 0
        #: Reads that began, and that ended; set when the present one has ended.
        self._begun = self._ended = 0
        self._over = asyncio.Event()

    async def read_now(self) -> None:
        """Return after a read that began from now on: one that has begun already may be older than what asks for it."""
        awaited = self._begun + 1
        self._wake.set()
        while self._ended < awaited:
            await self._over.wait()

    async def run(self) -> None:
        try:
            while True:
                self._begun += 1
                await self._read()
                self._ended += 1
                over, self._over = self._over, asyncio.Event()
                over.set()
                try:
                    async with asyncio.timeout(_PAUSE_AFTER_FAILURE if self.failures else _PAUSE):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            await self._control.close()

    async def _read(self) -> None:
        try:
            index = await self._control.index()
            address = (await resolver.addresses(self.record.host))[0]
        except (ControlFailed, OSError) as error:
            self.failures += 1
            if self.failures == _FAILURES:
                log.warning("a worker does not answer", worker=self.record.name, error=str(error))
                self._changed()
            return
        except Exception as error:
            log.error("reading a worker's index failed unexpectedly", worker=self.record.name, exc_info=error)
            self.failures += 1
            return
        served = {
            model: ready
            for model, versions in index.items()
            if (ready := {version: each.digest for version, each in versions.items() if each.state == READY})
        }
        was_silent, self.failures = self.failures >= _FAILURES, 0
        if was_silent or served != self.served or address != self.address:
            self.served, self.address = served, address
            self._changed()


class ServedVersions:
    """The versions that each registered worker serves. ``changed`` is called when that changes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._report = changed
        self._readers: dict[str, tuple[_Reader, asyncio.Task[None]]] = {}
        self._tasks = BackgroundTasks()
        #: Counts the changes.
        self.changes = 0

    def keep(self, records: Mapping[str, WorkerRecord]) -> None:
        """Read these workers, and no others."""
        for name in [name for name, (reader, _) in self._readers.items() if records.get(name) != reader.record]:
            self._readers.pop(name)[1].cancel()
            self._change()
        for name, record in records.items():
            if name not in self._readers:
                reader = _Reader(record, self._change)
                self._readers[name] = reader, self._tasks.start(reader.run())

    async def read_all(self, seconds: float) -> None:
        """Return when every worker has been read from now on, or after ``seconds``: one that hangs is not awaited."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(reader.read_now() for reader, _ in self._readers.values()))
        except TimeoutError:
            pass

    def workers(self) -> list[ServingWorker]:
        """Those whose index is known."""
        return [
            ServingWorker(reader.record, reader.address, reader.served, reader.failures < _FAILURES)
            for reader, _ in self._readers.values()
            if reader.served is not None and reader.address
        ]

    async def close(self) -> None:
        self._readers.clear()
        await self._tasks.end()

    def _change(self) -> None:
        self.changes += 1
        self._report()
