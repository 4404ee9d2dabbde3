"""The figures of one run, and what they are in runs drawn from its blocks of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isochrone.bench.analysis.distribution import Distribution
from isochrone.bench.analysis.summary import answer_instants, is_answered, is_error, unseen_ns
from isochrone.bench.analysis.time_blocks import (
    FEWEST_SLOTS,
    block_length,
    correlated_slots,
    drawn_weights,
    slot_count,
    slot_means,
    slot_numbers,
)
from isochrone.bench.results.outcomes import OK, Outcomes, Run
from isochrone.clock import SECOND

DRAWS = 1000

_BODY_EDGES = 512
_TAIL_EDGES = 512
#: So many requests over a percentile at least: fewer are hardly ever drawn differently.
_FEWEST_OVER = 10


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure: as measured, and in each draw. No draws: too few requests."""

    value: float
    draws: NDArray[np.float64] | None


class Bootstrap:
    """Draws from the blocks of time of one run. The same seed gives the same draws."""

    def __init__(self, run: Run, seed: int) -> None:
        outcomes = run.outcomes
        self._run = run
        self._outcome = outcomes.outcome
        answered = is_answered(self._outcome)
        self._length_ns = max(run.seconds * SECOND, 1.0)
        self._slots = slot_count(len(outcomes))
        self._slot = slot_numbers(outcomes.intended_ns, self._length_ns, self._slots)
        self._answered_slot = self._slot[answered]
        #: Of answered requests, in ns, from the intended instant.
        self.latency = (outcomes.ended_ns - outcomes.intended_ns)[answered]
        has_first = answered & (outcomes.first_ns >= 0)
        self.first_token = (outcomes.first_ns - outcomes.intended_ns)[has_first]
        self._first_slot = self._slot[has_first]
        self.correlated = max(correlated_slots(series) for series in self._series())
        self._block = block_length(self._slots, self.correlated)
        self._weights: NDArray[np.float64] | None = None
        if self._slots >= FEWEST_SLOTS:
            self._weights = drawn_weights(np.random.default_rng(seed), self._slots, self._block, DRAWS)

    @property
    def slot_seconds(self) -> float:
        return self._length_ns / self._slots / SECOND

    @property
    def correlated_seconds(self) -> float:
        return self.correlated * self.slot_seconds

    @property
    def is_block_capped(self) -> bool:
        """Whether blocks are shorter than twice the correlated distance, since there would be too few of them."""
        return self._slots >= FEWEST_SLOTS and self._block < 2 * self.correlated

    @property
    def block_seconds(self) -> float:
        return self._block * self.slot_seconds

    def percentiles(self, percents: tuple[float, ...], *, first_token: bool = False) -> list[Drawn]:
        values, slot = (self.first_token, self._first_slot) if first_token else (self.latency, self._answered_slot)
        if not len(values):
            return [Drawn(0.0, None) for _ in percents]
        distribution = Distribution(values)
        measured = [distribution.percentile(percent) for percent in percents]
        drawn = self._drawn_percentiles(distribution, slot, percents)
        enough = [len(values) * (1 - percent / 100) >= _FEWEST_OVER - 1e-6 for percent in percents]
        return [
            Drawn(0.0 if estimate is None else estimate.value, column if is_enough else None)
            for estimate, column, is_enough in zip(measured, drawn, enough, strict=True)
        ]

    def rate(self) -> Drawn:
        """Answers per second."""
        return self._per_second(lambda part: is_answered(part.outcome))

    def goodput(self) -> Drawn:
        """Answers within the deadline per second."""
        return self._per_second(lambda part: part.outcome == OK)

    def error_share(self) -> Drawn:
        errors = is_error(self._outcome)
        if not len(errors):
            return Drawn(0.0, None)
        if self._weights is None:
            return Drawn(float(errors.mean()), None)
        total = self._weights @ np.bincount(self._slot, minlength=self._slots)
        return Drawn(
            float(errors.mean()),
            self._weights @ np.bincount(self._slot[errors], minlength=self._slots) / np.maximum(total, 1),
        )

    def _series(self) -> list[NDArray[np.float64]]:
        """What may be correlated in time: the body of the latency, its tail, and errors."""
        slots = self._slots
        series = [slot_means(self._slot, is_error(self._outcome).astype(np.float64), slots)]
        if len(self.latency):
            latency = np.maximum(self.latency, 1)
            tail = (latency > np.quantile(latency, 0.95)).astype(np.float64)
            series.append(slot_means(self._answered_slot, np.log(latency), slots))
            series.append(slot_means(self._answered_slot, tail, slots))
        return series

    def _per_second(self, members: Callable[[Outcomes], NDArray[np.bool_]]) -> Drawn:
        instants = answer_instants(self._run, members)
        counts = np.bincount(slot_numbers(instants, self._length_ns, self._slots), minlength=self._slots)
        seconds = max(self._length_ns - unseen_ns(self._run), 1.0) / SECOND
        value = float(counts.sum()) / seconds
        return Drawn(value, None if self._weights is None else self._weights @ counts / seconds)

    def _drawn_percentiles(
        self, distribution: Distribution, slot: NDArray[np.int64], percents: tuple[float, ...]
    ) -> list[NDArray[np.float64] | None]:
        if self._weights is None:
            return [None for _ in percents]
        edges = _edges(distribution.sorted)
        # Each value counts at the next edge: up to 1,024 values, every value is an edge.
        bins = np.searchsorted(edges, distribution.values, side="left")
        table = np.bincount(slot * len(edges) + bins, minlength=self._slots * len(edges)).reshape(self._slots, -1)
        # By edge and slot: how many values of the slot are not above the edge.
        cumulative = np.ascontiguousarray(np.cumsum(table, axis=1).T, dtype=np.float64)
        totals = self._weights @ cumulative[-1]
        return [self._searched(edges, cumulative, totals * (percent / 100)) for percent in percents]

    def _searched(
        self, edges: NDArray[np.int64], cumulative: NDArray[np.float64], wanted: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """In each draw, the first edge that as many values as wanted do not exceed: all draws bisect at once."""
        assert self._weights is not None
        low, high = np.zeros(DRAWS, dtype=np.int64), np.full(DRAWS, len(edges) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            reached = np.einsum("ds,ds->d", self._weights, cumulative[middle]) >= wanted - 1e-6
            low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
        return edges[low].astype(np.float64)


def _edges(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Values of the sorted column, evenly through its body and closer towards its end. The highest is among them."""
    count = len(values)
    if count <= _BODY_EDGES + _TAIL_EDGES:
        return np.unique(values)
    body = np.linspace(0, count - 1, _BODY_EDGES)
    tail = count - np.geomspace(1, count, _TAIL_EDGES)
    return np.unique(values[np.concatenate((body, tail)).astype(np.int64)])
