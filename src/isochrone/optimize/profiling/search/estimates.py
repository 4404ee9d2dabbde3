"""Expected times of configurations that are not measured, from those that are. Optimistic where nothing is known.

The time of a run is taken to be ``shape(batch) × threads(t) × contention(t × instances)``:

- ``shape``: fixed cost and cost per row, from the pair of threads and instances with the most measured sizes. Between
  two sizes it is a straight line, and beyond the last one the last line goes on.
- ``threads``: Amdahl's law, with the serial share that the nearest measured number of threads shows; until one is
  measured, an ideal speed-up.
- ``contention``: by the cores in use, from pairs of one thread; until one is measured, none.

A search that trusts these measures what might be best, and each measurement replaces an estimate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median

Curve = Sequence[tuple[float, float]]
Pair = tuple[int, int]


def on_curve(curve: Curve, position: float) -> float:
    """A value of a curve with ascending positions; beyond its ends, its outermost lines go on."""
    if len(curve) == 1:
        return curve[0][1]
    place = bisect_left([at for at, _ in curve], position)
    place = min(max(place, 1), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[place - 1], curve[place]
    return y0 + (y1 - y0) * (position - x0) / (x1 - x0)


class Estimates:
    """``times``: pair of threads and instances → batch size → measured nanoseconds. One pair at least has a time."""

    def __init__(self, times: Mapping[Pair, Mapping[int, float]]) -> None:
        self._curves: dict[Pair, Curve] = {pair: sorted(sizes.items()) for pair, sizes in times.items() if sizes}
        #: The pair whose shape stands for that of the others: of the most sizes, then the smallest.
        self._reference = min(self._curves, key=lambda pair: (-len(self._curves[pair]), pair))
        self._factors = {pair: self._factor(pair) for pair in self._curves}
        base = self._factors.get((1, 1))
        smallest = min(self._factors)
        self._base = self._factors[smallest] if base is None else base
        self._contention: Curve = sorted(
            {
                1: 1.0,
                **{count: factor / self._base for (threads, count), factor in self._factors.items() if threads == 1},
            }.items()
        )
        self._speed = self._speeds()

    def run_ns(self, batch: int, pair: Pair) -> float:
        curve = self._curves.get(pair)
        if curve is not None and len(curve) > 1:
            return _of_rows(curve, batch)
        shape = self._shape(batch)
        if curve is not None:
            at, time = curve[0]
            return shape * time / self._shape(int(at))
        threads, instances = pair
        return shape * self._base * self._thread_factor(threads) * self._contended(threads * instances)

    def _shape(self, batch: int) -> float:
        return _of_rows(self._curves[self._reference], batch)

    def _factor(self, pair: Pair) -> float:
        return median(time / self._shape(int(batch)) for batch, time in self._curves[pair])

    def _contended(self, cores: int) -> float:
        """Never below the factor of fewer cores: contention grows."""
        known = [factor for count, factor in self._contention if count <= cores]
        return max([1.0, on_curve(self._contention, cores), *known])

    def _speeds(self) -> dict[int, float]:
        """By measured threads: the time beside that of one thread, without contention."""
        by_threads: dict[int, list[float]] = {}
        for (threads, instances), factor in self._factors.items():
            if threads > 1:
                by_threads.setdefault(threads, []).append(factor / self._base / self._contended(threads * instances))
        return {threads: min(factors) for threads, factors in by_threads.items()}

    def _thread_factor(self, threads: int) -> float:
        if threads == 1:
            return 1.0
        if threads in self._speed:
            return self._speed[threads]
        if not self._speed:
            return 1 / threads
        nearest = min(self._speed, key=lambda known: abs(known - threads))
        serial = (self._speed[nearest] - 1 / nearest) / (1 - 1 / nearest)
        serial = min(max(serial, 0.0), 1.0)
        return serial + (1 - serial) / threads


def _of_rows(curve: Curve, batch: int) -> float:
    """A larger batch never takes less time, and never more per row than a smaller one that is measured."""
    time = on_curve(curve, batch)
    for rows, measured in curve:
        if rows <= batch:
            time = min(max(time, measured), measured * batch / rows) if rows < batch else measured
        else:
            time = max(min(time, measured), measured * batch / rows)
    return time
