"""What a gateway remembers of its last requests, read when somebody asks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from isochrone.clock import NEVER, now_ns
from isochrone.gateway.flights.recording import FlightRecording
from isochrone.gateway.flights.records import GatewayFlightRecord
from isochrone.gateway.latencies import version_durations
from isochrone.observe.flights.messages import (
    ANSWERED,
    GATEWAY,
    AttemptFlight,
    Candidate,
    FlightPage,
    FlightSummary,
    GatewayFlight,
    VersionFact,
)
from isochrone.observe.flights.process_events import GcWatch, ProcessEvents
from isochrone.observe.flights.ring import Flights
from isochrone.protocol.grpc.routing_fields import request_id

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.traffic.canary import CanaryRules
    from isochrone.observe.flights.settings import RecorderSettings

_MOST_FLIGHTS = 4
#: What an answer was to its caller.
_OUTCOMES = {
    version_durations.ANSWERED: ANSWERED,
    version_durations.DEADLINE_EXCEEDED: "deadline_exceeded",
    version_durations.REJECTED: "rejected",
    version_durations.FAILED: "failed",
}
#: The member ``id`` of a request's JSON.
_ID = re.compile(rb'[{,]\s*"id"\s*:\s*("(?:[^"\\]|\\.)*")')


class GatewayFlights:
    """The flight recorder of one gateway. On the loop's thread."""

    def __init__(self, settings: RecorderSettings, fleet: Fleet, ports: Callable[[], Mapping[str, int]]) -> None:
        self.events = ProcessEvents(settings.events)
        self._flights = Flights(settings.requests, GatewayFlightRecord)
        self.recording = FlightRecording(self._flights)
        self._fleet = fleet
        self._ports = ports
        self._gc = GcWatch(self.events)

    @property
    def role(self) -> str:
        return GATEWAY

    def start(self) -> None:
        self._gc.start()

    def stop(self) -> None:
        self._gc.stop()

    def page(self, request_id: str) -> FlightPage:
        """What is known of the requests with this id."""
        found: list[GatewayFlight] = []
        quoted, plain = msgspec.json.encode(request_id), request_id.encode()
        for record in self._flights.records():
            # Most records are somebody else's: their bytes say so without being read.
            if plain not in record.opening and quoted not in record.opening and request_id not in record.caller_ids:
                continue
            if request_id == id_of(record.opening) or request_id in record.caller_ids:
                found.append(self._flight(record))
                if len(found) == _MOST_FLIGHTS:
                    break
        return self._page(tuple(found))

    def missed_since(self, count: int, most: int) -> tuple[int, list[FlightPage]]:
        """The number of misses so far, and a page for each of the last ``most`` since ``count``."""
        missed = self._flights.missed
        records = missed.since(max(count, missed.count - most))
        return missed.count, [self._page((self._flight(record),)) for record in records]

    def summaries(self, most: int) -> tuple[FlightSummary, ...]:
        """The latest requests that missed their deadline, the newest first."""
        now, wall = now_ns(), time.time()
        found: list[FlightSummary] = []
        for record in self._flights.missed.latest():
            if len(found) >= most:
                break
            named = id_of(record.opening) or next(iter(record.caller_ids), "")
            ended = wall - (now - record.ended) / 1e9
            total = record.ended - record.came
            found.append(FlightSummary(named, record.model, record.version, ended, total, _outcome(record), True))
        return tuple(found)

    def _page(self, found: tuple[GatewayFlight, ...]) -> FlightPage:
        now = now_ns()
        oldest = self._flights.latest.oldest()
        began = min((flight.arrived for flight in found), default=now)
        ended = max((flight.ended for flight in found), default=now)
        return FlightPage(
            role=GATEWAY,
            pid=os.getpid(),
            now=now,
            time=time.time(),
            kept_ns=now - oldest.ended if oldest is not None else 0,
            kept=len(self._flights.latest),
            ports=dict(self._ports()),
            flights=found,
            events=self.events.during(began, ended) if found else (),
            versions={flight.model: self._versions(flight.model) for flight in found},
        )

    def _versions(self, model: str) -> tuple[VersionFact, ...]:
        served = self._fleet.models.get(model)
        if served is None:
            return ()
        facts = []
        for (version, _), replica_set in served.replica_sets.items():
            known = [each.latency_ns for each in replica_set.replicas.values() if each.latency_ns]
            facts.append(VersionFact(version, int(sum(known) / len(known)) if known else 0))
        return tuple(facts)

    def _stable(self, model: str, canary: CanaryRules) -> str:
        """The version that is not under evaluation."""
        served = self._fleet.models.get(model)
        return canary.stable or (served.current.version if served is not None else "")

    def _flight(self, record: GatewayFlightRecord) -> GatewayFlight:
        attempts = [_attempt(each) for each in record.flown or ()]
        if record.endpoint:
            answered = AttemptFlight(
                record.endpoint,
                record.version,
                record.sent_last,
                record.answered_at,
                _outcome(record),
                record.is_hedge,
                record.streaming_at,
                record.load,
                tuple(map(_candidate, record.candidates)),
            )
            # A rejection that no other attempt could mend is both.
            attempts = [each for each in attempts if (each.endpoint, each.sent) != (answered.endpoint, answered.sent)]
            attempts.append(answered)
        _, message, decided_by, expected, missed_by = record.failure or ("", "", "", 0, 0)
        canary = record.canary
        return GatewayFlight(
            id=id_of(record.opening) or next(iter(record.caller_ids), ""),
            model=record.model,
            version=record.version,
            arrived=record.came,
            ended=record.ended,
            outcome=_outcome(record),
            further_ids=tuple(record.caller_ids),
            message=message,
            rejected_by=decided_by,
            status=record.status,
            deadline=0 if record.deadline == NEVER else record.deadline,
            priority=record.priority,
            epoch=record.epoch,
            current_version=self._stable(record.model, canary) if canary is not None else "",
            is_canary=canary is not None and canary.version == record.version,
            waited_since=record.waits_since,
            admitted=record.arrived if record.arrived != record.came else 0,
            sent=record.sent,
            attempts=tuple(attempts),
            expected_ns=expected,
            missed_by_ns=missed_by,
            candidates=() if record.endpoint else tuple(map(_candidate, record.candidates)),
        )


def _outcome(record: GatewayFlightRecord) -> str:
    if record.failure is not None:
        return record.failure[0]
    return _OUTCOMES.get(record.ended_as, "failed")


def id_of(opening: bytes) -> str:
    """The id in the first bytes of a request: of JSON, or of a protobuf message."""
    if opening[:1] in (b"{", b" ", b"\n", b"\r", b"\t"):
        found = _ID.search(opening)
        try:
            return str(msgspec.json.decode(found[1], type=str)) if found is not None else ""
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""
    return request_id(opening).decode("utf-8", "replace")


def _attempt(values: tuple[Any, ...]) -> AttemptFlight:
    address, version, sent, ended, outcome, is_hedge, streaming_at, load, candidates = values
    rows = tuple(map(_candidate, candidates))
    return AttemptFlight(address, version, sent, ended, outcome, is_hedge, streaming_at, load, rows)


def _candidate(values: tuple[Any, ...]) -> Candidate:
    address, in_flight, report, reported_at, now = values
    age = max(0, now - reported_at) if reported_at else -1
    run = report.alone_ns or report.run_ns
    return Candidate(address, in_flight, report.queue, report.wait_ns, run, age)
