"""Explanations: parts add up whatever is missing, nothing raises, and known cases get their cause."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.flights.explaining.causes import Cause
from isochrone.observe.flights.explaining.explain import explain
from isochrone.observe.flights.explaining.parts import overlap
from isochrone.observe.flights.messages import (
    ANSWERED,
    GC_PAUSE,
    STALL,
    AttemptFlight,
    BatchFlight,
    BatchMate,
    Candidate,
    Event,
    FlightPage,
    GatewayFlight,
    VersionFact,
    WorkerFlight,
)

MS = 1_000_000
instants = st.one_of(st.just(0), st.integers(0, 10**12), st.integers(-5, 10**18))
few = st.integers(0, 50)
outcomes = st.sampled_from([ANSWERED, "deadline_exceeded", "unavailable", "cancelled", "under way"])
endpoints = st.sampled_from(["10.0.0.1:8000", "10.0.0.2:8000", ""])
candidates = st.lists(st.builds(Candidate, endpoints, few, few, instants, instants, instants), max_size=3).map(tuple)
attempts = st.lists(
    st.builds(AttemptFlight, endpoints, st.just("1"), instants, instants, outcomes, st.booleans(), instants, few)
    | st.builds(AttemptFlight, endpoints, st.just("1"), instants, instants, outcomes, candidates=candidates),
    max_size=3,
).map(tuple)
gateways = st.builds(
    GatewayFlight,
    id=st.just("a"),
    model=st.just("m"),
    version=st.sampled_from(["1", "2", ""]),
    arrived=instants,
    ended=instants,
    outcome=outcomes,
    rejected_by=st.sampled_from(["", "quota", "breaker", "no worker"]),
    deadline=instants,
    current_version=st.sampled_from(["", "1"]),
    is_canary=st.booleans(),
    waited_since=instants,
    admitted=instants,
    sent=instants,
    attempts=attempts,
    expected_ns=instants,
    missed_by_ns=instants,
    candidates=candidates,
)
batches = st.none() | st.builds(
    BatchFlight, few, few, few, instants, few, st.lists(st.builds(BatchMate, st.text(max_size=3), few)).map(tuple)
)
workers = st.builds(
    WorkerFlight,
    id=st.just("a"),
    model=st.just("m"),
    version=st.just("1"),
    rows=few,
    arrived=instants,
    ended=instants,
    outcome=outcomes,
    deadline=instants,
    enqueued=instants,
    dispatched=instants,
    compute_start=instants,
    infer_start=instants,
    infer_end=instants,
    compute_end=instants,
    alone_ns=instants,
    batch=batches,
    waiting=few,
    missed_by_ns=instants,
    is_under_way=st.booleans(),
)
events = st.lists(st.builds(Event, st.sampled_from([GC_PAUSE, STALL, "epoch"]), instants, instants), max_size=4)
pages = st.lists(
    st.builds(
        FlightPage,
        role=st.sampled_from(["gateway", "worker"]),
        pid=few,
        now=instants,
        time=st.floats(0, 2e9),
        kept_ns=instants,
        kept=few,
        ports=st.dictionaries(st.sampled_from(["http", "grpc"]), st.sampled_from([8000, 8001])),
        endpoint=endpoints,
        flights=st.lists(gateways | workers, max_size=3).map(tuple),
        events=events.map(tuple),
        versions=st.just({}) | st.just({"m": (VersionFact("1", MS),)}),
    ),
    max_size=4,
)


@given(pages)
def test_any_records_are_explained_and_their_parts_add_up(found: list[FlightPage]) -> None:
    said = explain("a", found)
    if said is None:
        assert not any(page.flights for page in found) or all(
            isinstance(each, WorkerFlight) for page in found for each in page.flights
        )
        return
    assert said.cause in [cause.value for cause in Cause]
    assert sum(part.ns for part in said.parts) == said.total_ns
    assert all(part.ns > 0 for part in said.parts)
    assert said.lines
    assert all(msgspec.json.decode(msgspec.json.encode(page), type=FlightPage) == page for page in found)


@given(st.tuples(few, few), st.lists(st.tuples(few, few)))
def test_overlap_is_that_of_a_set(span: tuple[int, int], others: list[tuple[int, int]]) -> None:
    covered = {point for began, ended in others for point in range(began, ended)}
    assert overlap(span, others) == len(covered & set(range(*span)))


def page(*flights: GatewayFlight | WorkerFlight, role: str, **more: object) -> FlightPage:
    made = FlightPage(role, 1, 10**10, 1000.0, 10**10, 5, flights=tuple(flights))
    return msgspec.structs.replace(made, **more)


def a_gateway(**more: object) -> GatewayFlight:
    chosen = Candidate("w1:1", 3, 2, 48 * MS, 2 * MS, MS)
    other = Candidate("w2:1", 1, 0, 3 * MS, 2 * MS, MS)
    attempt = AttemptFlight("w1:1", "1", MS, 101 * MS, ANSWERED, in_flight=3, candidates=(chosen, other))
    made = GatewayFlight("a", "m", "1", 0, 102 * MS, ANSWERED, deadline=50 * MS, sent=MS, attempts=(attempt,))
    return msgspec.structs.replace(made, **more)


def a_worker(queue: int, run: int, **more: object) -> WorkerFlight:
    """Of ``queue`` and ``run`` ms."""
    start, end = queue * MS, (queue + run) * MS
    made = WorkerFlight(
        *("a", "m", "1", 1, 1, 1 + end, ANSWERED),
        enqueued=1,
        compute_start=1 + start,
        compute_end=1 + end,
        alone_ns=2 * MS,
    )
    return msgspec.structs.replace(made, **more)


@pytest.mark.parametrize(
    ("worker", "cause"),
    [
        (a_worker(90, 5), "queue"),
        (a_worker(1, 95), "slow worker"),
        (a_worker(1, 2), "network"),
        (a_worker(1, 95, batch=BatchFlight(3, 3)), "batch-mate"),
    ],
)
def test_the_longest_part_names_the_cause(worker: WorkerFlight, cause: str) -> None:
    said = explain("a", [page(a_gateway(), role="gateway"), page(worker, role="worker")])
    assert said is not None
    assert (said.cause, said.is_miss, said.total_ns) == (cause, True, 102 * MS)
    better = "better: w2:1 was expected to take 5 ms (3 ms waiting) instead of 50 ms (48 ms waiting)"
    assert better in said.lines


def test_a_pause_is_named_wherever_it_hides() -> None:
    for worker, span in ((a_worker(90, 5), (5 * MS, 85 * MS)), (a_worker(1, 2), (-90 * MS, -1 * MS))):
        pause = Event(GC_PAUSE, *span)
        said = explain("a", [page(a_gateway(), role="gateway"), page(worker, role="worker", events=(pause,))])
        assert said is not None
        assert said.cause == "GC pause"


def test_a_canary_is_named_where_the_other_version_is_faster() -> None:
    gateway = a_gateway(version="2", is_canary=True, current_version="1")
    facts = {"m": (VersionFact("1", 3 * MS), VersionFact("2", 90 * MS))}
    known = page(gateway, role="gateway", versions=facts)
    said = explain("a", [known, page(a_worker(1, 95), role="worker")])
    assert said is not None
    assert said.cause == "canary"


def test_a_worker_that_never_saw_it_is_not_called_slow() -> None:
    remembers = page(role="worker")
    said = explain("a", [page(a_gateway(), role="gateway"), remembers])
    assert said is not None
    assert said.cause == "network"
    restarted = msgspec.structs.replace(remembers, kept_ns=0)
    said = explain("a", [page(a_gateway(), role="gateway"), restarted])
    assert said is not None
    assert said.cause == "slow worker"


def test_the_latest_of_several_requests_is_explained() -> None:
    early, late = a_gateway(), a_gateway(arrived=200 * MS, ended=203 * MS, attempts=(), deadline=0)
    said = explain("a", [page(early, late, role="gateway")])
    assert said is not None
    assert said.total_ns == 3 * MS
    assert "2 requests had this id; this is the latest" in said.lines
