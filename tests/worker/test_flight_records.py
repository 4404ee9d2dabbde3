"""Records that are written over in place, against lists of all requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import NEVER
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.flight_records import WorkerFlightRecords

PLAN = Plan("m", "1", (), None)
WHO = ("m", "1")


def request_of(number: int, deadline: int = NEVER) -> InferRequest:
    return InferRequest(PLAN, f"r{number}", {}, number, deadline)


@given(st.integers(1, 20), st.lists(st.sampled_from(["answered", "alone", "late", "failed", "missed"]), max_size=120))
def test_misses_outlive_other_requests_and_every_request_comes_once(size: int, outcomes: list[str]) -> None:
    flights = WorkerFlightRecords(size)
    misses: list[int] = []
    for number, outcome in enumerate(outcomes):
        request = request_of(number, number if outcome == "late" else NEVER)
        if outcome == "alone":
            request.infer_start, request.infer_end = number + 2, number + 3
            flights.answered_alone(WHO, request, number + 4, 2)
        elif outcome in ("answered", "late"):
            flights.answered(WHO, request, number + 4, 2)
        else:
            flights.failed(WHO, request, number + 4, ("code", "why", 0, 0), is_miss=outcome == "missed")
        if outcome in ("late", "missed"):
            misses.append(number)
    latest = list(range(len(outcomes)))[-(1 << (size - 1).bit_length()) :]
    lasting = misses[-(1 << (max(1, size // 4) - 1).bit_length()) :]
    expected = [*latest[::-1], *(number for number in lasting[::-1] if number < latest[0])]
    found = list(flights.records())
    assert [record.number for record in found] == expected
    for record in found:
        outcome = outcomes[record.number]
        assert (record.id, record.arrived, record.ended) == (f"r{record.number}", record.number, record.number + 4)
        assert (record.failure is not None) == (outcome in ("failed", "missed"))
        alone = (record.number + 2, record.number + 2, record.number + 3)
        ran = (record.compute_start, record.dispatched, record.compute_end)
        assert ran == (alone if outcome == "alone" else (0, 0, 0))


def test_an_answer_from_a_cache_is_no_run() -> None:
    flights = WorkerFlightRecords(4)
    request = request_of(0, deadline=8)
    request.dispatched = request.compute_start = request.infer_start = request.infer_end = request.compute_end = 9
    flights.answered_without_run(WHO, request, 9)
    for record in (flights.latest.newest(), flights.missed.newest()):
        assert (record.dispatched, record.ended, record.number) == (9, 9, 0)
        assert (record.compute_start, record.infer_start, record.infer_end, record.compute_end) == (0, 0, 0, 0)


def test_long_ids_are_cut() -> None:
    flights = WorkerFlightRecords(4)
    flights.answered(WHO, InferRequest(PLAN, "x" * 10_000, {}, 1), 2, 1)
    assert [len(record.id) for record in flights.records()] == [200]
