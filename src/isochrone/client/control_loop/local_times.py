"""How long the local model takes, from its runs so far. Pure."""

from __future__ import annotations

from collections import deque

from isochrone.client.control_loop.quantiles import quantile_of

#: A few slow runs among so many are not waited for: a pause of the process comes once, not in every tick.
_RUNS = 32
_QUANTILE = 0.9


class LocalTimes:
    """Times are kept however old they are: while the remote model answers, there are no newer ones."""

    __slots__ = ("_estimate", "_runs")

    def __init__(self) -> None:
        self._runs: deque[int] = deque(maxlen=_RUNS)
        self._estimate: int | None = None

    def took(self, nanoseconds: int) -> None:
        self._runs.append(nanoseconds)
        self._estimate = quantile_of(self._runs, _QUANTILE)

    @property
    def estimate(self) -> int | None:
        """None: it has not run."""
        return self._estimate
