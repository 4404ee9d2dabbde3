"""A live copy of all entries under a prefix, in memory, for reading without waiting.

It is as recent as the last watch event. While the store is unavailable it keeps its entries, and logs that once; when
the store is back it lists again and applies the differences as one change. It never writes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping

import structlog

from isochrone.store.base import Changes, Compacted, Entry, Snapshot, Store, StoreUnavailable

log = structlog.get_logger(__name__)

#: Seconds between attempts to list while the store is unavailable: the first pause, which doubles, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: Seconds until ``catch_up`` lists instead of waiting for the watch: the change may lie outside the prefix.
_ASK_AFTER = 0.05


class Mirror:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self.prefix = store, prefix
        self._entries: dict[str, Entry] = {}
        #: The last known revision of the store.
        self.revision = 0
        #: Whether it is up to date; if not, ``error`` has the reason.
        self.connected = False
        self.error = ""
        #: The keys that the last change wrote or deleted.
        self.recent: Collection[str] = ()
        #: Called on the loop after each complete change. They must not block.
        self.on_change: list[Callable[[], None]] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def entries(self) -> Mapping[str, Entry]:
        """By key; always the same dictionary, changed in place between two turns of the loop."""
        return self._entries

    def under(self, prefix: str) -> list[Entry]:
        """The entries under a prefix, sorted by key."""
        return [self._entries[key] for key in sorted(key for key in self._entries if key.startswith(prefix))]

    async def start(self) -> None:
        """Return when the first listing is complete. Raise ``StoreUnavailable``."""
        self._adopt(await self._store.list(self.prefix))
        self.connected = True
        self._watching = asyncio.create_task(self._watch(), name=f"mirror {self.prefix}")

    async def stop(self) -> None:
        """The entries stay as they are."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        self.connected = False

    async def changed(self, after_revision: int, timeout: float) -> bool:  # noqa: ASYNC109
        """Whether it has passed a revision; wait for that up to ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self.revision <= after_revision:
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting.add(waiting)
                    try:
                        await waiting
                    finally:
                        self._waiting.discard(waiting)
        except TimeoutError:
            return False
        return True

    async def catch_up(self, revision: int) -> None:
        """Wait until it has reached a revision, so that a caller can read its own write. Raise
        ``StoreUnavailable``."""
        while not await self.changed(revision - 1, _ASK_AFTER):
            snapshot = await self._store.list(self.prefix)
            if snapshot.revision > self.revision:
                self._adopt(snapshot)

    async def _watch(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._store.watch(self.prefix, self.revision)) as watch:  # type: ignore[type-var]
                    async for changes in watch:
                        self._apply(changes)
                        # A burst of changes is here at once: each is a turn of the loop of its own.
                        await asyncio.sleep(0)
            except Compacted:
                # The store is healthy: this copy was too far behind.
                pass
            except Exception as error:
                self._broken(error)
            await self._list_again()

    async def _list_again(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                snapshot = await self._store.list(self.prefix)
            except Exception as error:
                self._broken(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            if not self.connected:
                self.connected, self.error = True, ""
                log.info("store is back", store=self._store.url, revision=snapshot.revision)
            self._adopt(snapshot)
            return

    def _broken(self, error: Exception) -> None:
        expected = isinstance(error, StoreUnavailable)
        self.error = error.message if isinstance(error, StoreUnavailable) else f"{type(error).__name__}: {error}"
        if self.connected:
            self.connected = False
            # An unexpected error is logged with its traceback; it must not end the mirror either.
            log.warning(
                "store is unavailable, continuing with the last known state",
                store=self._store.url,
                error=self.error,
                exc_info=None if expected else error,
            )

    def _apply(self, changes: Changes) -> None:
        if changes.revision <= self.revision:
            # ``catch_up`` was ahead of the watch.
            return
        for entry in changes.written:
            self._entries[entry.key] = entry
        for key in changes.deleted:
            self._entries.pop(key, None)
        self._arrive(changes.revision, {*changes.deleted, *(entry.key for entry in changes.written)})

    def _adopt(self, snapshot: Snapshot) -> None:
        before, after = self._entries, snapshot.entries
        differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        if differing:
            self._entries.clear()
            self._entries.update(snapshot.entries)
        self._arrive(snapshot.revision, differing)

    def _arrive(self, revision: int, differing: Collection[str]) -> None:
        self.revision = revision
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        if not differing:
            return
        self.recent = differing
        for callback in list(self.on_change):
            try:
                callback()
            except Exception:
                # An error of one listener must not affect the others.
                log.exception("a listener of the store's mirror failed", prefix=self.prefix)
