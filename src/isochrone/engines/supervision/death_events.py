"""Tells the fleet's events of processes that ended without being asked to.

A process that dies again and again is told of a few times, then once a minute with the number of deaths in between:
events are kept in limited number, and one crash loop must not push everything else out.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import time

from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EventRecord
from isochrone.engines.base import Exit
from isochrone.engines.supervision.observation import SUPERVISOR
from isochrone.gateway.lost_workers import ADVICE
from isochrone.store.base import Store, StoreUnavailable

#: Deaths of one process that are told at once, and seconds until one more may be.
_AT_ONCE, _REFILL_SECONDS = 3, 60.0
#: Signals that a process brings upon itself.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT))
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Limit:
    """How many deaths of one process may be told now. Pure: the caller brings the time, in seconds."""

    def __init__(self) -> None:
        self._left = float(_AT_ONCE)
        self._at = 0.0
        self._silent = 0

    def take(self, now: float) -> int | None:
        """Deaths that were not told since the last one that was; None: this one is not told either."""
        self._left = min(_AT_ONCE, self._left + (now - self._at) / _REFILL_SECONDS) if self._at else self._left
        self._at = now
        if self._left < 1:
            self._silent += 1
            return None
        self._left -= 1
        silent, self._silent = self._silent, 0
        return silent


def death_record(ended: Exit, silent: int, at: float) -> EventRecord:
    """The event of one death. ``silent``: deaths before it that were not told. ``at``: seconds since 1970."""
    how = f"process {ended.pid} {ended.how}" if ended.pid else "it could not be started"
    if ended.status < 0:
        try:
            how += f" ({signal.Signals(-ended.status).name})"
        except ValueError:
            pass  # a real-time signal has no name
    if ended.spec.role == "worker" and -ended.status in _CRASHES:
        how += f", which a model's code may have caused: {ADVICE}"
    words = [how, f"starting it again in {ended.again_in or 0:g} s"]
    if silent:
        words.append(f"{silent} more death{'s' if silent > 1 else ''} since the last event")
    return EventRecord(at, SUPERVISOR, f"{ended.spec.role} died", ended.spec.name, "; ".join(words))


class Deaths:
    """Of the processes of one supervisor."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._limits: dict[str, Limit] = {}

    async def report(self, ended: Exit) -> None:
        """Returns when the event is written, however long the store is away."""
        silent = self._limits.setdefault(ended.spec.name, Limit()).take(time.monotonic())
        if silent is None:
            return
        written = event(self._keys, death_record(ended, silent, time.time()), secrets.token_hex(4))
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._store.transact((), (written,))
                return
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
