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
from isochrone.observe.flights.ring import Flights, Record
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
_ENDED = 5
#: The member ``id`` of a request's JSON.
_ID = re.compile(rb'[{,]\s*"id"\s*:\s*("(?:[^"\\]|\\.)*")')


class GatewayFlights:
    """The flight recorder of one gateway. On the loop's thread."""

    def __init__(self, settings: RecorderSettings, fleet: Fleet, ports: Callable[[], Mapping[str, int]]) -> None:
        self.events = ProcessEvents(settings.events)
        self._flights = Flights(settings.requests)
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
            if plain not in record[9] and quoted not in record[9] and request_id not in record[10]:
                continue
            if request_id == id_of(record[9]) or request_id in record[10]:
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
        for _, record in self._flights.missed.latest():
            if len(found) >= most:
                break
            named = id_of(record[9]) or next(iter(record[10]), "")
            outcome = record[16][0] if record[16] is not None else _OUTCOMES.get(record[12][4], "failed")
            ended = wall - (now - record[_ENDED]) / 1e9
            total = record[_ENDED] - record[0]
            found.append(FlightSummary(named, record[6], record[7], ended, total, outcome, True))
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
            kept_ns=now - oldest[_ENDED] if oldest is not None else 0,
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

    def _flight(self, record: Record) -> GatewayFlight:
        came, arrived, waits_since, sent, deadline, ended, model, version, epoch = record[:9]
        opening, caller_ids, priority, last, flown, canary, status, failure = record[9:]
        attempts = [_attempt(each) for each in flown or ()]
        if last is not None:
            answered = _attempt((*last[:4], _OUTCOMES.get(last[4], "failed"), *last[5:]))
            # A rejection that no other attempt could mend is both.
            attempts = [each for each in attempts if (each.endpoint, each.sent) != (answered.endpoint, answered.sent)]
            attempts.append(answered)
        code, message, decided_by, expected, missed_by, candidates = failure or (ANSWERED, "", "", 0, 0, ())
        return GatewayFlight(
            id=id_of(opening) or next(iter(caller_ids), ""),
            model=model,
            version=version,
            arrived=came,
            ended=ended,
            outcome=code if last is None else _OUTCOMES.get(last[4], "failed"),
            further_ids=tuple(caller_ids),
            message=message,
            rejected_by=decided_by,
            status=status,
            deadline=0 if deadline == NEVER else deadline,
            priority=priority,
            epoch=epoch,
            current_version=self._stable(model, canary) if canary is not None else "",
            is_canary=canary is not None and canary.version == version,
            waited_since=waits_since,
            admitted=arrived if arrived != came else 0,
            sent=sent,
            attempts=tuple(attempts),
            expected_ns=expected,
            missed_by_ns=missed_by,
            candidates=tuple(map(_candidate, candidates)),
        )


def id_of(opening: bytes) -> str:
    """The id in the first bytes of a request: of JSON, or of a protobuf message."""
    if opening[:1] in (b"{", b" ", b"\n", b"\r", b"\t"):
        found = _ID.search(opening)
        try:
            return str(msgspec.json.decode(found[1], type=str)) if found is not None else ""
        except msgspec.DecodeError:
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
