"""The search for the best configuration: measured points in, the next configuration to measure out. Pure.

Every configuration has a value, measured or expected (``estimates``). As long as the best one is only expected, it is
measured next. When the best one is measured, its neighbours are, if they were best with times a little below those that
are expected; then the search ends. It starts with one instance on one thread, at batch 1 and at a larger batch, which
give the fixed cost and the cost per row, and with an instance on every core, which gives the contention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from isochrone.clock import SECOND
from isochrone.optimize.profiling.search.estimates import Estimates
from isochrone.optimize.profiling.search.objective import Value, best, value_of
from isochrone.optimize.profiling.search.space import Configuration, Space

#: So many measurements are always allowed, however small a full sweep is.
_FEW_POINTS = 8
#: The second size: large enough that the cost per row is apart from the noise of the fixed cost.
_SECOND_BATCH = 8
#: Runs that may last longer are not the second to be measured.
_LONG_NS = 0.5 * SECOND
#: How far below its expected time the time of a neighbour may be: of other instances, and of another size only.
_DOUBT = 0.75
_DOUBT_OF_SIZE = 0.9
#: Neighbours with other instances that are measured although they are not expected to be best.
_MOST_DOUBTS = 6
#: Runs that take so many times the median are taken for stalls of a shared machine, until they are seen again.
_STALL = 1.2


@dataclass(frozen=True, slots=True)
class Point:
    """A measured configuration."""

    configuration: Configuration
    run_ns: float
    p99_ns: float
    rows_per_second: float
    runs: int = 0
    #: Resident memory of the loaded instances and of their runs; None: unknown.
    memory_bytes: int | None = None
    #: Cores that other processes used meanwhile, on average.
    other_cores: float = 0.0

    @property
    def value(self) -> Value:
        return value_of(self.configuration, self.rows_per_second, self.p99_ns)


class Search:
    """``most_points`` bounds the measurements; None: a tenth of those of a full sweep, and at least eight."""

    def __init__(self, space: Space, slo_ns: float | None = None, most_points: int | None = None) -> None:
        self._space = tuple(space)
        self._slo_ns = slo_ns
        self._most = max(_FEW_POINTS, len(space.sweep()) // 10) if most_points is None else most_points
        self._points: dict[Configuration, Point] = {}
        self._failed: list[Configuration] = []
        self._taken = 0
        #: Configurations that were proposed because they were expected to be best, in order.
        self._expected: dict[Configuration, None] = {}
        self._repeated: set[Configuration] = set()
        self._doubts = 0

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(self._points.values())

    def add(self, point: Point) -> None:
        """Of two measurements of one configuration the better one counts: load of others only makes it worse."""
        self._taken += 1
        before = self._points.get(point.configuration)
        self._points[point.configuration] = point if before is None else self._better(before, point)

    def fail(self, configuration: Configuration) -> None:
        """The model failed there: larger batches and more instances are not measured."""
        self._taken += 1
        self._failed.append(configuration)

    def propose(self) -> Configuration | None:
        """The next configuration to measure; None: the search has ended."""
        if self._taken >= self._most:
            return None
        first = self._next_first()
        if first is not None:
            return first
        if not self._points:
            return None
        estimates = Estimates(self._times())
        tail = median(point.p99_ns / point.run_ns for point in self._points.values())
        found = best((self._value(each, estimates, tail) for each in self._allowed()), self._slo_ns)
        if found.configuration not in self._points:
            self._expected[found.configuration] = None
            return found.configuration
        again = self._surprising()
        return self._neighbour(found, estimates, tail) if again is None else again

    def found(self) -> Point | None:
        """The best measured configuration so far; None: nothing is measured."""
        if not self._points:
            return None
        chosen = best((point.value for point in self._points.values()), self._slo_ns)
        return self._points[chosen.configuration]

    def _next_first(self) -> Configuration | None:
        """Of the three configurations with which a search begins, the one that is missing."""
        alone = [each for each in self._allowed() if each.pair == (1, 1)]
        if not alone:
            return None
        point = self._points.get(alone[0])
        if point is None:
            return alone[0]
        larger = [each for each in alone if each.batch > 1]
        second = next((each for each in larger if each in self._points), None)
        if larger and second is None:
            quick = [each for each in larger if each.batch <= _SECOND_BATCH and each.batch * point.run_ns <= _LONG_NS]
            return quick[-1] if quick else larger[0]
        batch = alone[0].batch if second is None else second.batch
        several = [each for each in self._allowed() if each.threads == 1 and each.instances > 1]
        if not several or any(each in self._points for each in several):
            return None
        return max((each for each in several if each.batch <= batch), key=lambda each: (each.instances, each.batch))

    def _allowed(self) -> Iterable[Configuration]:
        return [each for each in self._space if each in self._points or not self._beyond_failure(each)]

    def _beyond_failure(self, given: Configuration) -> bool:
        return any(given.batch >= each.batch and given.instances >= each.instances for each in self._failed)

    def _times(self) -> dict[tuple[int, int], dict[int, float]]:
        times: dict[tuple[int, int], dict[int, float]] = {}
        for configuration, point in self._points.items():
            times.setdefault(configuration.pair, {})[configuration.batch] = point.run_ns
        return times

    def _value(self, configuration: Configuration, estimates: Estimates, tail: float) -> Value:
        point = self._points.get(configuration)
        if point is not None:
            return point.value
        return self._expect(configuration, estimates.run_ns(configuration.batch, configuration.pair), tail)

    def _neighbour(self, found: Value, estimates: Estimates, tail: float) -> Configuration | None:
        """A neighbour of the best configuration that might be better than expected, and then the best.

        Other sizes come first: they need no load, and their times are known best.
        """
        here = found.configuration
        neighbours = [each for each in self._allowed() if each not in self._points and _are_neighbours(each, here)]
        sizes = [each for each in neighbours if each.pair == here.pair]
        others = [each for each in neighbours if each.pair != here.pair] if self._doubts < _MOST_DOUBTS else []
        for doubted, doubt in ((sizes, _DOUBT_OF_SIZE), (others, _DOUBT)):
            values = [self._expect(each, estimates.run_ns(each.batch, each.pair) * doubt, tail) for each in doubted]
            chosen = best([found, *values], self._slo_ns).configuration
            if chosen != here:
                self._doubts += doubted is others
                return chosen
        return None

    def _expect(self, configuration: Configuration, run_ns: float, tail: float) -> Value:
        throughput = configuration.batch * configuration.instances / run_ns * SECOND
        return value_of(configuration, throughput, run_ns * tail)

    def _better(self, one: Point, other: Point) -> Point:
        chosen = best((one.value, other.value), self._slo_ns)
        return one if chosen == one.value else other

    def _surprising(self) -> Configuration | None:
        """A configuration that was expected to be best, and whose slowest runs alone break the SLO; once."""
        for configuration in self._expected:
            point = self._points.get(configuration)
            if point is None or configuration in self._repeated or self._slo_ns is None:
                continue
            steady = value_of(configuration, point.rows_per_second, _STALL * point.run_ns)
            if steady.latency_ns <= self._slo_ns < point.value.latency_ns:
                self._repeated.add(configuration)
                return configuration
        return None


def _are_neighbours(one: Configuration, other: Configuration) -> bool:
    """One step apart: another size, other threads, other instances, or threads in exchange for instances."""
    sizes = _step(one.batch, other.batch)
    threads = _step(one.threads, other.threads)
    instances = _step(one.instances, other.instances)
    if one.pair == other.pair:
        return sizes
    return threads and instances and (sizes or one.batch == other.batch)


def _step(one: int, other: int) -> bool:
    """Equal, or at most twice as much."""
    low, high = sorted((one, other))
    return high <= 2 * low
