"""Which requests are logged: an even share of all, and failures up to a rate. Pure: no clock, no randomness."""

from __future__ import annotations

from isochrone.observe.failure_limit import FailureLimit


class LoggedShare:
    """An even share of requests, and failures up to a rate."""

    __slots__ = ("_every", "_next", "failures", "until")

    def __init__(self, share: float, failures: FailureLimit) -> None:
        #: Requests from one that is due to the next; 0: none is.
        self._every = 1 / share if share > 0 else 0.0
        self._next = self._every
        #: The number of requests until one is due, that one included; 0 and below: none ever is.
        self.until = round(self._next)
        self.failures = failures

    def is_due(self) -> bool:
        """Counts a request."""
        self.until -= 1
        if self.until:
            return False
        # Intervals such as 3.3 are kept on average.
        before = round(self._next)
        self._next += self._every
        self.until = max(1, round(self._next) - before)
        return True

    def takes(self, is_failure: bool, now: int) -> bool:
        """Whether a request that has ended is logged."""
        return self.is_due() or (is_failure and self.failures.takes(now))
