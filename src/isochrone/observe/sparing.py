"""Limits how often a log line is written.

Apart from ``logs``: a model's own process limits lines that the worker writes for it, and the import of a logging
library would take a quarter of its start.
"""

from __future__ import annotations

from isochrone.clock import SECOND


class Sparing:
    """Limits the rate of a log line, and counts the suppressed lines: a model may fail at every request."""

    __slots__ = ("_every_ns", "_held_back", "_last")

    def __init__(self, every_ns: int = 60 * SECOND) -> None:
        self._every_ns = every_ns
        self._held_back = 0
        self._last: int | None = None

    def is_due(self, now: int) -> bool:
        return self._last is None or now - self._last >= self._every_ns

    def lets_through(self, now: int) -> int | None:
        """The number of lines suppressed since the last one, if a line is due; None: suppress this line."""
        if not self.is_due(now):
            self._held_back += 1
            return None
        self._last = now
        held_back, self._held_back = self._held_back, 0
        return held_back
