"""When a fault that repeats is worth a log line: at its beginning, when its error changes, then ever more rarely. Pure.

A fault that comes and goes every second does not begin anew each time: it must have been away for a minute.
"""

from __future__ import annotations

from isochrone.clock import SECOND

_FIRST_PAUSE_NS = 60 * SECOND
_LONGEST_PAUSE_NS = 3600 * SECOND
#: Different errors of one fault that get a line of their own: some errors contain changing text.
_MOST_ERRORS = 8


class Outage:
    """The log lines of one fault."""

    __slots__ = ("_errors", "_is_end_due", "_next_line", "_pause_ns", "_quiet_since", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._errors: set[str] = set()
        self._next_line = self._pause_ns = self._quiet_since = 0
        self._is_end_due = False

    def failed(self, error: str, now: int) -> bool:
        """Whether to log this failure."""
        if not self.is_on and self._pause_ns and now - self._quiet_since >= _FIRST_PAUSE_NS:
            self._errors.clear()
            self._next_line = self._pause_ns = 0
        self.is_on = True
        is_new = error not in self._errors and len(self._errors) < _MOST_ERRORS
        if not is_new and now < self._next_line:
            return False
        self._errors.add(error)
        self._pause_ns = min(_LONGEST_PAUSE_NS, 2 * self._pause_ns) if self._pause_ns else _FIRST_PAUSE_NS
        self._next_line = now + self._pause_ns
        self._is_end_due = True
        return True

    def ended(self, now: int) -> bool:
        """Whether to log that the fault is over. Call it at every success."""
        if not self.is_on:
            return False
        self.is_on = False
        self._quiet_since = now
        # One end for each beginning that was logged.
        is_due, self._is_end_due = self._is_end_due, False
        return is_due
