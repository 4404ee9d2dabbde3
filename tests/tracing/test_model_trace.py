"""What the event loop records of a traced model: every miss and error, callers' choices, steps and batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced_requests import caller, request

from isochrone.clock import SECOND, now_ns
from isochrone.errors import Cancelled, DeadlineExceeded, IsochroneError, ModelFailed, QueueFull
from isochrone.observe.tracing.record import RequestRecord, TraceQueue
from isochrone.observe.tracing.tail_sampling import MINUTE_NS, TraceShare
from isochrone.observe.tracing.trace_parent import parse_trace_parent
from isochrone.worker.tracing.model_trace import ModelTrace
from isochrone.worker.tracing.sent_context import SentContext


def traced(rate: int = 0, count: int = -1, limit: int = 1000) -> tuple[ModelTrace, TraceQueue]:
    queue = TraceQueue(limit)
    return ModelTrace(TraceShare(rate, count), queue, now_ns()), queue


def reasons(queue: TraceQueue) -> list[str]:
    return [each.reason for each in records(queue)]


def records(queue: TraceQueue) -> list[RequestRecord]:
    return [RequestRecord._make(each) for each in queue.take(10_000)]


ERRORS = (ModelFailed("m"), QueueFull("q"), DeadlineExceeded("d"), Cancelled("c"))


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from((None, *ERRORS)), st.sampled_from((None, False, True)))),
    st.integers(0, 7),
)
def test_every_miss_error_and_sampled_caller_is_kept(
    ends: list[tuple[bool, IsochroneError | None, bool | None]], rate: int
) -> None:
    trace, queue = traced(rate)
    expected = set()
    for number, (late, error, sampled) in enumerate(ends):
        made = request(late=late, identity=str(number), context=None if sampled is None else caller(is_sampled=sampled))
        if error is None:
            trace.finished(made)
        else:
            trace.failed(made, error)
        if late or sampled or (error is not None and not isinstance(error, Cancelled)):
            expected.add(str(number))
    trace.tick(now_ns())
    kept = records(queue)
    assert expected <= {each.request_id for each in kept}
    # Beside them only the share of the others.
    assert len(kept) - len(expected) <= (len(ends) // rate if rate else 0)
    for each in kept:
        late, error, _ = ends[int(each.request_id)]
        if late or isinstance(error, DeadlineExceeded):
            assert each.reason == "deadline_miss"
        elif error is not None and not isinstance(error, Cancelled):
            assert (each.reason, each.error_code, each.error_message) == ("error", error.code, error.message)


def test_the_slowest_are_kept_when_their_minute_is_over() -> None:
    trace, queue = traced()
    now = now_ns()
    for number in range(20):
        trace.finished(request(age_ns=number * SECOND, identity=str(number)))
    trace.tick(now)
    assert len(queue) == 0
    trace.tick(now_ns() + MINUTE_NS)
    kept = records(queue)
    assert [(each.reason, each.request_id) for each in kept] == [
        ("slowest", str(number)) for number in range(19, 14, -1)
    ]


def test_the_count_ends_it_for_all_reasons() -> None:
    trace, queue = traced(rate=1, count=3)
    for _ in range(2):
        trace.finished(request())
        trace.failed(request(), ModelFailed("m"))
    assert reasons(queue) == ["share", "error", "share"]
    trace.finished(request(late=True))
    trace.close(now_ns())
    assert reasons(queue) == []


def test_a_full_queue_drops_and_counts() -> None:
    trace, queue = traced(rate=1, limit=2)
    for _ in range(5):
        trace.finished(request())
    assert (len(queue), queue.dropped, queue.kept["share"]) == (2, 3, 2)


def test_a_request_is_a_child_of_its_caller() -> None:
    trace, queue = traced()
    trace.finished(request(context=caller(5, 6)))
    (record,) = records(queue)
    assert (record.trace_id, record.parent_id, record.trace_state) == (5, 6, "a=b")
    assert record.span_id not in (0, 6)
    assert record.reason == "caller"


@pytest.mark.parametrize("context", [None, {"traceparent": "nonsense"}, {"baggage": "a=b"}])
def test_a_request_without_a_valid_caller_begins_a_trace(context: Mapping[str, str] | None) -> None:
    trace, queue = traced(rate=1)
    for _ in range(2):
        trace.finished(request(context=context))
    first, second = records(queue)
    assert first.parent_id == second.parent_id == 0
    assert 0 != first.trace_id != second.trace_id != 0


def test_what_is_sent_on_is_the_span_of_the_request() -> None:
    trace, queue = traced()
    made = request(context=caller(5, 6))
    sent = trace.begin(made)
    assert trace.begin(made) is sent
    trace.finished(made)
    (record,) = records(queue)
    named = parse_trace_parent(sent["traceparent"])
    assert named is not None
    assert (named.trace_id, named.span_id, named.is_sampled) == (5, record.span_id, True)
    assert record.parent_id == 6
    assert (sent["tracestate"], sent["baggage"]) == ("a=b", "c=d")


def test_the_share_is_decided_when_a_context_is_sent_on() -> None:
    trace, queue = traced(rate=2)
    flags = []
    for _ in range(6):
        made = request()
        sent = parse_trace_parent(trace.begin(made)["traceparent"])
        assert sent is not None
        flags.append(sent.is_sampled)
        trace.finished(made)
    assert flags == [False, True] * 3
    assert reasons(queue) == ["share"] * 3


@pytest.mark.parametrize("late", [False, True])
def test_steps_are_kept_or_dropped_with_their_request(late: bool) -> None:
    trace, queue = traced()
    whole = request(late=late, context=caller(5, 6, is_sampled=False))
    sent = trace.begin(whole)
    for number in range(2):
        trace.finished(request(context=sent, identity=str(number)))
    trace.failed(request(context=sent), ModelFailed("m"))
    assert len(queue) == 0
    trace.finished(whole)
    kept = records(queue)
    if not late:
        assert kept == []
        return
    (record,) = kept
    assert record.steps is not None
    assert [step[3] for step in record.steps] == ["0", "1", ""]
    names = type(record)._fields
    for step in record.steps:
        made: dict[str, Any] = dict(zip(names, step, strict=True))
        assert (made["trace_id"], made["parent_id"]) == (5, record.span_id)


def test_requests_that_have_ended_are_forgotten() -> None:
    trace, _ = traced()
    for error in (None, ModelFailed("m"), Cancelled("c")):
        made = request()
        sent = trace.begin(made)
        trace.begin(request_of_step := request(context=sent))
        if error is None:
            trace.finished(request_of_step)
            trace.finished(made)
        else:
            trace.failed(request_of_step, error)
            trace.failed(made, error)
    assert not trace._begun


def test_steps_of_one_request_are_bounded() -> None:
    trace, _ = traced()
    sent = trace.begin(request())
    for _ in range(1000):
        trace.finished(request(context=sent))
    assert isinstance(sent, SentContext)
    assert len(sent.steps) == 64


def test_members_of_a_batch_are_linked() -> None:
    trace, queue = traced(rate=2)
    members = [request(), request(context=caller(3, 4, is_sampled=False)), request(), request(late=True)]
    for each in members:
        each.compute_start, each.compute_end = 10, 20
    trace.batch_answered(members, 4)
    for each in members:
        trace.finished(each)
    trace.batch_over()
    kept = records(queue)
    assert [each.reason for each in kept] == ["share", "deadline_miss"]
    batches = {id(each.batch) for each in kept}
    assert len(batches) == 1
    batch = kept[0].batch
    assert batch is not None
    assert (batch.requests, batch.rows, batch.callers) == (4, 4, [(3, 4)])
    assert {span for _, span, _ in batch.kept} >= {each.span_id for each in kept}
    # Answered in between, of another batch; and after it.
    other = request(late=True)
    trace.batch_answered(members, 4)
    trace.finished(other)
    trace.batch_over()
    trace.finished(request(late=True))
    assert [each.batch for each in records(queue)] == [None, None]


def test_exemplars_name_traces_that_are_kept() -> None:
    trace, queue = traced(limit=1)
    kept = trace.finished(request(context=caller(trace_id=7)))
    assert kept == f"{7:032x}"
    assert trace.finished(request(context=caller(trace_id=8))) == "", "the queue was full"
    assert trace.finished(request(context=caller(trace_id=9, is_sampled=False))) == ""
    assert [each.trace_id for each in records(queue)] == [7]


def test_a_fault_of_tracing_touches_no_answer() -> None:
    trace, _ = traced(rate=1)
    trace._queue = None  # type: ignore[assignment]
    assert trace.finished(request()) == ""
    assert trace.failed(request(), ModelFailed("x")) == ""
