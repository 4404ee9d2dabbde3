"""What a gateway keeps of each request: values that exist already, written into a record when the request is over.

On the way of every request. Nothing is formatted here, no clock is read, and a record refers to nothing that holds a
connection or a worker that has left, and of a body only the bytes that may name the request: ``reading`` makes sense of
it when somebody asks. A fault here is logged, and costs no request its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError, NoWorkerReady
from isochrone.gateway.flights.records import GatewayFlightRecord
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
            number = self._flights.latest.count
            record: GatewayFlightRecord = self._flights.latest.next()
            _fill(record, number, request, attempt, opening, now)
            if now > request.deadline or attempt.ended_as == DEADLINE_EXCEEDED:
                missed: GatewayFlightRecord = self._flights.missed.next()
                _fill(missed, number, request, attempt, opening, now)
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
        number = self._flights.latest.count
        records: list[GatewayFlightRecord] = [self._flights.latest.next()]
        if is_miss or now > request.deadline:
            records.append(self._flights.missed.next())
        for record in records:
            _fill_request(record, number, request, now)
            record.version = version
            record.epoch = request.epoch
            record.priority = demand.priority if demand is not None else 0
            record.endpoint = ""
            record.load = None
            record.candidates = candidates
            record.status = 0
            record.flown = request.flown
            record.failure = failure
            record.waits_since = request.waits_since
            _name(record, request, opening)


def _fill(
    record: GatewayFlightRecord, number: int, request: CallerRequest, attempt: UpstreamAttempt, opening: bytes, now: int
) -> None:
    """Of a request whose attempt was answered."""
    _fill_request(record, number, request, now)
    # Most requests never waited.
    record.waits_since = 0 if request.arrived == request.came_at else request.waits_since
    record.version = attempt.replica_set.version
    record.epoch = 0 if request.served.commitment is None else request.epoch
    record.priority = request.demand.priority
    record.endpoint = attempt.replica.endpoint.address
    record.sent_last = attempt.sent_at
    record.answered_at = attempt.answered_at
    record.ended_as = attempt.ended_as
    # Defaults of a class are slow to read: most requests have one attempt.
    again = len(request.tried) > 1
    record.is_hedge = again and attempt.is_hedge
    record.flown = request.flown if again else None
    record.streaming_at = attempt.streaming_at if attempt.streaming else 0
    record.load = attempt.load
    record.candidates = attempt.candidates
    record.status = attempt.status
    record.failure = None
    _name(record, request, opening)


def _name(record: GatewayFlightRecord, request: CallerRequest, opening: bytes) -> None:
    """Last, so that a record that a fault left half-written is nobody's."""
    record.opening = opening
    record.caller_ids = request.caller_ids


def _fill_request(record: GatewayFlightRecord, number: int, request: CallerRequest, now: int) -> None:
    record.opening = b""
    record.caller_ids = ()
    served = request.served
    record.number = number
    record.came = request.came_at
    record.arrived = request.arrived
    record.sent = request.sent_at
    record.deadline = request.deadline
    record.ended = now
    record.model = served.name
    canary = served.canary
    record.canary = None if canary is None or request.version else canary.rules


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
