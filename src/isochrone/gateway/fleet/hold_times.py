"""How long strict switches held requests: a cumulative histogram for the metrics page. Pure."""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds in seconds; the last bucket has none.
BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class HoldTimes:
    """The holds of one gateway since its start."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    @property
    def total(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound → holds up to it, as Prometheus wants them."""
        found, below = [], 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found
