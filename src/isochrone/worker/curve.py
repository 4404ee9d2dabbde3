"""How long a batch of each size takes, kept live: the one measure scheduling decisions stand on.

Pure. Fed with every run (warm-up first), asked for estimates. An estimate is cautious: the running mean plus twice the
running mean deviation, as TCP does for its timeouts (RFC 6298), interpolated between measured sizes.
"""

from __future__ import annotations

_REBUILD_EVERY = 32


class LatencyCurve:
    """Estimates in ns by rows."""

    __slots__ = ("_deviation", "_known", "_mean", "_since", "estimates", "max_rows")

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max(1, max_rows)
        self._mean = [0.0] * (self.max_rows + 1)
        self._deviation = [0.0] * (self.max_rows + 1)
        self._known: list[int] = []
        self._since = 0
        #: estimates[rows] in ns; 0: nothing is known yet. Read directly on the hot path.
        self.estimates = [0] * (self.max_rows + 1)

    def observe(self, rows: int, nanoseconds: int) -> None:
        """One run of ``rows`` took this long."""
        if rows > self.max_rows:
            return
        mean = self._mean[rows]
        if mean == 0.0:
            self._mean[rows] = float(nanoseconds)
            self._deviation[rows] = nanoseconds / 8
            self._known.append(rows)
            self._known.sort()
            self._rebuild()
            return
        deviation = self._deviation[rows]
        # One stall of a shared machine must not shut the door for the next hundred requests: its weight is bounded.
        error = min(nanoseconds - mean, mean + 8 * deviation)
        self._mean[rows] = mean + error / 8
        self._deviation[rows] = deviation + (abs(error) - deviation) / 8
        self._since += 1
        if self._since >= _REBUILD_EVERY or abs(error) > 2 * deviation:
            self._rebuild()

    def estimate(self, rows: int) -> int:
        """Expected ns for a batch of ``rows``; beyond the largest size, in proportion; 0 when nothing is known."""
        if rows <= self.max_rows:
            return self.estimates[rows]
        return self.estimates[self.max_rows] * rows // self.max_rows

    def mean(self, rows: int) -> float:
        """The running mean of one size, without caution; 0 when that size was never run."""
        return self._mean[min(rows, self.max_rows)]

    def largest_within(self, nanoseconds: int, limit: int) -> int:
        """The most rows, up to ``limit``, whose estimate is within the time; 0: not even one."""
        estimates = self.estimates
        rows = min(limit, self.max_rows)
        if estimates[rows] <= nanoseconds:
            return rows
        low = 0
        while low < rows:
            middle = (low + rows + 1) >> 1
            if estimates[middle] <= nanoseconds:
                low = middle
            else:
                rows = middle - 1
        return low

    def _rebuild(self) -> None:
        self._since = 0
        known = self._known
        cautious = {rows: self._mean[rows] + 2 * self._deviation[rows] for rows in known}
        estimates = self.estimates
        previous, floor = known[0], 0.0
        for rows in range(1, self.max_rows + 1):
            if rows in cautious:
                previous, value = rows, cautious[rows]
            else:
                following = next((size for size in known if size > rows), None)
                if rows < known[0]:
                    value = cautious[known[0]]
                elif following is None:
                    value = cautious[previous] * rows / previous
                else:
                    share = (rows - previous) / (following - previous)
                    value = cautious[previous] + share * (cautious[following] - cautious[previous])
            # A larger batch is never expected to be faster: noise must not say so.
            floor = max(floor, value)
            estimates[rows] = int(floor)
