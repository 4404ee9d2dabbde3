"""Writes events for processes that died.

A process that dies repeatedly gets a few events, then one a minute with the number of deaths in between: the number of
events is limited, and one crash loop must not displace all others.
"""

from __future__ import annotations

import secrets
import signal
import time

from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import SUPERVISOR, EventRecord
from isochrone.engines.base import Exit
from isochrone.gateway.requests.suspected import ADVICE
from isochrone.store.base import Store
from isochrone.store.retrying import until_available

#: Deaths of one process that get an event at once, and seconds until one more may.
_AT_ONCE, _REFILL_SECONDS = 3, 60.0
#: Signals of a crash.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT))


class Limit:
    """A token bucket for the events of one process. Pure: the caller passes the time, in seconds."""

    def __init__(self) -> None:
        self._left = float(_AT_ONCE)
        self._at = 0.0
        self._silent = 0

    def take(self, now: float) -> int | None:
        """The number of deaths without an event since the last event; None: this death gets none either."""
        self._left = min(_AT_ONCE, self._left + (now - self._at) / _REFILL_SECONDS) if self._at else self._left
        self._at = now
        if self._left < 1:
            self._silent += 1
            return None
        self._left -= 1
        silent, self._silent = self._silent, 0
        return silent


def death_record(ended: Exit, silent: int, at: float) -> EventRecord:
    """The event of one death. ``silent``: deaths before it without an event. ``at``: seconds since 1970."""
    how = f"process {ended.pid} {ended.how}" if ended.pid else ended.reason or "it could not be started"
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


class DeathEvents:
    """The death events of one supervisor's processes."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._limits: dict[str, Limit] = {}

    async def report(self, ended: Exit) -> None:
        """Return when the event is written, however long the store is unavailable."""
        silent = self._limits.setdefault(ended.spec.name, Limit()).take(time.monotonic())
        if silent is None:
            return
        written = event(self._keys, death_record(ended, silent, time.time()), secrets.token_hex(4))
        await until_available(lambda: self._store.transact((), (written,)))
