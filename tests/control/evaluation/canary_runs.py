"""Canaries played through with made-up traffic, for tests of judging and for the table in docs/canary.md.

Latencies are lognormal, heavy in the tail, times a noise that both versions share and that drifts, with now and
then a stall of the whole machine. Run as a program, this prints the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isochrone.control.evaluation.figures import Figures
from isochrone.control.evaluation.judging import PROMOTE, ROLL_BACK, WAIT, Judgement, judge
from isochrone.control.state.rollout_records import CanaryRule
from isochrone.gateway.evaluation.counts import bucket_bounds, bucket_of

#: Seconds the shared noise stays as it is, and between two calls of the judge at least.
_PIECE = 5


@dataclass(frozen=True)
class Traffic:
    """What comes, and how the canary differs from the stable version."""

    slower: float = 1.0
    more_failures: float = 0.0
    failures: float = 0.01
    requests_per_second: float = 400.0
    #: Of the logarithm of a latency: p95 lies at 3.7 times the median with 0.8.
    spread: float = 0.8
    #: Of the steps of the logarithm of the noise both share: in the long run it spreads twice as much.
    drift: float = 0.15


#: Buckets from 0.26 ms to 17 s: what a run makes falls into them, but for one in millions.
_FIRST, _LAST = bucket_of(1 << 18), bucket_of(1 << 34)
_EDGES = np.log([bucket_bounds(bucket)[0] for bucket in range(_FIRST, _LAST + 1)])
_MEDIAN = math.log(5e6)
#: The normal distribution, looked up: a share of requests per bucket and second is needed, not single latencies.
_DEVIATES = np.linspace(-9, 9, 4001)
_BELOW = np.array([math.erfc(-deviate / math.sqrt(2)) / 2 for deviate in _DEVIATES])


class Step:
    """One step of a canary, as its gateways would count it."""

    def __init__(self, traffic: Traffic, weight: float, random: np.random.Generator) -> None:
        self._traffic = traffic
        self._random = random
        self._rates = (traffic.requests_per_second * (1 - weight), traffic.requests_per_second * weight)
        self._counts = [np.zeros(_LAST - _FIRST, np.int64) for _ in range(2)]
        self._failures = [0, 0]
        self._noise = 0.0

    def pass_seconds(self, seconds: int) -> None:
        traffic, random = self._traffic, self._random
        # Piece by piece the noise goes on from where it was, and is drawn back a little.
        shared = np.empty(seconds // _PIECE)
        for piece in range(len(shared)):
            self._noise = 0.9 * self._noise + random.normal(0, traffic.drift)
            shared[piece] = self._noise + (1.2 if random.random() < 0.02 else 0.0)
        for which, factor in ((0, 1.0), (1, traffic.slower)):
            failing = traffic.failures + (traffic.more_failures if which else 0.0)
            self._failures[which] += int(random.poisson(self._rates[which] * seconds * failing))
            middle = _MEDIAN + math.log(factor) + shared
            below = np.interp((_EDGES - middle[:, None]) / traffic.spread, _DEVIATES, _BELOW)
            # Requests come at random, so what falls into each bucket is Poisson's, each on its own.
            expected = np.diff(below.sum(axis=0)) * self._rates[which] * _PIECE * (1 - failing)
            self._counts[which] += random.poisson(expected)

    def figures(self, which: int) -> Figures:
        counts = self._counts[which]
        filled = np.flatnonzero(counts)
        histogram = dict(zip((filled + _FIRST).tolist(), counts[filled].tolist(), strict=True))
        return Figures(int(counts.sum()) + self._failures[which], self._failures[which], histogram)


def run_canary(rule: CanaryRule, traffic: Traffic, random: np.random.Generator) -> tuple[Judgement, int]:
    """The last verdict, and how many seconds all steps took."""
    whole = 0
    for weight in rule.weights:
        step = Step(traffic, weight, random)
        seconds, verdict = 0, Judgement(WAIT, "")
        while verdict.kind == WAIT:
            # The judge looks when there is √2 times as much: asking it in between would only take time.
            pause = min(max(_PIECE, seconds // 5 // _PIECE * _PIECE), math.ceil(rule.max_seconds) - seconds)
            step.pass_seconds(pause)
            seconds += pause
            verdict = judge(rule, step.figures(0), step.figures(1), float(seconds), verdict.looks)
        whole += seconds
        if verdict.kind == ROLL_BACK:
            break
    return verdict, whole


def rolled_back(rule: CanaryRule, traffic: Traffic, runs: int, seed: int) -> tuple[float, float, float]:
    """Share of runs that were rolled back, and median and 95th percentile of their seconds, promoted ones included."""
    ends = [run_canary(rule, traffic, np.random.default_rng((seed, run))) for run in range(runs)]
    seconds = np.array([end[1] for end in ends])
    assert all(end[0].kind in (PROMOTE, ROLL_BACK) for end in ends)
    share = sum(end[0].kind == ROLL_BACK for end in ends) / runs
    return share, float(np.median(seconds)), float(np.quantile(seconds, 0.95))


#: What the table shows, line by line.
LINES = (
    ("equal", Traffic()),
    ("equal, no failures", Traffic(failures=0.0)),
    ("equal, 5 % failures", Traffic(failures=0.05)),
    ("equal, heavier tail", Traffic(spread=1.2, drift=0.3)),
    ("5 % slower", Traffic(slower=1.05)),
    ("10 % slower (just allowed)", Traffic(slower=1.1)),
    ("15 % slower", Traffic(slower=1.15)),
    ("20 % slower", Traffic(slower=1.2)),
    ("30 % slower", Traffic(slower=1.3)),
    ("30 % slower, heavier tail", Traffic(slower=1.3, spread=1.2, drift=0.3)),
    ("twice as slow", Traffic(slower=2.0)),
    ("1 % → 1.5 % failures (just allowed)", Traffic(more_failures=0.005)),
    ("1 % → 2 % failures", Traffic(more_failures=0.01)),
    ("1 % → 3 % failures", Traffic(more_failures=0.02)),
    ("1 % → 50 % failures", Traffic(more_failures=0.49)),
)

if __name__ == "__main__":
    for name, traffic in LINES:
        share, median, late = rolled_back(CanaryRule(), traffic, 300, 1)
        print(f"| {name} | {share:.1%} | {median:.0f} s | {late:.0f} s |", flush=True)
