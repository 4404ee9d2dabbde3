"""Whether a request that failed may be sent again: is it safe, and does the budget allow it. Pure.

Consulted after a failure, before another worker is chosen. Retries are a share of traffic, so that a fleet in trouble
is never given a multiple of its load; what may have been begun is repeated only when repeating changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from isochrone.errors import (
    GRPC_DEADLINE_EXCEEDED,
    GRPC_RESOURCE_EXHAUSTED,
    GRPC_UNAVAILABLE,
    ConnectionLost,
    IsochroneError,
)
from isochrone.gateway.ranges import Amount, Count, Duration, Share
from isochrone.gateway.resilience.sliding_counts import SlidingCounts


class Kind(Enum):
    """What a call is, as far as repeating it matters."""

    #: One inference of a model without state: the same answer again, so it is idempotent by rule.
    STATELESS = "stateless"
    #: A step of a sequence: the worker's state moves with it.
    SEQUENCE = "sequence"
    #: A call with several answers, some of which may have been passed on.
    STREAM = "stream"
    #: Load, unload, trace and log settings, shared memory.
    CONTROL = "control"


class Failure(Enum):
    """How an attempt failed, as far as repeating it matters."""

    #: Never begun: no connection, the server says so, or the worker refused it.
    NOT_BEGUN = "not begun"
    #: May have been begun: the connection went away, or no answer came in time.
    UNCLEAR = "unclear"
    #: The worker gave its answer, and another one would give the same.
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How often a request is sent again."""

    enabled: bool = True
    #: Retries as a share of first attempts over the window.
    ratio: Share = 0.1
    #: Retries per second that are allowed however little traffic there is.
    floor_per_second: Amount = 5.0
    window_ns: Duration = 10_000_000_000
    #: Attempts of one request in all, the first one included.
    attempts: Count = 3
    #: Inference of this model repeats nothing when it is sent twice. Off: only what was not begun is sent again.
    idempotent: bool = True


class Budget:
    """Extra sends as a share of traffic over a sliding window, with a floor. For retries, and for hedges."""

    __slots__ = ("_counts", "_floor", "_ratio", "unbooked")

    def __init__(self, ratio: float, floor_per_second: float, window_ns: int) -> None:
        self._ratio = ratio
        self._floor = floor_per_second * window_ns / 1e9
        self._counts = SlidingCounts(window_ns)
        #: First attempts that are not in the window yet: a shell counts them here and books them now and then.
        self.unbooked = 0

    def request(self, now: int) -> None:
        """A first attempt is sent."""
        self._counts.add(now)

    def book(self, now: int) -> None:
        """Takes ``unbooked`` into the window."""
        if self.unbooked:
            self._counts.add(now, self.unbooked)
            self.unbooked = 0

    def take(self, now: int) -> bool:
        """Takes one extra send from the budget, if there is one."""
        counts = self._counts
        self.book(now)
        counts.advance(now)
        if counts.some + 1 > counts.all * self._ratio + self._floor:
            return False
        counts.add(now, 0, 1)
        return True

    def left(self, now: int) -> float:
        """Extra sends that would be granted now."""
        self._counts.advance(now)
        return max(0.0, self._counts.all * self._ratio + self._floor - self._counts.some)


def retry_budget(rules: RetryRules) -> Budget:
    """The budget of one model."""
    return Budget(
        rules.ratio if rules.enabled else 0.0, rules.floor_per_second if rules.enabled else 0, rules.window_ns
    )


def failure_of(error: IsochroneError) -> Failure:
    """How an attempt failed that ended without an answer."""
    if isinstance(error, ConnectionLost):
        return Failure.NOT_BEGUN if error.unprocessed else Failure.UNCLEAR
    return failure_of_status(error.http_status)


def failure_of_status(http_status: int) -> Failure:
    """What an HTTP answer means. 429 and 503: the worker refused, nothing was begun. 504: some servers began it."""
    if http_status in (429, 503):
        return Failure.NOT_BEGUN
    return Failure.UNCLEAR if http_status in (502, 504) else Failure.FINAL


def failure_of_grpc(grpc_status: int) -> Failure:
    """The same of a gRPC status."""
    if grpc_status in (GRPC_UNAVAILABLE, GRPC_RESOURCE_EXHAUSTED):
        return Failure.NOT_BEGUN
    return Failure.UNCLEAR if grpc_status == GRPC_DEADLINE_EXCEEDED else Failure.FINAL


def is_safe(
    rules: RetryRules,
    kind: Kind,
    failure: Failure,
    *,
    attempts: int,
    answered: bool,
    deadline: int,
    now: int,
    needed_ns: int = 0,
) -> bool:
    """Whether sending it again repeats nothing and can still help.

    ``attempts``: made so far. ``answered``: a part of an answer has been passed to the caller. ``needed_ns``: what
    another attempt is expected to take; 0: not known. The budget is asked after this, so that nothing is taken in vain.
    """
    if not rules.enabled or attempts >= rules.attempts or answered or failure is Failure.FINAL:
        return False
    if deadline - now <= needed_ns:
        return False
    return failure is Failure.NOT_BEGUN or (kind is Kind.STATELESS and rules.idempotent)
