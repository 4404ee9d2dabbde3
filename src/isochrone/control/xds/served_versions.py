"""Asks the registered workers which versions they serve, as gateways do: by their repository indexes.

Never raises: a worker that does not answer keeps what it said last, and is marked after a second failure. A worker
whose record vanishes is kept for a while, since only the store may have lost it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import READY, ControlFailed, ServedState, WorkerControl
from isochrone.control.xds.snapshot import Served, ServingWorker
from isochrone.resolving.resolver import resolver

log = structlog.get_logger(__name__)

#: Seconds between two reads of an index, and after a read that failed or while the worker's record is gone.
_PAUSE, _SHORT_PAUSE = 1.0, 0.2
#: Seconds for one read: a worker that stands still is to be noticed soon.
_READ_SECONDS = 1.5
#: Failures in a row after which a worker counts as silent.
_FAILURES = 2
#: Seconds that a worker is kept after its record vanished; as in gateways.
LINGER = 10.0
#: Seconds between two looks at workers that are kept because the store is unreachable.
_LOOK_SECONDS = 1.0


class _Reader:
    """Reads one worker's index again and again. ``known``: what an earlier reader of the same process knew."""

    def __init__(self, record: WorkerRecord, changed: Callable[[], None], known: ServingWorker | None = None) -> None:
        self.record = record
        self._changed = changed
        self._control = WorkerControl(record)
        self._wake = asyncio.Event()
        #: None: not known yet. Of the record by which it was read.
        self.known = known
        self._body: bytes | None = None
        self.failures = 0
        #: When the record vanished; None: it is there.
        self.vanished: float | None = None
        #: Reads that began, and that ended; set when the present one has ended.
        self._begun = self._ended = 0
        self._over = asyncio.Event()

    @property
    def is_silent(self) -> bool:
        return self.failures >= _FAILURES

    def read_soon(self) -> None:
        self._wake.set()

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
                    is_doubtful = self.failures or self.vanished is not None
                    async with asyncio.timeout(_SHORT_PAUSE if is_doubtful else _PAUSE):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            await self._control.close()

    async def _read(self) -> None:
        was_silent = self.is_silent
        try:
            async with asyncio.timeout(_READ_SECONDS):
                body = await self._control.raw_index(_READ_SECONDS)
                address = (await resolver.addresses(self.record.host))[0]
                is_stopping = self.vanished is not None and not await self._control.ready()
            served = await self._served(body)
        except (ControlFailed, OSError) as error:
            self._fail(was_silent, str(error) or f"no answer within {_READ_SECONDS:g} s")
            return
        except Exception as error:
            log.error("reading a worker's index failed unexpectedly", worker=self.record.name, exc_info=error)
            self._fail(was_silent, str(error))
            return
        if is_stopping:
            # It deletes its record and answers for a while. Nothing is to be waited for.
            self.failures = _FAILURES
            self._fail(was_silent, "its record is gone, and it is not ready")
            return
        self.failures, self._body = 0, body
        known = ServingWorker(self.record, address, served)
        if was_silent or known != self.known:
            self.known = known
            self._changed()

    async def _served(self, body: bytes) -> Served:
        if self.known is not None and body == self._body:
            return self.known.served
        # Off the loop: the index of a thousand models takes tens of milliseconds.
        return _ready(await asyncio.to_thread(self._control.parsed_index, body))

    def _fail(self, was_silent: bool, reason: str) -> None:
        self.failures += 1
        if self.is_silent and not was_silent:
            log.warning("a worker does not answer", worker=self.record.name, error=reason)
            self._changed()


def _ready(index: Mapping[str, Mapping[str, ServedState]]) -> Served:
    return {
        model: ready
        for model, versions in index.items()
        if (ready := {version: each.digest for version, each in versions.items() if each.state == READY})
    }


class ServedVersions:
    """The versions that each registered worker serves. ``changed`` is called when that changes."""

    def __init__(self, changed: Callable[[], None], linger: float = LINGER) -> None:
        self._report = changed
        self._linger = linger
        self._readers: dict[str, tuple[_Reader, asyncio.Task[None]]] = {}
        self._tasks = BackgroundTasks()
        #: Calls ``changed`` when the next vanished worker is due.
        self._look: asyncio.TimerHandle | None = None
        #: Counts the changes.
        self.changes = 0

    def __len__(self) -> int:
        return len(self._readers)

    def keep(self, records: Mapping[str, WorkerRecord], dropped: Collection[str] = (), *, connected: bool) -> None:
        """Read these workers, and for a while those whose records have vanished.

        ``dropped``: workers that are to be left alone at once. ``connected``: whether the store can be reached; if not,
        an absent record means nothing.
        """
        now = time.monotonic()
        for name, (reader, _) in list(self._readers.items()):
            if name in dropped:
                self._end(name)
            elif name not in records:
                self._miss(name, reader, now, connected)
        for name, record in records.items():
            if name not in dropped:
                self._start(name, record)
        self._look_again(now, connected)

    def _start(self, name: str, record: WorkerRecord) -> None:
        reader = self._readers[name][0] if name in self._readers else None
        if reader is not None and reader.record == record:
            reader.vanished = None
            return
        known, failures = None, 0
        if reader is not None:
            # What a process served before its last start says nothing.
            if reader.record.incarnation == record.incarnation:
                known, failures = reader.known, reader.failures
            self._end(name)
        reader = _Reader(record, self._change, known)
        reader.failures = failures
        self._readers[name] = reader, self._tasks.start(reader.run())

    def _miss(self, name: str, reader: _Reader, now: float, connected: bool) -> None:
        if reader.vanished is None:
            reader.vanished = now
            reader.read_soon()
        elif connected and now - reader.vanished >= self._linger:
            self._end(name)

    def _end(self, name: str) -> None:
        self._readers.pop(name)[1].cancel()
        self._change()

    def _look_again(self, now: float, connected: bool) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        vanished = [reader.vanished for reader, _ in self._readers.values() if reader.vanished is not None]
        if vanished:
            due = max(0.0, min(vanished) + self._linger - now) if connected else _LOOK_SECONDS
            self._look = asyncio.get_running_loop().call_later(due, self._report)

    async def read_all(self, seconds: float) -> None:
        """Return when every worker has been read from now on, or after ``seconds``: one that hangs is not awaited."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(reader.read_now() for reader, _ in self._readers.values()))
        except TimeoutError:
            pass

    def workers(self, standbys: Collection[str] = ()) -> list[ServingWorker]:
        """Those whose index is known. ``standbys``: the names of workers that stand by."""
        return [
            replace(reader.known, answers=not reader.is_silent, standby=name in standbys)
            for name, (reader, _) in self._readers.items()
            if reader.known is not None
        ]

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._readers.clear()
        await self._tasks.end()

    def _change(self) -> None:
        self.changes += 1
        self._report()
