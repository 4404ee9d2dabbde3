"""The thread that accesses the SQLite file, so that the event loop never waits for a disk or a lock.

It runs jobs one by one. In between, while there are watches, it waits for notices of other processes' writes
(``file_notices``), and checks the file every 100 ms in case one was missed; without inotify, every 5 ms. A check costs
some 100 µs including the wake-up: at rest it uses a tenth of a percent of a core.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from isochrone.clock import SECOND
from isochrone.store.base import Changes, Compacted, StoreUnavailable
from isochrone.store.machine_clock import MachineClock
from isochrone.store.sqlite.database import SqliteDatabase
from isochrone.store.sqlite.file_notices import FileNotices

Result = TypeVar("Result")
Job = Callable[[], None]

#: Seconds between two checks of the file, with and without inotify.
LOOK_SECONDS, LOOK_SECONDS_WITHOUT_NOTICES = 0.1, 0.005
#: Seconds after a failed attempt to end an overdue lease.
_EXPIRE_AGAIN_SECONDS = 0.25


class Watcher:
    """One watch. Its fields belong to the thread, its queue to the loop."""

    def __init__(self, prefix: str, after: int) -> None:
        self.prefix, self.after = prefix, after
        self.arrived: asyncio.Queue[Changes | Exception] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def deliver(self, item: Changes | Exception) -> None:
        try:
            self._loop.call_soon_threadsafe(self.arrived.put_nowait, item)
        except RuntimeError:
            # The loop is closed: the watch is over.
            pass


class SqliteThread:
    def __init__(self, database: SqliteDatabase, clock: MachineClock) -> None:
        self._database, self._clock = database, clock
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._notices = FileNotices()
        self._watchers: list[Watcher] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._notices_asked = False
        # The thread's last observations.
        self._data_version = -1
        self._revision = -1
        self._first_end_ns = 0
        self._expire_not_before = 0.0

    async def call(self, function: Callable[[SqliteDatabase], Result]) -> Result:
        """Run a function on the thread. A cancelled caller does not stop it."""
        future: Future[Result] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self._database))
            except Exception as error:
                future.set_exception(error)

        self._submit(job)
        return await asyncio.wrap_future(future)

    def add(self, watcher: Watcher) -> None:
        self._submit(lambda: self._begin(watcher))

    def remove(self, watcher: Watcher) -> None:
        if not self._closed:
            self._submit(lambda: self._drop(watcher))

    def close(self) -> None:
        """Wait for the job in progress, then close."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._notices.wake()
            self._thread.join()
        self._notices.close()

    def _submit(self, job: Job) -> None:
        if self._closed:
            raise StoreUnavailable(f"store {self._database.url}: it was closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="isochrone-store", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        self._notices.wake()

    def _serve(self) -> None:
        while True:
            self._notices.wait(self._pause())
            self._check(own_write=False)
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    self._end()
                    return
                job()
                # SQLite's data version ignores writes of the same connection. After every job: a caller that writes
                # without a pause must not starve the watches.
                self._check(own_write=True)

    def _end(self) -> None:
        for watcher in self._watchers:
            watcher.deliver(StoreUnavailable(f"store {self._database.url}: it was closed"))
        self._database.close()

    def _pause(self) -> float | None:
        if not self._watchers:
            return None
        if not self._notices_asked:
            self._notices_asked = True
            self._notices.watch(self._database.path)
        if not self._notices.watching:
            return LOOK_SECONDS_WITHOUT_NOTICES
        until_first_end = max((self._first_end_ns - self._clock.now_ns()) / SECOND, LOOK_SECONDS_WITHOUT_NOTICES)
        return min(LOOK_SECONDS, until_first_end)

    def _begin(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)
        self._deliver_changes(watcher)

    def _drop(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def _check(self, own_write: bool) -> None:
        if not self._watchers:
            return
        try:
            version = self._database.data_version()
            if own_write or version != self._data_version:
                self._data_version = version
                self._read_position()
            if self._clock.now_ns() >= self._first_end_ns and time.monotonic() >= self._expire_not_before:
                # Renewals send no notice.
                self._read_position()
                if self._clock.now_ns() >= self._first_end_ns:
                    self._expire()
        except Exception as error:
            # The file may have been replaced.
            self._notices.unwatch()
            self._notices_asked = False
            self._data_version = self._revision = -1
            watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher.deliver(self._watch_error(error))

    def _read_position(self) -> None:
        revision, self._first_end_ns = self._database.position()
        if revision == self._revision:
            return
        self._revision = revision
        for watcher in list(self._watchers):
            self._deliver_changes(watcher)

    def _expire(self) -> None:
        try:
            self._database.expire()
        except StoreUnavailable:
            # Reading still works; another process may end it.
            self._expire_not_before = time.monotonic() + _EXPIRE_AGAIN_SECONDS
            return
        self._read_position()

    def _deliver_changes(self, watcher: Watcher) -> None:
        try:
            changes = self._database.changes(watcher.prefix, watcher.after)
        except Exception as error:
            self._drop(watcher)
            watcher.deliver(self._watch_error(error))
            return
        if changes.revision != watcher.after:
            watcher.after = changes.revision
            watcher.deliver(changes)

    def _watch_error(self, error: Exception) -> Exception:
        """The error for a watch. No error may end the thread: other callers wait for it."""
        if isinstance(error, Compacted | StoreUnavailable):
            return error
        return StoreUnavailable(f"store {self._database.url}: {type(error).__name__}: {error}")
