"""Decides which processes are lost: those without any sign of life for a while. Pure: the caller passes the time.

Three signs are independent of each other: an answer to the engine, a record in the store under a lease, and an answer
on the process's own port. An overloaded machine may be late with one of them, a lost one gives none.
"""

from __future__ import annotations

from collections.abc import Collection

#: Seconds without any sign. An answer to the engine may be some seconds late already, and a lease has to expire.
LOST_SECONDS = 2.0


class SignsOfLife:
    """Of the processes of one supervisor, by name."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def seen(self, name: str, now: float) -> None:
        self._last[name] = now

    def lost(self, silent: Collection[str], now: float) -> frozenset[str]:
        """``silent``: processes that give no sign now. Time counts from the first call that names them."""
        return frozenset(name for name in silent if now - self._last.setdefault(name, now) >= LOST_SECONDS)

    def forget(self, name: str) -> None:
        """Its next process starts over."""
        self._last.pop(name, None)
