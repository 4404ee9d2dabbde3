"""Reads the counters of the fleet in the background, once for all parts of the leader that need them.

Each part states its pools and its pause, and gets no more readings than that: the autoscaler was tuned at a rate of
readings. A fault of one part does not end the readings of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.scaling.reading.fleet_counters import FleetReading
from isochrone.control.scaling.reading.fleet_reading import FleetReader

log = structlog.get_logger(__name__)

#: Of a fleet so large that a reading takes long, the pause is twice what it takes, up to so many seconds.
_LONGEST_PAUSE = 8.0
#: Readings that are due within so many seconds are one.
_TOGETHER = 0.1
#: Seconds after which a part that has just got pools is noticed.
_NOTICE = 0.5


class Consumer(Protocol):
    """A part of the leader that readings are made for."""

    @property
    def pools(self) -> Collection[str]:
        """Whose workers are to be read; (): no reading is needed."""

    @property
    def pause(self) -> float:
        """Seconds between two readings."""

    async def take(self, reading: FleetReading) -> None:
        """All gateways, and at least the workers of ``pools`` and of pools that share models with them."""


class FleetReadings:
    """Of one fleet."""

    def __init__(
        self, records: LeaderRecords, consumers: Sequence[Consumer], reader: Callable[[], FleetReader] = FleetReader
    ) -> None:
        self._records = records
        self._consumers = consumers
        self._reader = reader
        self._tasks = BackgroundTasks()
        self._is_reading = False
        #: By consumer's place: when its next reading is due, of the monotonic clock.
        self._due: dict[int, float] = {}

    async def stop(self) -> None:
        self._is_reading = False
        await self._tasks.end()
        self._due.clear()

    def start(self) -> None:
        """Begin to read if a part needs it. The readings end by themselves when none does."""
        if not self._is_reading and any(each.pools for each in self._consumers):
            self._is_reading = True
            self._tasks.start(self._read())

    async def _read(self) -> None:
        reader = self._reader()
        try:
            while any(each.pools for each in self._consumers):
                now = time.monotonic()
                self._due = {
                    at: self._due.get(at, now) for at, consumer in enumerate(self._consumers) if consumer.pools
                }
                due = [at for at, instant in self._due.items() if instant <= now + _TOGETHER]
                if due:
                    await self._read_for([self._consumers[at] for at in due], reader)
                    took = time.monotonic() - now
                    for at in due:
                        pause = max(self._consumers[at].pause, min(2 * took, _LONGEST_PAUSE))
                        self._due[at] = now + took + pause
                next_due = min(self._due.values(), default=0.0) - time.monotonic()
                await asyncio.sleep(max(0.0, min(next_due, _NOTICE)))
        finally:
            self._is_reading = False
            await reader.close()

    async def _read_for(self, consumers: Sequence[Consumer], reader: FleetReader) -> None:
        try:
            pools = {pool for each in consumers for pool in each.pools}
            reading = await reader.read(self._records.view(), pools)
        except Exception as error:
            # Without readings everything stays as it is; a fault of ours must not end them for good.
            log.error("reading the fleet failed unexpectedly", exc_info=error)
            return
        for each in consumers:
            try:
                await each.take(reading)
            except Exception as error:
                log.error("a reading of the fleet could not be used", user=type(each).__name__, exc_info=error)
