"""The link to another server now, from what has crossed it and what is still under way. Pure.

Delays only add to a time: the least time of the latest small crossings is the round trip. Their spread is the jitter. A
large crossing tells the bandwidth by what it took beyond the round trip of its own time, if that differs from what is
expected by more than times scatter; if it took next to nothing, it shows a least bandwidth. What is under way for much
longer than expected shows a slower link before it ends, if it ever does; whatever ended before it began tells nothing
more. Figures that nothing recent tells keep their last value, at first that of the plan.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from isochrone.clock import MILLISECOND, SECOND
from isochrone.models.divisions import Link

#: Crossings of this time tell the link, or the last few within the longer time.
_LATEST_NS = 3 * SECOND // 2
_LATEST_COUNT = 3
WINDOW_NS = 3 * SECOND
_MOST = 512
#: Crossings up to here tell the round trip, and from there on the bandwidth.
SMALL_BYTES = 2 << 10
LARGE_BYTES = 16 << 10
#: Of a request for readiness and its answer, both with their heads.
PROBE_BYTES = 400
#: Fewer differences between small crossings tell no jitter.
_LEAST_FOR_JITTER = 3
#: The least time beyond the round trip that tells a bandwidth, and by which it has to differ from what is expected: as
#: long as event loops take now and then, or this share of the round trip, or the jitter.
_LEAST_SECONDS = 0.001
_LEAST_SHARE = 0.05
#: A crossing that takes so many times as long as it may be wrong tells the bandwidth clearly.
_CLEAR_TIMES = 2
#: The share of large crossings that is left out as too fast to be true: a round trip may be taken too long.
_TOO_FAST = 0.25
#: Of a size in the plan's curve, compared to a line.
_LEAST_SLOPE = 0.1
#: A crossing under way is overdue after so many times the expected time, and this time more.
_OVERDUE_TIMES = 2
_OVERDUE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Crossing:
    """One request and its answer: when it ended, the bytes of both ways, how long it took, and how much of that it was
    not on the link (None: not known)."""

    at: int
    size: int
    elapsed_ns: int
    there_ns: int | None
    #: The time on this machine, to connect and to compress.
    here_ns: int = 0

    @property
    def link_ns(self) -> int:
        return max(0, self.elapsed_ns - self.here_ns - (self.there_ns or 0))

    @property
    def began(self) -> int:
        return self.at - self.elapsed_ns


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A request that has not been answered yet; ``elsewhere_ns``: the time that it needs beside the link."""

    began: int
    size: int
    elsewhere_ns: float


@dataclass(frozen=True, slots=True)
class _Large:
    """A large crossing; ``round_trip`` in seconds: of its own time."""

    at: int
    size: int
    seconds: float
    round_trip: float

    @property
    def beyond(self) -> float:
        """Seconds that its payload took."""
        return self.seconds - self.round_trip


class LinkEstimator:
    """``known``: the link until something has crossed it."""

    def __init__(self, known: Link) -> None:
        is_measured = math.isfinite(known.bytes_per_second)
        #: Gives payloads their times; ``_speed`` is how many times as fast they cross now.
        self._reference = known if is_measured else Link(known.round_trip, 1.0, known.jitter)
        self._speed = 1.0 if is_measured else math.inf
        self._round_trip = known.round_trip
        self._jitter = known.jitter
        #: (when it ended, seconds).
        self._small: deque[tuple[int, float]] = deque(maxlen=_MOST)
        self._large: deque[_Large] = deque(maxlen=_MOST)
        #: When a crossing last told the bandwidth clearly; 0: never.
        self.bandwidth_seen = 0

    def add(self, crossing: Crossing) -> None:
        if crossing.there_ns is None:
            return  # the time on the link is not known
        seconds = crossing.link_ns / 1e9
        if crossing.size <= SMALL_BYTES:
            self._small.append((crossing.at, seconds))
        elif crossing.size >= LARGE_BYTES:
            large = _Large(crossing.at, crossing.size, seconds, self._round_trip_at(crossing.at))
            self._large.append(large)
            if large.beyond > _CLEAR_TIMES * self._resolution(large):
                self.bandwidth_seen = crossing.at

    def link(self, now: int, under_way: Iterable[UnderWay] = ()) -> Link:
        while self._small and self._small[0][0] < now - WINDOW_NS:
            self._small.popleft()
        while self._large and self._large[0].at < now - WINDOW_NS:
            self._large.popleft()
        self._tell_small(now)
        self._tell_large(now)
        self._tell_overdue(now, under_way)
        return self._link()

    def _link(self) -> Link:
        return self._reference.scaled(self._round_trip, self._speed, self._jitter)

    def _round_trip_at(self, at: int) -> float:
        """The least of the last small crossings."""
        last = [self._small[-place] for place in range(1, min(_LATEST_COUNT, len(self._small)) + 1)]
        return min((seconds for ended, seconds in last if ended >= at - WINDOW_NS), default=self._round_trip)

    def _tell_small(self, now: int) -> None:
        times = [seconds for _, seconds in self._small]
        count = sum(ended >= now - _LATEST_NS for ended, _ in self._small)
        if times:
            self._round_trip = min(times[-max(count, _LATEST_COUNT) :])
        # Of neighbours: a link that has changed differs from itself once.
        steps = [abs(after - before) for before, after in pairwise(times)]
        if len(steps) >= _LEAST_FOR_JITTER:
            # For a normal distribution, the median difference is 0.6745 √2 σ.
            self._jitter = statistics.median(steps) / 0.954

    def _tell_large(self, now: int) -> None:
        count = sum(each.at >= now - _LATEST_NS for each in self._large)
        latest = list(self._large)[-max(count, _LATEST_COUNT) :]
        # One that is shorter than its round trip: that has become shorter, and nothing small has shown it yet.
        told = [each for each in latest if each.beyond >= -self._resolution(each)]
        if not told:
            return
        told.sort(key=self._told, reverse=True)
        chosen = told[int(len(told) * _TOO_FAST)]
        expected = self._reference.payload_seconds(chosen.size) / self._speed
        if abs(chosen.beyond - expected) > self._resolution(chosen):
            self._speed = self._told(chosen)

    def _told(self, crossing: _Large) -> float:
        """The speed that it shows, at least."""
        return self._speed_of(crossing.size, max(crossing.beyond, self._resolution(crossing)))

    def _resolution(self, crossing: _Large) -> float:
        """Less time beyond the round trip tells no bandwidth."""
        return max(self._jitter, _LEAST_SHARE * crossing.round_trip, _LEAST_SECONDS)

    def _speed_of(self, size: int, seconds: float) -> float:
        reference = self._reference
        # A curve may begin flat, which would be no measure.
        least = size / reference.bytes_per_second * _LEAST_SLOPE
        return max(reference.payload_seconds(size), least) / seconds

    def _tell_overdue(self, now: int, under_way: Iterable[UnderWay]) -> None:
        link = self._link()
        small: list[UnderWay] = []
        large: list[UnderWay] = []
        for each in under_way:
            expected = link.late_seconds(each.size, 0)
            if self._seconds(each, now) > _OVERDUE_TIMES * expected + _OVERDUE_SECONDS:
                if each.size <= SMALL_BYTES:
                    small.append(each)
                elif each.size >= LARGE_BYTES:
                    large.append(each)
        if small:
            began = max(each.began for each in small)
            while self._small and self._small[0][0] < began:
                self._small.popleft()
            self._round_trip = max(self._seconds(each, now) for each in small)
        if large:
            began = max(each.began for each in large)
            while self._large and self._large[0].at < began:
                self._large.popleft()
            least = min(self._speed_of(each.size, self._seconds(each, now) - link.round_trip) for each in large)
            self._speed = min(self._speed, least)

    @staticmethod
    def _seconds(each: UnderWay, now: int) -> float:
        return (now - each.began - each.elsewhere_ns) / 1e9


def is_another_link(before: Link, now: Link) -> bool:
    """Whether the round trip has changed so much that the bandwidth may have changed with it."""
    low, high = sorted((before.round_trip, now.round_trip))
    return high > 2 * low and high - low > 2 * max(before.jitter, now.jitter, MILLISECOND / 1e9)
