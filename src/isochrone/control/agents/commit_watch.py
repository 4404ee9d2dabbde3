"""Watches the committed epoch from inside a worker, for the question whether it serves what is assigned to it: all
models of its pool or, in a planned pool, those that the placement record gives it.

Kubernetes asks it of each pod before an update replaces the next one. The watch begins with the first question: a
worker that nobody asks reads no epochs, which have some hundred kilobytes in a large fleet. While the store is
unavailable, the last epoch counts. Must never stop or slow the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from isochrone.control.agents.epoch_reading import EpochReader
from isochrone.control.rollout.committed import assigned, has_committed
from isochrone.control.state.assignment import NO_PLACEMENTS, Placements
from isochrone.control.state.codec import Unreadable, decode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord, PlacementRecord
from isochrone.store.base import Entry, Store, StoreUnavailable
from isochrone.store.mirror import Mirror

log = structlog.get_logger(__name__)

#: Seconds between two attempts to read the store for the first time.
_PAUSE = 1.0


class CommitWatch:
    """The watch of one worker, which belongs to ``pool``."""

    def __init__(self, store: Store, keys: Keys, pool: str, worker: str = "") -> None:
        self._key = keys.epoch
        self._pool = pool
        self._worker = worker
        self._mirror = Mirror(store, keys.epoch)
        self._placement_key = keys.placement(pool)
        self._placement_mirror = Mirror(store, self._placement_key)
        self._placements: Placements = NO_PLACEMENTS
        self._reader = EpochReader()
        #: The newest epoch that was read. An earlier one was put back.
        self._newest = 0
        #: None: the epoch is not known yet.
        self._assigned: Mapping[str, Assignment] | None = None
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def is_satisfied(self, served: Mapping[tuple[str, str], str]) -> bool:
        """Whether the worker has every version that the epoch assigns to it. ``served``: digests, by model and
        version.

        False while the epoch is not known: an update must not go on to the next worker while nobody can load models
        into this one. True if there is no epoch yet: the first models are loaded into workers that are ready.
        """
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="commit-watch")
        return self._assigned is not None and has_committed(served, self._assigned)

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._mirror.stop()
        await self._placement_mirror.stop()

    async def _watch(self) -> None:
        # The placement first: an epoch without it would mean all models of the pool.
        for mirror in (self._placement_mirror, self._mirror):
            await self._start(mirror)
        while True:
            self._changed.clear()
            # Each by itself: an unreadable placement keeps no worker from the epoch.
            try:
                self._read_placement(self._placement_mirror.entries.get(self._placement_key))
            except Unreadable as error:
                log.warning("the placement is unreadable; the last one counts", error=error.message)
            try:
                await self._read(self._mirror.entries.get(self._key))
            except Unreadable as error:
                log.warning("the committed epoch is unreadable; the last one counts", error=error.message)
            await self._changed.wait()

    async def _start(self, mirror: Mirror) -> None:
        mirror.on_change.append(self._changed.set)
        while not mirror.connected:
            try:
                await mirror.start()
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE)  # the worker's registration logs it
            except Exception:
                log.exception("the committed epoch could not be read; retried")
                await asyncio.sleep(_PAUSE)

    def _read_placement(self, entry: Entry | None) -> None:
        self._placements = {self._pool: decode(entry.value, PlacementRecord)} if entry is not None else NO_PLACEMENTS

    async def _read(self, entry: Entry | None) -> None:
        epoch = EpochRecord(0)
        if entry is not None:
            steps = self._reader.read(entry.value)
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    epoch = stop.value
                    break
                # An epoch of a thousand models must not hold the loop for milliseconds.
                await asyncio.sleep(0)
        if entry is not None and epoch.epoch < self._newest:
            raise Unreadable(f"epoch {epoch.epoch} was put back: epoch {self._newest} was committed")
        self._newest = epoch.epoch
        self._assigned = assigned(epoch, self._pool, self._worker, self._placements)
