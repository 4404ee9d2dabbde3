"""The pause before a process that died is restarted. Pure."""

from __future__ import annotations


class Backoff:
    """Exponential, up to a bound. A process that has lived for ``reset_after`` seconds starts over."""

    def __init__(self, first: float = 0.1, longest: float = 5.0, reset_after: float = 30.0) -> None:
        self.first = first
        self.longest = longest
        self.reset_after = reset_after
        self._next = first

    def pause(self, lived: float) -> float:
        """Seconds to wait after the death of a process that lived for ``lived`` seconds."""
        if lived >= self.reset_after:
            self._next = self.first
        pause = self._next
        self._next = min(2 * pause, self.longest)
        return pause
