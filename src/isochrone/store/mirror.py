"""A live copy of everything under a prefix, in memory, for reading without waiting.

It is as new as the last watch event. When the store is away it keeps what it had and says so once; when the store is
back it lists anew and applies the differences as one change. It never writes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from isochrone.store.base import Changes, Compacted, Entry, Snapshot, Store, StoreUnavailable

log = structlog.get_logger()

#: Between tries to list while the store is away; doubles from the first to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: ``catch_up`` asks the store itself if the watch has not told by then: what changed may lie outside the prefix.
_ASK_AFTER = 0.05


class Mirror:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self.prefix = store, prefix
        self._entries: dict[str, Entry] = {}
        #: Of the store, when it was last heard.
        self.revision = 0
        #: Whether it follows the store now; if not, ``error`` says why.
        self.connected = False
        self.error = ""
        #: Called on the loop after each change was applied whole. They must not block.
        self.on_change: list[Callable[[], None]] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._following: asyncio.Task[None] | None = None

    @property
    def entries(self) -> Mapping[str, Entry]:
        """By key; the same dictionary always, changed in place between two turns of the loop."""
        return self._entries

    def under(self, prefix: str) -> list[Entry]:
        """By key."""
        return [self._entries[key] for key in sorted(key for key in self._entries if key.startswith(prefix))]

    async def start(self) -> None:
        """Returns with the first listing in. Raises ``StoreUnavailable`` if there is none to be had."""
        self._adopt(await self._store.list(self.prefix))
        self.connected = True
        self._following = asyncio.create_task(self._follow(), name=f"mirror {self.prefix}")

    async def stop(self) -> None:
        """The entries stay as they are."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        self.connected = False

    async def changed(self, after_revision: int, timeout: float) -> bool:  # noqa: ASYNC109
        """Whether it has come past a revision; waits for it up to ``timeout`` seconds."""
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
        """Waits until it has seen a revision, to read what one has written. Raises ``StoreUnavailable``."""
        while not await self.changed(revision - 1, _ASK_AFTER):
            snapshot = await self._store.list(self.prefix)
            if snapshot.revision > self.revision:
                self._adopt(snapshot)

    async def _follow(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._store.watch(self.prefix, self.revision)) as watch:  # type: ignore[type-var]
                    async for changes in watch:
                        self._apply(changes)
            except Compacted:
                # Nothing is wrong with the store: this copy was too far behind.
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
            # What no store should raise comes with its traceback; it must not end the mirror either.
            log.warning(
                "store is away, going on with what is known",
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
        self._arrive(changes.revision, bool(changes.written or changes.deleted))

    def _adopt(self, snapshot: Snapshot) -> None:
        differs = self._entries != snapshot.entries
        if differs:
            self._entries.clear()
            self._entries.update(snapshot.entries)
        self._arrive(snapshot.revision, differs)

    def _arrive(self, revision: int, differs: bool) -> None:
        self.revision = revision
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        if not differs:
            return
        for callback in list(self.on_change):
            try:
                callback()
            except Exception:
                # One listener's fault is not the others'.
                log.exception("a listener of the store's mirror failed", prefix=self.prefix)
