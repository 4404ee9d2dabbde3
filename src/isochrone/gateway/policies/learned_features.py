"""What the learned policy looks at: a few figures per candidate, most of them logarithms.

Sums of logarithms are products, so a linear score over these can be any rule of the table: latency times requests in
flight (peak_ewma), pending requests over speed (least_pending), the soonest answer. What changes with events is kept in
a ``View`` per target and computed once after each event; only what changes with time or with the request is computed
at the choice. Must never read anything that a real gateway does not know.
"""

from __future__ import annotations

from math import log
from typing import Any

from isochrone.gateway.targets import NEWS_NS, Target

#: Of the candidate: how long one more request would take by its own word or as seen; requests in flight on it, from
#: everybody and from here; latency seen, mean and peak; its speed class (one request alone); share of failures; age of
#: its word, 1: not believed any more; how little memory is free.
KEPT = ("expected", "load", "in_flight", "latency", "peak", "speed", "errors", "age", "memory")
#: At the instant of the choice: when it would be done, by its word, what was sent since and the time that has passed;
#: the same as far as the deadline is near; its speed as far as the request is large.
MOMENTARY = ("outlook", "outlook_when_tight", "speed_when_large")
NAMES = KEPT + MOMENTARY
#: Those that are logarithms of a time: compared with the fleet's typical one, never by themselves.
TIMES = frozenset(("expected", "latency", "peak", "speed", "outlook"))

_GIB = float(1 << 30)


class View:
    """One target as of its last event. Logarithms of times are of ns."""

    __slots__ = (
        "at",
        "base",
        "figures",
        "free_at",
        "inside",
        "known",
        "run_ns",
        "share",
        "speed",
        "stale",
        "under_way",
    )

    def __init__(self) -> None:
        self.stale = True
        #: When it was described.
        self.at = 0
        #: It has answered at least once: there is something to go by.
        self.known = False
        #: Nothing of it is out of what the model was trained on.
        self.inside = False
        self.figures: list[float] = []
        #: The part of the score that does not change with time.
        self.base = 0.0
        #: When it would begin with one more, by its word and what was sent since; and how long it then takes.
        self.free_at = 0.0
        self.run_ns = 1.0
        #: Logarithm of that.
        self.speed = 0.0
        #: Requests it got of late; see ``learned_shares``.
        self.share = 0.0
        #: Requests under way on it by the instant they were sent: which slice each belongs to, or its record.
        self.under_way: dict[int, Any] = {}

    def describe(self, target: Target, now: int) -> None:
        """Looks at the target anew; ``base`` and ``inside`` are the model's to set."""
        self.stale = False
        self.at = now
        report = target.report
        latency = target.latency_ns
        expected = target.expected_ns(now)
        self.known = latency > 0.0 and expected > 0.0
        if not self.known:
            return
        in_flight = target.in_flight
        age = now - target.reported_at
        if age <= NEWS_NS and report.run_ns and target.reported_at:
            told = report.in_flight + target.sent_since
            load = told if told > in_flight else in_flight
            run_ns = float(report.run_ns)
            self.free_at = target.reported_at + report.wait_ns + target.sent_since * run_ns
            news = age / NEWS_NS
        else:
            # Seen from here alone, as with servers that tell nothing: no more is known than how long requests take.
            load = target.load(now)
            run_ns = expected
            self.free_at = 0.0
            news = 1.0
        self.run_ns = run_ns
        self.speed = speed = log(run_ns)
        free = target.endpoint.free_memory
        self.figures = [
            log(expected),
            log(1 + load),
            log(1 + in_flight),
            log(latency),
            log(target.peak_ns),
            speed,
            target.error_rate,
            news,
            1 / (1 + free / _GIB) if free >= 0 else 0.0,
        ]

    def outlook(self, now: int) -> float:
        """Logarithm of the time until one more request would be done."""
        left = self.free_at - now
        return log(left + self.run_ns) if left > 0 else self.speed
