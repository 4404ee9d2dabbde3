"""The queue between the event loop and the exporter, and the spans of a record."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import NEVER
from isochrone.observe.tracing.record import ERROR, SHARE, BatchMembers, RequestRecord, TraceQueue
from isochrone.observe.tracing.spans import INTERNAL, SERVER, Span, links_to, spans_of

OFFSET = 1_000_000


def record(**changes: Any) -> RequestRecord:
    """A request that waited from 10 to 20 and was computed in a batch until 50."""
    plain = RequestRecord(
        reason=SHARE,
        model="m",
        version="3",
        request_id="r",
        rows=1,
        arrived=5,
        enqueued=10,
        dispatched=20,
        compute_start=25,
        infer_start=30,
        infer_end=40,
        compute_end=50,
        ended=55,
        deadline=NEVER,
        trace_id=7,
        span_id=8,
        parent_id=9,
        trace_state="",
        error_code="",
        error_message="",
        batch=None,
        steps=None,
    )
    return plain._replace(**changes)


def spans(given: RequestRecord) -> dict[str, Span]:
    numbers = count(100)
    return {span.name: span for span in spans_of(tuple(given), OFFSET, lambda: next(numbers))}


def test_the_stages_of_a_request() -> None:
    made = spans(record())
    assert list(made) == ["infer m", "queue", "batch", "compute"]
    request, queue, batch, compute = made.values()
    assert [(span.start - OFFSET, span.end - OFFSET) for span in made.values()] == [
        (5, 55),
        (10, 20),
        (20, 50),
        (30, 40),
    ]
    assert {span.trace_id for span in made.values()} == {7}
    assert (request.span_id, request.parent_id, request.kind) == (8, 9, SERVER)
    assert (queue.parent_id, batch.parent_id, compute.parent_id) == (8, 8, batch.span_id)
    assert request.attributes == {
        "isochrone.model": "m",
        "isochrone.version": "3",
        "isochrone.rows": 1,
        "isochrone.kept": "share",
        "isochrone.request_id": "r",
    }
    assert request.error is None


def test_a_request_that_never_ran() -> None:
    failed = record(
        reason=ERROR, dispatched=0, compute_start=0, infer_start=0, infer_end=0, compute_end=0,
        error_code="deadline_exceeded", error_message="too late", deadline=45,
    )  # fmt: skip
    made = spans(failed)
    assert list(made) == ["infer m", "queue"]
    assert (made["queue"].start - OFFSET, made["queue"].end - OFFSET) == (10, 55)
    assert made["infer m"].error == "too late"
    assert made["infer m"].attributes["error.type"] == "deadline_exceeded"
    assert made["infer m"].attributes["isochrone.deadline_missed"] is True
    # One that was rejected on arrival has not waited.
    assert list(spans(failed._replace(enqueued=5))) == ["infer m"]


def test_steps_are_children_of_their_ensemble() -> None:
    step = record(reason="", model="step", parent_id=8, span_id=80)
    made = spans(record(model="all", steps=[tuple(step)]))
    assert list(made) == ["infer all", "infer step", "queue", "batch", "compute"]
    assert made["infer step"].parent_id == 8
    assert made["infer step"].kind == INTERNAL
    assert made["queue"].parent_id == 80


def test_a_batch_is_linked_to_its_other_members() -> None:
    batch = BatchMembers(77, 3, 6)
    # Two members may be kept; the caller of the first is 1-10, and a third member has a caller, too.
    batch.kept += [(1, 11, 10), (7, 8, 9)]
    batch.callers += [(1, 10), (7, 9), (2, 20)]
    assert links_to(batch, 7, 8, 9) == ((1, 11), (2, 20))
    made = spans(record(batch=batch))
    assert made["batch"].links == ((1, 11), (2, 20))
    assert made["batch"].attributes == {
        "isochrone.batch.requests": 3,
        "isochrone.batch.rows": 6,
        "isochrone.batch.id": f"{77:016x}",
    }


def test_links_are_bounded() -> None:
    batch = BatchMembers(1, 1000, 1000)
    batch.kept += [(1, number, 0) for number in range(1, 1001)]
    assert len(links_to(batch, 1, 1, 0)) == 128


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=200))
def test_the_queue_is_bounded_and_counts(limit: int, puts: list[bool]) -> None:
    queue = TraceQueue(limit)
    put = taken = 0
    for is_put in puts:
        if is_put:
            queue.put(tuple(record(span_id=put)))
            put += 1
        else:
            taken += len(queue.take(3))
        assert len(queue) <= limit
    assert put == queue.kept[SHARE] + queue.dropped
    assert queue.kept[SHARE] == taken + len(queue)


def test_records_leave_the_queue_in_order() -> None:
    queue = TraceQueue(10)
    for number in range(5):
        queue.put(tuple(record(span_id=number)))
    assert [RequestRecord._make(each).span_id for each in queue.take(3)] == [0, 1, 2]
    assert [RequestRecord._make(each).span_id for each in queue.take(3)] == [3, 4]
    assert queue.take(3) == []


def test_a_member_that_is_not_among_the_kept_is_not_linked_to_its_own_caller() -> None:
    batch = BatchMembers(77, 2, 2)
    batch.callers += [(7, 9), (2, 20)]
    assert links_to(batch, 7, 8, 9) == ((2, 20),)
