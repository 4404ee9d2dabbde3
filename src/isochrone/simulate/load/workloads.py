"""Arrival times of requests: a workload is a rate over time and a renewal process that is scaled by it.

The process has intervals of mean 1 (exponential: Poisson; Gamma: bursts) on its own time scale; the rate sets how fast
that scale advances. Bursts therefore keep their shape while the load changes. Arrivals are generated lazily, in blocks:
a run of millions of requests holds one block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import cos, pi
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from isochrone.clock import SECOND
from isochrone.settings.ranges import Count, PositiveAmount, Range, Share
from isochrone.settings.sections import Section
from isochrone.simulate.draws import BLOCK

if TYPE_CHECKING:
    from isochrone.simulate.draws import Floats


class Segment(NamedTuple):
    """A period of constant rate."""

    seconds: float
    #: Requests per second.
    rate: float
    #: Results are also shown per phase.
    phase: int = 0
    #: Exactly this many requests, at random instants; None: as many as the process generates.
    exactly: int | None = None


class Poisson(Section):
    kind: Literal["poisson"] = "poisson"
    rate: PositiveAmount
    cv: Literal[1] = 1

    def segments(self, seconds: float) -> Iterator[Segment]:
        yield Segment(seconds, self.rate)

    @property
    def phases(self) -> Sequence[str]:
        return ("",)


class Gamma(Section):
    """Intervals with standard deviation ``cv`` times their mean: above 1, bursts and gaps."""

    kind: Literal["gamma"] = "gamma"
    rate: PositiveAmount
    cv: PositiveAmount = 3.0

    def segments(self, seconds: float) -> Iterator[Segment]:
        yield Segment(seconds, self.rate)

    @property
    def phases(self) -> Sequence[str]:
        return ("",)


class Diurnal(Section):
    """A day: the rate follows a cosine around ``rate``, lowest at the start."""

    kind: Literal["diurnal"] = "diurnal"
    rate: PositiveAmount
    #: Swing relative to the rate; 0.5: from half to one and a half.
    swing: Share = 0.5
    day_seconds: PositiveAmount = 86_400.0
    cv: PositiveAmount = 1.0

    def segments(self, seconds: float) -> Iterator[Segment]:
        # 288 per day: five minutes of constant rate each in a day of 24 hours.
        length, begun = self.day_seconds / 288, 0.0
        while begun < seconds:
            middle = (begun + length / 2) / self.day_seconds
            rate = self.rate * (1 - self.swing * cos(2 * pi * middle))
            yield Segment(min(length, seconds - begun), rate)
            begun += length

    @property
    def phases(self) -> Sequence[str]:
        return ("",)


class Minutes(Section):
    """Requests per minute, as in traces of the Azure Functions kind; repeated from the start when they run out.

    Such a trace does not describe arrivals within a minute. ``renewal`` runs a Gamma process of the given ``cv`` at the
    minute's rate, so that counts scatter around the given ones. ``uniform`` places exactly the given number at
    independent instants, as a Poisson process does once its count is known.
    """

    kind: Literal["minutes"] = "minutes"
    counts: Annotated[list[Count], Field(min_length=1)]
    fill: Literal["renewal", "uniform"] = "renewal"
    cv: PositiveAmount = 1.0
    #: Simulated length of a minute. If it is below 60 s, rates stay the same and fewer requests arrive.
    minute_seconds: Annotated[float, Range(above=0, most=60)] = 60.0

    def segments(self, seconds: float) -> Iterator[Segment]:
        begun, index = 0.0, 0
        while begun < seconds:
            length = min(self.minute_seconds, seconds - begun)
            given = self.counts[index % len(self.counts)]
            exact = round(given * length / 60) if self.fill == "uniform" else None
            yield Segment(length, given / 60, exactly=exact)
            begun += self.minute_seconds
            index += 1

    @property
    def phases(self) -> Sequence[str]:
        return ("",)


class Steps(Section):
    """Load in steps, with results per step: ``rate`` times each factor for ``step_seconds`` each; then the run ends."""

    kind: Literal["steps"] = "steps"
    rate: PositiveAmount
    factors: Annotated[list[PositiveAmount], Field(min_length=1)]
    step_seconds: PositiveAmount
    cv: PositiveAmount = 1.0

    def segments(self, seconds: float) -> Iterator[Segment]:
        for index, factor in enumerate(self.factors):
            yield Segment(self.step_seconds, self.rate * factor, index)

    @property
    def phases(self) -> Sequence[str]:
        return tuple(f"{factor:g}×" for factor in self.factors)


Workload = Annotated[Poisson | Gamma | Diurnal | Minutes | Steps, Field(discriminator="kind")]


def duration(workload: Workload, seconds: float) -> float:
    """The length of a run: ``seconds``, except that steps have their own length."""
    return len(workload.factors) * workload.step_seconds if isinstance(workload, Steps) else seconds


def arrivals(
    workload: Workload, seconds: float, start: int, random: np.random.Generator
) -> Iterator[tuple[int, list[int]]]:
    """Blocks of arrival instants (ns, sorted, from ``start``), each with its phase."""
    begun = 0.0
    #: Time until the next arrival, on the process's own scale.
    ahead = float(_intervals(workload.cv, random, 1)[0])
    for segment in workload.segments(seconds):
        if segment.exactly is not None:
            offsets = np.sort(random.random(segment.exactly)) * segment.seconds
            for first in range(0, segment.exactly, BLOCK):
                yield segment.phase, _instants(start, begun, offsets[first : first + BLOCK])
        elif segment.rate:
            length = segment.rate * segment.seconds
            passed = 0.0
            while passed + ahead <= length:
                # The expected number in the rest of the segment, and a few more.
                wanted = min(BLOCK, int((length - passed) * 1.1) + 16)
                intervals = _intervals(workload.cv, random, wanted)
                intervals[0] = ahead
                points = passed + np.cumsum(intervals)
                inside = int(np.searchsorted(points, length, side="right"))
                yield segment.phase, _instants(start, begun, points[:inside] / segment.rate)
                if inside == wanted:
                    passed = float(points[-1])
                    ahead = float(_intervals(workload.cv, random, 1)[0])
                else:
                    passed, ahead = length, float(points[inside]) - length
                    break
            else:
                ahead -= length - passed
        begun += segment.seconds


def _intervals(cv: float, random: np.random.Generator, count: int) -> Floats:
    if cv == 1:
        return random.exponential(1.0, count)
    shape = 1 / (cv * cv)
    return random.gamma(shape, 1 / shape, count)


def _instants(start: int, begun: float, offsets: Floats) -> list[int]:
    instants: list[int] = (start + np.rint((begun + offsets) * SECOND).astype(np.int64)).tolist()
    return instants
