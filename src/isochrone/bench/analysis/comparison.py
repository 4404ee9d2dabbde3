"""Two runs beside each other: the difference of each figure, its confidence interval, and a verdict.

The intervals come from a bootstrap over blocks of time (``time_blocks``), of each run by itself, so runs of different
lengths and rates can be compared. They show the noise within the runs. A machine that has changed between two runs is a
difference like any other, so differences within a margin are not called: repeat the runs in turn before a small
difference is believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from isochrone.bench.analysis.bootstrap import Bootstrap, Drawn
from isochrone.bench.analysis.bottleneck import generator_limit
from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.analysis.summary import PERCENTILES
from isochrone.bench.results.outcomes import Run
from isochrone.clock import MILLISECOND

#: Higher than that of one figure by itself, since a dozen figures are judged together.
COMPARISON_CONFIDENCE = 0.99
#: A relative difference has to be larger for a verdict.
MARGIN = 0.02

_SEED_A, _SEED_B = 16, 17
#: Rates that differ by less are the same load.
_SAME_RATE = 0.02
_GROWN = 2.0
_FEWEST_FOR_GROWTH = 300
#: A sentence has so many figures, these first.
_MOST_SHOWN = 4
_SHOWN_FIRST = ("errors", "p99", "p50", "first token p99", "rate", "goodput")


class ComparisonVerdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    FEWER_ERRORS = "fewer errors"
    MORE_ERRORS = "more errors"
    NO_DIFFERENCE = "no difference shown"
    TOO_FEW = "not enough requests to tell"


_WORSE = (ComparisonVerdict.SLOWER, ComparisonVerdict.MORE_ERRORS)
_BETTER = (ComparisonVerdict.FASTER, ComparisonVerdict.FEWER_ERRORS)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both runs. Durations are in ns, rates per second, shares from 0 to 1."""

    name: str
    unit: str
    a: float
    b: float
    #: The interval of b - a; infinite where there are too few requests.
    low: float
    high: float
    verdict: ComparisonVerdict

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def relative(self) -> float | None:
        """b - a as a share of a."""
        return self.difference / self.a if self.a else None

    @property
    def sentence(self) -> str:
        """``p99 12 % slower (+1.1 ms to +1.9 ms)``."""
        if self.unit == "share":
            return f"{self.verdict} ({self.shown(self.low)} to {self.shown(self.high)})"
        size = f"{abs(self.relative) * 100:.1f} % " if self.relative is not None else ""
        return f"{self.name} {size}{self.verdict} ({self.shown(self.low)} to {self.shown(self.high)})"

    def shown(self, difference: float) -> str:
        """A difference with its sign and unit."""
        if not math.isfinite(difference):
            return "−∞" if difference < 0 else "+∞"
        sign = "−" if difference < 0 else "+"
        return sign + shown_figure(abs(difference), self.unit)

    def as_json(self) -> dict[str, Any]:
        scale = MILLISECOND if self.unit == "ns" else 1
        return {
            "unit": "ms" if self.unit == "ns" else self.unit,
            "a": self.a / scale,
            "b": self.b / scale,
            "difference": self.difference / scale,
            "low": self.low / scale if math.isfinite(self.low) else None,
            "high": self.high / scale if math.isfinite(self.high) else None,
            "relative": self.relative,
            "verdict": str(self.verdict),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What run b is, measured by run a."""

    differences: tuple[Difference, ...]
    #: Why the two runs cannot be compared: differences say nothing of the server.
    obstacles: tuple[str, ...]
    #: Why they cannot be compared well.
    warnings: tuple[str, ...]
    #: The blocks of time of each run, and how far apart in time its requests are still correlated.
    block_seconds: tuple[float, float]
    correlated_seconds: tuple[float, float]
    #: The blocks are shorter than the correlation asks for.
    is_block_capped: bool = False

    @property
    def is_comparable(self) -> bool:
        return not self.obstacles

    @property
    def is_regression(self) -> bool:
        """Whether b is shown to be worse in any figure."""
        return self.is_comparable and any(
            each.verdict in (ComparisonVerdict.SLOWER, ComparisonVerdict.MORE_ERRORS) for each in self.differences
        )

    @property
    def sentence(self) -> str:
        """The verdict in one sentence: what is worse first, then what is better; of many, those asked for most."""
        if self.obstacles:
            return f"The runs cannot be compared. {' '.join(self.obstacles)}"
        worse = [each for each in self.differences if each.verdict in _WORSE]
        better = [each for each in self.differences if each.verdict in _BETTER]
        if worse or better:
            shown = sorted(worse + better, key=_order)[:_MOST_SHOWN]
            left = len(worse) + len(better) - len(shown)
            return "; ".join(each.sentence for each in shown) + (f"; and {left} more." if left else ".")
        if all(each.verdict is ComparisonVerdict.TOO_FEW for each in self.differences):
            return "Not enough requests to tell: measure longer."
        return "No difference shown."

    @property
    def method(self) -> str:
        """How the intervals came about, for a report."""
        correlated = (
            f"stay correlated over {_both(self.correlated_seconds)}"
            if any(self.correlated_seconds)
            else "show no correlation from one slot of time to the next"
        )
        return (
            f"{COMPARISON_CONFIDENCE * 100:g} % intervals, by a bootstrap over blocks of {_both(self.block_seconds)}:"
            f" requests close in time are not independent, and the latencies of these runs {correlated}."
            f" A block is at most a twelfth of its run{', which shortened these' if self.is_block_capped else ''}."
            f" Relative differences of up to {MARGIN * 100:g} % get no verdict. The intervals hold the noise within the"
            " runs, not the change of a machine between them."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.sentence,
            "comparable": self.is_comparable,
            "obstacles": list(self.obstacles),
            "regression": self.is_regression,
            "confidence": COMPARISON_CONFIDENCE,
            "margin": MARGIN,
            "block_seconds": list(self.block_seconds),
            "warnings": list(self.warnings),
            "differences": {each.name: each.as_json() for each in self.differences},
        }


def compare(a: Run, b: Run) -> Comparison:
    """``a``: the run to measure by."""
    first, second = Bootstrap(a, _SEED_A), Bootstrap(b, _SEED_B)
    differences = _percentile_differences("", first.percentiles(PERCENTILES), second.percentiles(PERCENTILES))
    if len(first.first_token) and len(second.first_token):
        ours = first.percentiles(PERCENTILES, first_token=True)
        theirs = second.percentiles(PERCENTILES, first_token=True)
        differences += _percentile_differences("first token ", ours, theirs)
    differences += [
        _difference("rate", "/s", first.rate(), second.rate(), lower_is_better=False),
        _difference("goodput", "/s", first.goodput(), second.goodput(), lower_is_better=False),
        _error_difference(first.error_share(), second.error_share()),
    ]
    return Comparison(
        differences=tuple(differences),
        obstacles=tuple(_obstacles(a, b)),
        warnings=tuple(_warnings(a, b, first, second)),
        block_seconds=(first.block_seconds, second.block_seconds),
        correlated_seconds=(first.correlated_seconds, second.correlated_seconds),
        is_block_capped=first.is_block_capped or second.is_block_capped,
    )


def shown_figure(value: float, unit: str) -> str:
    """A figure of a comparison as people read it."""
    if unit == "ns":
        return shown_ns(value)
    if unit == "share":
        return f"{value * 100:.3g} %"
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"


def _percentile_differences(measure: str, a: Sequence[Drawn], b: Sequence[Drawn]) -> list[Difference]:
    return [
        _difference(f"{measure}p{percent:g}", "ns", ours, theirs, lower_is_better=True)
        for percent, ours, theirs in zip(PERCENTILES, a, b, strict=True)
    ]


def _difference(name: str, unit: str, a: Drawn, b: Drawn, *, lower_is_better: bool) -> Difference:
    bounds = _bounds(a, b)
    if bounds is None:
        return Difference(name, unit, a.value, b.value, -math.inf, math.inf, ComparisonVerdict.TOO_FEW)
    low, high = bounds
    margin = MARGIN * a.value
    verdict = ComparisonVerdict.NO_DIFFERENCE
    if low > margin:
        verdict = ComparisonVerdict.SLOWER if lower_is_better else ComparisonVerdict.FASTER
    elif high < -margin:
        verdict = ComparisonVerdict.FASTER if lower_is_better else ComparisonVerdict.SLOWER
    return Difference(name, unit, a.value, b.value, low, high, verdict)


def _error_difference(a: Drawn, b: Drawn) -> Difference:
    bounds = _bounds(a, b)
    if bounds is None:
        return Difference("errors", "share", a.value, b.value, -math.inf, math.inf, ComparisonVerdict.TOO_FEW)
    low, high = bounds
    verdict = (
        ComparisonVerdict.MORE_ERRORS
        if low > 0
        else ComparisonVerdict.FEWER_ERRORS
        if high < 0
        else ComparisonVerdict.NO_DIFFERENCE
    )
    return Difference("errors", "share", a.value, b.value, low, high, verdict)


def _bounds(a: Drawn, b: Drawn) -> tuple[float, float] | None:
    if a.draws is None or b.draws is None:
        return None
    tail = (1 - COMPARISON_CONFIDENCE) / 2
    low, high = np.quantile(b.draws - a.draws, (tail, 1 - tail))
    # The measured difference can lie outside where the draws are few values; the interval always holds it.
    difference = b.value - a.value
    return min(float(low), difference), max(float(high), difference)


def _obstacles(a: Run, b: Run) -> list[str]:
    obstacles = []
    if (a.rate is None) != (b.rate is None):
        obstacles.append(
            "One run is an open loop and the other a closed one: their latencies have different meanings. Measure both"
            " with --rate, or both with requests in flight."
        )
    elif a.rate is not None and b.rate is not None and abs(b.rate - a.rate) > _SAME_RATE * a.rate:
        obstacles.append(
            f"The runs have different rates: {a.rate:g} and {b.rate:g} requests/s. Measure both at one rate."
        )
    elif a.in_flight != b.in_flight:
        obstacles.append(
            f"The runs have {a.in_flight} and {b.in_flight} requests in flight. Measure both with the same."
        )
    if sorted(a.kinds) != sorted(b.kinds):
        obstacles.append(
            f"The runs have different kinds of requests: {', '.join(a.kinds)} and {', '.join(b.kinds)}. Send the same."
        )
    for name, run in (("first", a), ("second", b)):
        limit = generator_limit(run)
        if limit is not None and limit.is_certain:
            obstacles.append(f"Of the {name} run: {limit.sentence}")
    return obstacles


def _warnings(a: Run, b: Run, first: Bootstrap, second: Bootstrap) -> list[str]:
    warnings = []
    for name, run in (("first", a), ("second", b)):
        limit = generator_limit(run)
        if limit is not None and not limit.is_certain:
            warnings.append(f"Of the {name} run: {limit.sentence}")
        if run.unfinished:
            warnings.append(
                f"The {name} run was interrupted: {run.unfinished:,} requests have no outcome, and slow ones are more"
                " likely among them. Measure to the end."
            )
    for name, bootstrap in (("first", first), ("second", second)):
        if bootstrap.is_block_capped:
            warnings.append(
                f"The latencies of the {name} run stay correlated over {bootstrap.correlated_seconds:.2g} s, too long"
                f" for its blocks of {bootstrap.block_seconds:.2g} s, the longest that a run of this length allows: the"
                " intervals are too narrow. Measure longer."
            )
    for name, bootstrap in (("first", first), ("second", second)):
        grown = _growth(bootstrap)
        if grown is not None:
            warnings.append(
                f"The latency of the {name} run grew {grown:.1f} times from its first to its last third: its server was"
                " overloaded, and percentiles depend on the length of the run. Measure at a lower rate."
            )
    return warnings


def _growth(bootstrap: Bootstrap) -> float | None:
    """By how much the median latency of the last third exceeds that of the first; None: not notably."""
    latency = bootstrap.latency
    if len(latency) < _FEWEST_FOR_GROWTH:
        return None
    third = len(latency) // 3
    start, end = float(np.median(latency[:third])), float(np.median(latency[-third:]))
    return end / start if start > 0 and end > _GROWN * start else None


def _order(difference: Difference) -> tuple[bool, int]:
    name = difference.name
    return difference.verdict not in _WORSE, _SHOWN_FIRST.index(name) if name in _SHOWN_FIRST else len(_SHOWN_FIRST)


def _both(seconds: tuple[float, float]) -> str:
    """``0.25 s and 0.3 s``, or one if they are shown alike."""
    shown = [f"{each:.2g} s" for each in seconds]
    return shown[0] if shown[0] == shown[1] else " and ".join(shown)
