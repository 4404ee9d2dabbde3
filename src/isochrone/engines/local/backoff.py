"""How long to wait before a process that died is started again. Pure: who asks brings the time it lived."""

from __future__ import annotations


class Backoff:
    """The first pause is short, since most deaths are one-off; each further one doubles, up to a bound.

    A process that has lived for a while had a good start: its next death counts as the first again.
    """

    def __init__(self, first: float = 0.1, longest: float = 5.0, forgiven_after: float = 30.0) -> None:
        self.first = first
        self.longest = longest
        self.forgiven_after = forgiven_after
        self._next = first

    def pause(self, lived: float) -> float:
        """Seconds to wait after a death, given for how many seconds the process had lived."""
        if lived >= self.forgiven_after:
            self._next = self.first
        pause = self._next
        self._next = min(2 * pause, self.longest)
        return pause
