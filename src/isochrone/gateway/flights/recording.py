"""What a gateway keeps of each request: one tuple of values that exist already, when the request is over.

On the way of every request. Nothing is formatted here, no clock is read, and a record refers to nothing that holds a
connection or a worker that has left, and of a body only the bytes that may name the request: ``reading`` makes sense of
it when somebody asks. A fault here is logged, and costs no request its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError, NoWorkerReady
from isochrone.gateway.latencies.version_durations import DEADLINE_EXCEEDED
from isochrone.gateway.requests.placing import BreakersOpen
from isochrone.observe.flights.ring import Flights
from isochrone.observe.sparing import Sparing

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
    from isochrone.gateway.fleet.replica_set import ReplicaSet

log = structlog.get_logger(__name__)

_FAULTS: Final = Sparing(SECOND)
#: How old the figures of candidates may be that requests share, and how many candidates are noted.
_SHARED_NS: Final = MILLISECOND
_MOST_CANDIDATES: Final = 8
_MAX_MESSAGE: Final = 500
#: Attempts of one request that are kept beside the last.
_MOST_EARLIER: Final = 16


class FlightRecording:
    """The recorder of one gateway, as the shell calls it."""

    __slots__ = ("_flights",)

    def __init__(self, flights: Flights) -> None:
        self._flights = flights

    def sending(self, attempt: UpstreamAttempt) -> None:
        """An attempt is about to be sent."""
        try:
            replica_set = attempt.replica_set
            if attempt.sent_at >= replica_set.candidates_until:
                note_candidates(replica_set, attempt.sent_at)
            attempt.candidates = replica_set.candidates
        except Exception as fault:
            _log_fault(fault)

    def attempt_ended(self, attempt: UpstreamAttempt | Any, outcome: str, now: int) -> None:
        """An attempt failed, was rejected or is given up, whatever becomes of its request."""
        try:
            request = attempt.request
            if request.flown is None:
                request.flown = []
            if len(request.flown) < _MOST_EARLIER:
                request.flown.append(_of_attempt(attempt, now, outcome))
        except Exception as fault:
            _log_fault(fault)

    def answered(self, request: CallerRequest, attempt: UpstreamAttempt, opening: bytes, now: int) -> None:
        """An attempt's answer has gone back."""
        try:
            if request.shadow is not None:
                return
            served = request.served
            version = attempt.replica_set.version
            came, arrived, deadline = request.came_at, request.arrived, request.deadline
            # Defaults of a class are slow to read: most requests have one attempt, and never waited.
            again = len(request.tried) > 1
            ended_as = attempt.ended_as
            canary = served.canary
            record = (
                came,
                arrived,
                0 if arrived == came else request.waits_since,
                request.sent_at,
                deadline,
                now,
                served.name,
                version,
                0 if served.commitment is None else request.epoch,
                opening,
                request.caller_ids,
                request.demand.priority,
                (
                    attempt.replica.endpoint.address,
                    version,
                    attempt.sent_at,
                    attempt.answered_at,
                    ended_as,
                    again and attempt.is_hedge,
                    attempt.streaming_at if attempt.streaming else 0,
                    attempt.load,
                    attempt.candidates,
                ),
                request.flown if again else None,
                None if canary is None or request.version else canary.rules,
                attempt.status,
                None,
            )
            self._flights.latest.add(record)
            if now > deadline or ended_as == DEADLINE_EXCEEDED:
                self._flights.missed.add(record)
        except Exception as fault:
            _log_fault(fault)

    def rejected(self, request: CallerRequest, error: IsochroneError, opening: bytes, now: int) -> None:
        """The caller got an error of the gateway's own, or its answer was broken off."""
        try:
            expected = missed_by = 0
            if isinstance(error, DeadlineExceeded):
                expected, missed_by = error.expected_ns, error.missed_by_ns
            decided_by = ""
            if error.code == "quota":
                decided_by = "quota"
            elif isinstance(error, BreakersOpen):
                decided_by = "breaker"
            elif isinstance(error, NoWorkerReady):
                decided_by = "no worker"
            # The error itself would keep its traceback, and with that the request.
            failure = (error.code, error.message[:_MAX_MESSAGE], decided_by, expected, missed_by)
            self._ended(request, opening, now, failure, isinstance(error, DeadlineExceeded))
        except Exception as fault:
            _log_fault(fault)

    def broken_off(self, request: CallerRequest, error: IsochroneError | None, opening: bytes, now: int) -> None:
        """The caller has gone. ``error``: it has not, but its codec ended the call with this."""
        if error is not None:
            self.rejected(request, error, opening, now)
            return
        try:
            self._ended(request, opening, now, ("cancelled", "the caller has gone", "", 0, 0), False)
        except Exception as fault:
            _log_fault(fault)

    def _ended(
        self, request: CallerRequest, opening: bytes, now: int, failure: tuple[str, str, str, int, int], is_miss: bool
    ) -> None:
        served = getattr(request, "served", None)
        if request.shadow is not None or served is None:
            return  # a stream that waited for a switch before it arrived belongs to no model yet
        replica_set = getattr(request, "replica_set", None)
        demand = getattr(request, "demand", None)
        candidates: Any = ()
        version = request.version
        if replica_set is not None:
            version = replica_set.version
            if not request.sent_at:
                if now >= replica_set.candidates_until:
                    note_candidates(replica_set, now)
                candidates = replica_set.candidates
        record = (
            request.came_at,
            request.arrived,
            request.waits_since,
            request.sent_at,
            request.deadline,
            now,
            served.name,
            version,
            request.epoch,
            opening,
            request.caller_ids,
            demand.priority if demand is not None else 0,
            None,
            request.flown,
            None if served.canary is None or request.version else served.canary.rules,
            0,
            (*failure, candidates),
        )
        if is_miss or now > request.deadline:
            self._flights.add_missed(record)
        else:
            self._flights.latest.add(record)


def _log_fault(error: Exception) -> None:
    more = _FAULTS.lets_through(now_ns())
    if more is not None:
        log.error("a request could not be recorded", more=more, exc_info=error)


def note_candidates(replica_set: ReplicaSet, now: int) -> None:
    """Keep what is known of a few of the replicas, for all requests of the next moment."""
    replica_set.candidates_until = now + _SHARED_NS
    eligible = replica_set.balancer.eligible
    count = len(eligible)
    if count > _MOST_CANDIDATES:
        # Others each time: of many workers the best are found among those of several requests.
        start = (now // _SHARED_NS) % count
        eligible = [eligible[(start + number) % count] for number in range(_MOST_CANDIDATES)]
    replica_set.candidates = tuple(
        [(each.endpoint.address, each.in_flight, each.report, each.reported_at, now) for each in eligible]
    )


def _of_attempt(attempt: Any, now: int, outcome: str) -> tuple[Any, ...]:
    return (
        attempt.replica.endpoint.address,
        attempt.replica_set.version,
        attempt.sent_at,
        now,
        outcome,
        attempt.is_hedge,
        attempt.streaming_at,
        attempt.load,
        attempt.candidates,
    )
