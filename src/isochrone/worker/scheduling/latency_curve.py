"""The measured time of a batch by its size, which every scheduling decision uses. Pure.

Every run updates it, beginning with warm-up. An estimate is cautious: the running mean plus twice the running mean
deviation, as in TCP's timeouts (RFC 6298), interpolated between measured sizes. Caution costs goodput (a batch planned
20 % too long is 20 % too small), so it is limited to what was observed: one stall of a shared machine has bounded
weight, and a size with few runs adopts the scatter and the drift of the others.
"""

from __future__ import annotations

from bisect import bisect_left

#: Runs between two rebuilds of the estimates; fewer after an unexpected time.
_REBUILD_EVERY = 32
_REBUILD_UNEXPECTED = 8
#: Weight of one run in mean and deviation, once there were enough runs.
_GAIN = 1 / 8
#: Relative deviation assumed before any measurement, and its weight in runs.
_ASSUMED_SCATTER = 1 / 16
_ASSUMED_RUNS = 8


class RunningTime:
    """Running mean and deviation of one duration."""

    __slots__ = ("_deviation", "_mean")

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0

    def observe(self, nanoseconds: int) -> None:
        if not self._mean:
            self._mean = float(nanoseconds)
            return
        # Bounded, as in the curve: one stall must not cause rejections.
        error = min(nanoseconds - self._mean, 4 * self._deviation + self._mean / 4)
        self._mean += error * _GAIN
        self._deviation += (abs(error) - self._deviation) * _GAIN

    def relax(self) -> None:
        """Lowers the estimate, as ``LatencyCurve.relax``."""
        self._mean *= 0.7
        self._deviation *= 0.7

    @property
    def cautious(self) -> int:
        """The mean plus twice the deviation; 0 before any measurement."""
        return int(self._mean + 2 * self._deviation)


class LatencyCurve:
    """Estimates in ns by rows."""

    __slots__ = (
        "_best",
        "_deviation",
        "_known",
        "_mean",
        "_runs",
        "_scatter",
        "_since",
        "estimates",
        "fastest",
        "max_rows",
    )

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max(1, max_rows)
        self._mean = [0.0] * (self.max_rows + 1)
        self._deviation = [0.0] * (self.max_rows + 1)
        #: The lowest each mean has been: how far ``relax`` may go.
        self._best = [0.0] * (self.max_rows + 1)
        #: By rows: the fastest run; 0: that size was never run.
        self.fastest = [0] * (self.max_rows + 1)
        self._runs = [0] * (self.max_rows + 1)
        self._known: list[int] = []
        #: Mean deviation relative to the mean, over all sizes.
        self._scatter = _ASSUMED_SCATTER
        self._since = 0
        #: estimates[rows] in ns; 0: nothing is measured yet. Read directly on the hot path.
        self.estimates = [0] * (self.max_rows + 1)

    def observe(self, rows: int, nanoseconds: int) -> None:
        """Adds the time of one run of ``rows``."""
        if not 0 < rows <= self.max_rows or nanoseconds <= 0:
            return
        runs = self._runs[rows] = self._runs[rows] + 1
        if runs == 1 or nanoseconds < self.fastest[rows]:
            self.fastest[rows] = nanoseconds
        if runs == 1:
            self._mean[rows] = self._best[rows] = float(nanoseconds)
            self._known.append(rows)
            self._known.sort()
            self._rebuild()
            return
        mean, deviation = self._mean[rows], self._cautious_deviation(rows)
        # The weight of a run is bounded: one stall of a shared machine must not cause the rejection of the next hundred
        # requests. A lasting change grows the deviation and so the bound: the mean follows within about ten runs.
        bound = 4 * deviation + mean / 32
        error = min(max(nanoseconds - mean, -bound), bound)
        gain = max(_GAIN, 1 / runs)
        self._mean[rows] = mean + error * gain
        if self._mean[rows] < self._best[rows]:
            self._best[rows] = self._mean[rows]
        self._deviation[rows] += (abs(error) - self._deviation[rows]) * max(_GAIN, 1 / (runs - 1))
        self._scatter += (abs(error) / mean - self._scatter) * _GAIN / 2
        if not runs & 3:
            self._drift(rows, error / mean)
        self._since += 1
        if self._since >= _REBUILD_EVERY or (self._since >= _REBUILD_UNEXPECTED and abs(error) > 2 * deviation):
            self._rebuild()

    def relax(self) -> None:
        """Lowers the estimates a step towards the best times that were measured.

        Called when these estimates cause rejections and no run corrects them: times from a bad moment would otherwise
        reject requests forever.
        """
        for rows in self._known:
            self._mean[rows] = max(self._best[rows], self._mean[rows] * 0.7)
            self._deviation[rows] *= 0.7
        self._scatter = max(_ASSUMED_SCATTER, self._scatter * 0.7)
        if self._known:
            self._rebuild()

    def _drift(self, rows: int, relative_error: float) -> None:
        """Moves the neighbouring sizes a little: a size that is never chosen must not keep an outdated time."""
        known = self._known
        position = bisect_left(known, rows)
        change = 1 + relative_error * _GAIN
        if position:
            self._mean[known[position - 1]] *= change
        if position + 1 < len(known):
            self._mean[known[position + 1]] *= change

    def _cautious_deviation(self, rows: int) -> float:
        runs = self._runs[rows] - 1
        assumed = self._scatter * self._mean[rows]
        return (runs * self._deviation[rows] + _ASSUMED_RUNS * assumed) / (runs + _ASSUMED_RUNS)

    def estimate(self, rows: int) -> int:
        """Expected ns for a batch of ``rows``; beyond the largest size, in proportion; 0 before any measurement."""
        if rows <= self.max_rows:
            return self.estimates[rows]
        return self.estimates[self.max_rows] * rows // self.max_rows

    def mean(self, rows: int) -> float:
        """The running mean of one size, without caution; 0 when that size was never run."""
        return self._mean[min(rows, self.max_rows)]

    def _rebuild(self) -> None:
        self._since = 0
        estimates = self.estimates
        floor = 0.0
        before, value = 0, 0.0
        for rows in self._known:
            following = self._mean[rows] + 2 * self._cautious_deviation(rows)
            # A larger batch is never expected to be faster.
            following = max(following, floor)
            # Below the smallest measured size, its time; between two sizes, a straight line.
            slope = (following - value) / (rows - before) if before else 0.0
            for between in range(before + 1, rows):
                estimates[between] = max(1, int(value + slope * (between - before) if before else following))
            estimates[rows] = max(1, int(following))
            before, value, floor = rows, following, following
        for beyond in range(before + 1, self.max_rows + 1):
            estimates[beyond] = max(1, int(value * beyond / before))
