"""The features of the learned policy: a few figures per candidate, most of them logarithms.

A sum of logarithms is a product, so a linear score can express most policies: latency times requests in flight
(peak_ewma), pending requests over speed (least_pending), the earliest answer. Figures that change with events are kept
in a ``View`` per replica and recomputed after an event; only those that change with time or with the request are
computed at the choice. A feature must use nothing that a real gateway does not know.
"""

from __future__ import annotations

from math import log

from isochrone.gateway.replicas import FRESH_NS, Replica

#: Of the candidate: expected time of one more request, as reported or as measured; requests in flight of all gateways
#: and of this one; mean and peak latency measured here; time of one request alone; share of failures; age of the load
#: report, 1: expired; lack of free memory.
KEPT = ("expected", "load", "in_flight", "latency", "peak", "speed", "errors", "age", "memory")
#: At the choice: time until one more request would be done, by the load report, the requests sent since and the time
#: passed; the same times the closeness of the deadline; time of one request alone times the size of the request.
MOMENTARY = ("outlook", "outlook_when_tight", "speed_when_large")
NAMES = KEPT + MOMENTARY
#: Logarithms of a time. They are compared with the fleet's typical latency.
TIMES = frozenset(("expected", "latency", "peak", "speed", "outlook"))

_GIB = float(1 << 30)
#: The result of ``seen``.
Seen = tuple[float, int, int, float, float, int, float, int, int, float, float, float]


class View:
    """One replica as of its last event."""

    __slots__ = ("base", "due", "free_at", "run_ns", "share", "speed")

    def __init__(self) -> None:
        #: When it must be recomputed; 0: at the next choice.
        self.due = 0
        #: The part of the score that does not change with time; infinite if the model cannot score the replica.
        self.base = 0.0
        #: When it could start one more request, by the load report and the requests sent since; and the time of a run,
        #: in ns and as a logarithm.
        self.free_at = 0.0
        self.run_ns = 1.0
        self.speed = 0.0
        #: Its recent requests; see ``shares``.
        self.share = 0.0

    def outlook(self, now: int) -> float:
        """Logarithm of the time until one more request would be done, in ns."""
        left = self.free_at - now
        return log(left + self.run_ns) if left > 0 else self.speed


def seen(replica: Replica, view: View, now: int) -> Seen:
    """The raw values of all features now, from which ``figures`` can compute them later."""
    # One tuple: a random placement pays for this, and is rare enough to run on cold caches.
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
    """The features of a replica that has answered, in the order of ``NAMES``. ``tightness``: closeness of the deadline;
    ``size``: logarithm of the rows. ``Model.refresh`` computes the same, as far as it needs them."""
    (
        expected_ns,
        load,
        in_flight,
        latency_ns,
        peak_ns,
        reported_run_ns,
        error_rate,
        age,
        free_memory,
        left,
        run_ns,
        speed,
    ) = what
    expected = log(expected_ns)
    fresh = reported_run_ns and age <= FRESH_NS
    outlook = log(left + run_ns) if left > 0 else speed
    return [
        expected,
        log(1 + load),
        log(1 + in_flight),
        log(latency_ns),
        log(peak_ns),
        log(reported_run_ns) if fresh else expected,
        error_rate,
        age / FRESH_NS if fresh else 1.0,
        lack_of_memory(free_memory),
        outlook,
        outlook * tightness,
        speed * size,
    ]


def lack_of_memory(free: int) -> float:
    """From 0 (plenty, or not reported) to 1 (none free); 0.5 at 1 GiB."""
    return 1 / (1 + free / _GIB) if free >= 0 else 0.0
