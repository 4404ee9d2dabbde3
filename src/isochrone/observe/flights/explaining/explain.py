"""One request in plain English: where it went, what it waited for, why, and what would have been better. Pure.

Takes whatever pages there are: a gateway may be gone, a worker may have restarted, a ring may have been overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from isochrone.observe.flights.explaining.causes import Cause, find_cause
from isochrone.observe.flights.explaining.parts import Part, divide, last_attempt
from isochrone.observe.flights.messages import (
    ANSWERED,
    AttemptFlight,
    Candidate,
    Event,
    FlightPage,
    GatewayFlight,
    WorkerFlight,
)

#: Candidates and batch-mates that a line names.
_MOST_NAMED = 4
_MILLISECOND = 1_000_000


class Explanation(msgspec.Struct, frozen=True):
    """The answer of ``isochrone why``."""

    id: str
    #: A value of ``Cause``.
    cause: str
    is_miss: bool
    total_ns: int
    #: They add up to ``total_ns``.
    parts: tuple[Part, ...]
    lines: tuple[str, ...]


def explain(request_id: str, pages: Sequence[FlightPage]) -> Explanation | None:
    """The latest request with this id; None: no page has one."""
    found = _latest_gateway(pages)
    gateway_page, gateway = found if found is not None else (None, None)
    last = last_attempt(gateway) if gateway is not None else None
    at_worker = _worker_of(pages, last)
    worker_page, worker = at_worker if at_worker is not None else (None, None)
    if gateway is None and worker is None:
        return None
    other_version = _other_version(gateway_page, gateway)
    parts = divide(
        gateway,
        worker,
        _events(gateway_page),
        _events(worker_page),
        _typical_run(gateway, worker, last, other_version),
    )
    lost_it = gateway is not None and worker is None and _was_never_there(pages, gateway_page, gateway, last)
    cause = find_cause(gateway, worker, parts, other_version_ns=other_version, worker_lost_it=lost_it)
    is_miss = any(each is not None and each.is_miss for each in (gateway, worker))
    total = sum(part.ns for part in parts)
    lines = [
        *_outcome(gateway, worker, last, total),
        *(f"{_ms(part.ns)} {part.stage}" for part in parts),
        *_reasons(gateway, worker, last, cause, other_version),
        *_better(gateway, last),
        *_doubts(pages, gateway, worker, last, lost_it),
    ]
    return Explanation(request_id, cause.value, is_miss, total, parts, tuple(lines))


# Which records.


def _latest_gateway(pages: Sequence[FlightPage]) -> tuple[FlightPage, GatewayFlight] | None:
    found = [(page, each) for page in pages for each in page.flights if isinstance(each, GatewayFlight)]
    return max(found, key=lambda pair: _ended_at(*pair), default=None)


def _ended_at(page: FlightPage, flight: GatewayFlight | WorkerFlight) -> float:
    """In seconds since 1970: the only clock that processes have in common, good to order requests by."""
    return page.time - (page.now - flight.ended) / 1e9


def _worker_of(pages: Sequence[FlightPage], attempt: AttemptFlight | None) -> tuple[FlightPage, WorkerFlight] | None:
    """The record of the worker that an attempt went to. Behind a proxy its port is another: then the latest one."""
    found = [(page, each) for page in pages for each in page.flights if isinstance(each, WorkerFlight)]
    if attempt is not None:
        there = [pair for pair in found if _is_at(pair[0], attempt.endpoint)]
        elsewhere = [pair for pair in found if not _is_at(pair[0], attempt.endpoint)]
        known = any(_is_at(page, attempt.endpoint) for page in pages)
        found = there or ([] if known else elsewhere)
    return max(found, key=lambda pair: _ended_at(*pair), default=None)


def _is_at(page: FlightPage, endpoint: str) -> bool:
    if page.endpoint:
        return page.endpoint == endpoint
    port = endpoint.rpartition(":")[2]
    return port in map(str, page.ports.values())


def _events(page: FlightPage | None) -> tuple[Event, ...]:
    return page.events if page is not None else ()


def _was_never_there(
    pages: Sequence[FlightPage], page: FlightPage | None, gateway: GatewayFlight, attempt: AttemptFlight | None
) -> bool:
    """Whether the worker of an attempt remembers that time and not the request."""
    if attempt is None or page is None:
        return False
    age = page.now - attempt.sent
    asked = [each for each in pages if each.role == "worker"]
    there = [each for each in asked if _is_at(each, attempt.endpoint)] or (asked if len(asked) == 1 else [])
    return bool(there) and all(each.kept_ns >= age for each in there)


# Figures to compare with.


def _other_version(page: FlightPage | None, gateway: GatewayFlight | None) -> int:
    """The latency of the current version, if a request got another one; 0: not known."""
    if page is None or gateway is None or not gateway.is_canary:
        return 0
    known = page.versions.get(gateway.model, ())
    return next((each.latency_ns for each in known if each.version == gateway.current_version), 0)


def _typical_run(
    gateway: GatewayFlight | None, worker: WorkerFlight | None, last: AttemptFlight | None, other_version: int
) -> int:
    """A run alone, where it is fastest; 0: nothing is known."""
    known = [worker.alone_ns if worker is not None else 0, other_version]
    if last is not None:
        known += [each.run_ns for each in last.candidates if each.endpoint != last.endpoint]
    return min((each for each in known if each > 0), default=0)


# Sentences.


def _outcome(
    gateway: GatewayFlight | None, worker: WorkerFlight | None, last: AttemptFlight | None, total: int
) -> Iterator[str]:
    flight = gateway or worker
    assert flight is not None
    what = f"model {flight.model}" + (f" version {flight.version}" if flight.version else "")
    if gateway is not None and gateway.epoch:
        what += f", epoch {gateway.epoch}"
    where = f" by {last.endpoint}" if last is not None else ""
    if flight.outcome == ANSWERED:
        said = f"answered{where} after {_ms(total)}"
    elif isinstance(flight, WorkerFlight) and flight.is_under_way:
        said = f"under way for {_ms(total)}"
    else:
        where = f", sent to {last.endpoint}" if last is not None else ", not sent to any worker"
        said = f"{flight.outcome} after {_ms(total)}{where if gateway is not None else ''}"
    yield f"{what}: {said}"
    if flight.message:
        yield f"the error was: {flight.message}"
    if flight.deadline:
        allowed = flight.deadline - flight.arrived
        late = flight.ended - flight.deadline
        verdict = f"missed by {_ms(late)}" if late > 0 else "not reached" if not flight.is_miss else "could not be met"
        yield f"the deadline was {_ms(allowed)}: {verdict}"


def _reasons(
    gateway: GatewayFlight | None,
    worker: WorkerFlight | None,
    last: AttemptFlight | None,
    cause: Cause,
    other_version: int,
) -> Iterator[str]:
    if gateway is not None:
        if gateway.is_canary:
            faster = f", whose workers take {_ms(other_version)}" if other_version else ""
            current = gateway.current_version or "the current one"
            yield f"the canary gave it version {gateway.version}, not {current}{faster}"
        if gateway.missed_by_ns:
            yield (
                f"admission: the best worker would have taken {_ms(gateway.expected_ns)},"
                f" {_ms(gateway.missed_by_ns)} too long"
            )
        for attempt in sorted(gateway.attempts, key=lambda each: each.sent):
            if attempt is not last:
                kind = "the hedge" if attempt.is_hedge else "an attempt"
                took = _ms(max(0, attempt.ended - attempt.sent))
                yield f"{kind} at {attempt.endpoint} ended after {took}: {attempt.outcome}"
    if last is not None:
        own = next((each for each in last.candidates if each.endpoint == last.endpoint), None)
        expected = f", expected to take {_ms(own.expected_ns)}" if own is not None and own.expected_ns else ""
        yield f"{last.endpoint} had {last.in_flight} of the model's requests in flight from this gateway{expected}"
    if worker is None:
        return
    if worker.missed_by_ns and not worker.compute_start:
        yield f"the worker rejected it: {worker.waiting} waited, and it would have been {_ms(worker.missed_by_ns)} late"
    batch = worker.batch
    if batch is not None and batch.requests > 1:
        named = ", ".join(mate.id for mate in batch.mates[:_MOST_NAMED] if mate.id)
        mates = f" ({named})" if named else ""
        yield f"it ran in a batch of {batch.requests} requests and {batch.rows} rows{mates}"
    if worker.compute_start and worker.alone_ns:
        ran = max(0, worker.compute_end - worker.compute_start)
        yield f"its run took {_ms(ran)}; alone, {_ms(worker.alone_ns)} were expected"
    if cause is Cause.QUEUE and batch is not None and batch.waiting:
        yield f"{batch.waiting} more requests waited when it was answered"


def _better(gateway: GatewayFlight | None, last: AttemptFlight | None) -> Iterator[str]:
    if gateway is None:
        return
    candidates: Sequence[Candidate] = last.candidates if last is not None else gateway.candidates
    known = sorted((each for each in candidates if each.expected_ns), key=lambda each: each.expected_ns)
    if last is None:
        for each in known[:_MOST_NAMED]:
            yield f"{each.endpoint} was expected to take {_ms(each.expected_ns)} ({_ms(each.wait_ns)} of it waiting)"
        return
    own = next((each for each in candidates if each.endpoint == last.endpoint), None)
    others = [each for each in known if each.endpoint != last.endpoint]
    if own is not None and own.expected_ns and others:
        best = others[0]
        if best.expected_ns < own.expected_ns:
            yield (
                f"better: {best.endpoint} was expected to take {_ms(best.expected_ns)}"
                f" ({_ms(best.wait_ns)} waiting) instead of {_ms(own.expected_ns)} ({_ms(own.wait_ns)} waiting)"
            )
        else:
            soonest = f"{best.endpoint}: {_ms(best.expected_ns)}"
            yield f"no other of {len(candidates)} workers was expected to be sooner ({soonest})"


def _doubts(
    pages: Sequence[FlightPage],
    gateway: GatewayFlight | None,
    worker: WorkerFlight | None,
    last: AttemptFlight | None,
    lost_it: bool,
) -> Iterator[str]:
    if gateway is None:
        yield "no gateway remembers it: what happened before the worker is not known"
    elif worker is None and last is not None:
        yield (
            f"{last.endpoint} remembers that time, but not this request: it never arrived there"
            if lost_it
            else f"no record of {last.endpoint}: it was not asked, has restarted, or has overwritten it"
        )
    kinds = [type(each) for page in pages for each in page.flights]
    same = kinds.count(GatewayFlight if gateway is not None else WorkerFlight)
    if same > 1:
        yield f"{same} requests had this id; this is the latest"


def _ms(ns: int) -> str:
    return f"{ns / _MILLISECOND:.3g} ms" if abs(ns) < 100 * _MILLISECOND else f"{ns / _MILLISECOND:.0f} ms"
