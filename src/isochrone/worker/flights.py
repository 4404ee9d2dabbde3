"""What a worker remembers of its last requests, read when somebody asks: ``flight_records``, and the queues.

Nothing here runs on the way of a request. Records are written over in place, so what is read of them leaves them before
the event loop goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from isochrone.clock import NEVER, now_ns
from isochrone.observe.flights.messages import (
    ANSWERED,
    LOAD,
    WORKER,
    BatchFlight,
    BatchMate,
    FlightPage,
    FlightSummary,
    WorkerFlight,
)
from isochrone.observe.flights.process_events import GcWatch, ProcessEvents
from isochrone.observe.flights.ring import Record
from isochrone.worker.execution.queued_runner import QueuedRunner
from isochrone.worker.flight_records import WorkerFlightRecord, WorkerFlightRecords

if TYPE_CHECKING:
    from isochrone.observe.flights.settings import RecorderSettings
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.catalog.catalog import Catalog
    from isochrone.worker.served_version import ServedVersion

#: Requests with the same id that one page shows, and batch-mates that it names.
_MOST_FLIGHTS, _MOST_MATES = 4, 8


class _Runs:
    """The records of one instant by their runs: requests that began to run at the same time ran together. Made once for
    all requests of one question, since it reads every record."""

    def __init__(self, flights: WorkerFlightRecords) -> None:
        self._members: dict[tuple[Any, int], list[WorkerFlightRecord]] = {}
        for record in flights.records():
            self._members.setdefault((record.who, record.compute_start), []).append(record)
        self._batches: dict[tuple[Any, int], Record] = {}
        for _, batch in flights.batches.latest():
            self._batches.setdefault((batch[0], batch[1]), batch)

    def batch_of(self, record: WorkerFlightRecord) -> BatchFlight | None:
        who, start = record.who, record.compute_start
        if not start:
            return None
        members = self._members.get((who, start), ())
        mates = [BatchMate(each.id, each.rows) for each in members if each.number != record.number]
        batch = self._batches.get((who, start))
        if batch is not None:
            _, _, rows, requests, expected, waiting, instance = batch
            return BatchFlight(requests, rows, instance, expected, waiting, tuple(mates[:_MOST_MATES]))
        rows = record.rows + sum(mate.rows for mate in mates)
        return BatchFlight(1 + len(mates), rows, mates=tuple(mates[:_MOST_MATES]))


class WorkerFlights:
    """The flight recorder of one worker. On the loop's thread."""

    def __init__(self, settings: RecorderSettings, catalog: Catalog, ports: Callable[[], Mapping[str, int]]) -> None:
        self.events = ProcessEvents(settings.events)
        self._flights = WorkerFlightRecords(settings.requests)
        self._catalog = catalog
        self._ports = ports
        self._gc = GcWatch(self.events)

    @property
    def role(self) -> str:
        return WORKER

    def start(self) -> None:
        self._gc.start()

    def stop(self) -> None:
        self._gc.stop()

    def attach(self, served: ServedVersion) -> None:
        """A version is served from now on."""
        served.statistics.flights = self._flights
        now = now_ns()
        self.events.add(LOAD, now, now, f"{served.model_name} version {served.model_version}")

    # Reading.

    def page(self, request_id: str) -> FlightPage:
        """What is known of the requests with this id."""
        found = list(self._under_way(request_id))
        records = [record for record in self._flights.records() if record.id == request_id]
        if records:
            runs = _Runs(self._flights)
            found += [self._flight(record, runs) for record in records[: max(0, _MOST_FLIGHTS - len(found))]]
        return self._page(tuple(found))

    def missed_since(self, count: int, most: int) -> tuple[int, list[FlightPage]]:
        """The number of misses so far, and a page for each of the last ``most`` since ``count``."""
        missed = self._flights.missed
        records = missed.since(max(count, missed.count - most))
        if not records:
            return missed.count, []
        runs = _Runs(self._flights)
        return missed.count, [self._page((self._flight(record, runs),)) for record in records]

    def summaries(self, most: int) -> tuple[FlightSummary, ...]:
        """The latest requests that missed their deadline, the newest first."""
        now, wall = now_ns(), time.time()
        found: list[FlightSummary] = []
        for record in self._flights.missed.latest():
            if len(found) >= most:
                break
            model, version = record.who
            outcome = record.failure[0] if record.failure is not None else ANSWERED
            ended = wall - (now - record.ended) / 1e9
            found.append(FlightSummary(record.id, model, version, ended, record.ended - record.arrived, outcome, True))
        return tuple(found)

    def _page(self, found: tuple[WorkerFlight, ...]) -> FlightPage:
        now = now_ns()
        oldest = self._flights.latest.oldest()
        began = min((flight.arrived - _way(flight) for flight in found), default=now)
        ended = max((flight.ended for flight in found), default=now)
        return FlightPage(
            role=WORKER,
            pid=os.getpid(),
            now=now,
            time=time.time(),
            kept_ns=now - oldest.ended if oldest is not None else 0,
            kept=len(self._flights.latest),
            ports=dict(self._ports()),
            flights=found,
            events=self.events.during(began, ended) if found else (),
        )

    def _flight(self, record: WorkerFlightRecord, runs: _Runs) -> WorkerFlight:
        model, version = record.who
        code, message, missed_by, waiting = record.failure or (ANSWERED, "", 0, 0)
        return WorkerFlight(
            id=record.id,
            model=model,
            version=version,
            rows=record.rows,
            arrived=record.arrived,
            ended=record.ended,
            outcome=code,
            message=message,
            deadline=0 if record.deadline == NEVER else record.deadline,
            priority=record.priority,
            enqueued=record.enqueued,
            dispatched=record.dispatched,
            compute_start=record.compute_start,
            infer_start=record.infer_start,
            infer_end=record.infer_end,
            compute_end=record.compute_end,
            alone_ns=self._alone(model, version, record.rows),
            batch=runs.batch_of(record),
            waiting=waiting,
            missed_by_ns=missed_by,
        )

    def _alone(self, model: str, version: str, rows: int) -> int:
        """How long a run of so many rows is expected to take; 0: not known, or the version is gone."""
        served = self._catalog.served((model, version))
        curve = getattr(served.runner, "curve", None) if served is not None else None
        return int(curve.estimate(rows)) if curve is not None else 0

    def _under_way(self, request_id: str) -> Iterator[WorkerFlight]:
        """Requests that wait or run now."""
        now = now_ns()
        for served in self._catalog.all_versions():
            runner = served.runner
            if isinstance(runner, QueuedRunner):
                for request in _requests_of(runner):
                    if request_id in (request.id, request.caller_id):
                        yield self._unfinished(served, request, now)

    def _unfinished(self, served: ServedVersion, request: InferRequest, now: int) -> WorkerFlight:
        model, version = served.model_name, served.model_version
        rows = request.plan.batch_size
        return WorkerFlight(
            id=request.id or request.caller_id,
            model=model,
            version=version,
            rows=rows,
            arrived=request.arrived,
            ended=now,
            outcome="under way",
            deadline=0 if request.deadline == NEVER else request.deadline,
            priority=request.plan.priority,
            enqueued=request.enqueued,
            dispatched=request.dispatched,
            # Its batch notes the start of the run, and tells it with the answer.
            compute_start=request.dispatched,
            alone_ns=self._alone(model, version, rows),
            is_under_way=True,
        )


def _requests_of(runner: QueuedRunner) -> Iterator[InferRequest]:
    yield from runner.queue.waiting()
    for instance in runner.instances:
        for batch in (instance.running, instance.following):
            if batch is not None:
                yield from batch.requests


def _way(flight: WorkerFlight) -> int:
    """How long before its arrival an event may have delayed it: it waited in a socket."""
    return max(flight.ended - flight.arrived, flight.deadline - flight.arrived if flight.deadline else 0, 10**9)
