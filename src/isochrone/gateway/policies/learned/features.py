"""What the learned policy looks at: a few figures per candidate, most of them logarithms.

Sums of logarithms are products, so a linear score over these can be any rule of the table: latency times requests in
flight (peak_ewma), pending requests over speed (least_pending), the soonest answer. What changes with events is kept in
a ``View`` per replica and looked at again after an event; only what changes with time or with the request is computed
at the choice. Must never read anything that a real gateway does not know.
"""

from __future__ import annotations

from math import log

from isochrone.gateway.replicas import NEWS_NS, Replica

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
#: What ``seen`` returns.
Seen = tuple[float, int, int, float, float, int, float, int, int, float, float, float]


class View:
    """One replica as of its last event."""

    __slots__ = ("base", "due", "free_at", "run_ns", "share", "speed")

    def __init__(self) -> None:
        #: When it must be looked at again: after an event at once.
        self.due = 0
        #: The part of the score that does not change with time; infinite where the model has nothing to go by.
        self.base = 0.0
        #: When it would begin with one more, by its word and what was sent since; and how long it then takes, in ns
        #: and as a logarithm.
        self.free_at = 0.0
        self.run_ns = 1.0
        self.speed = 0.0
        #: Requests it got of late; see ``shares``.
        self.share = 0.0

    def outlook(self, now: int) -> float:
        """Logarithm of the time until one more request would be done, in ns."""
        left = self.free_at - now
        return log(left + self.run_ns) if left > 0 else self.speed


def seen(replica: Replica, view: View, now: int) -> Seen:
    """All that the figures are made of, as of now: they can be made of it later."""
    # Raw values in one tuple: a choice that is placed by lot pays for this, and is rare enough to run on cold caches.
    return (
        replica.expected_ns(now),
        replica.load(now),
        replica.in_flight,
        replica.latency_ns,
        replica.peak_ns,
        replica.report.run_ns,
        replica.error_rate,
        now - replica.reported_at,
        replica.endpoint.free_memory,
        view.free_at - now,
        view.run_ns,
        view.speed,
    )


def figures(what: Seen, tightness: float, size: float) -> list[float]:
    """All of a replica that has answered, in the order of ``NAMES``. ``tightness``: how near the deadline is; ``size``:
    logarithm of the rows. ``Model.look`` computes the same, as far as it needs them."""
    (
        expected_ns,
        load,
        in_flight,
        latency_ns,
        peak_ns,
        told_run_ns,
        error_rate,
        age,
        free_memory,
        left,
        run_ns,
        speed,
    ) = what
    expected = log(expected_ns)
    fresh = told_run_ns and age <= NEWS_NS
    outlook = log(left + run_ns) if left > 0 else speed
    return [
        expected,
        log(1 + load),
        log(1 + in_flight),
        log(latency_ns),
        log(peak_ns),
        log(told_run_ns) if fresh else expected,
        error_rate,
        age / NEWS_NS if fresh else 1.0,
        lack_of_memory(free_memory),
        outlook,
        outlook * tightness,
        speed * size,
    ]


def lack_of_memory(free: int) -> float:
    """From 0 (plenty, or not told) to 1 (none left); a half at 1 GiB."""
    return 1 / (1 + free / _GIB) if free >= 0 else 0.0
