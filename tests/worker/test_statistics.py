"""Statistics, against sums and buckets made one request at a time."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, STAGES
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.statistics import ModelStatistics

#: Long ago by the machine's clock, however lately it was started.
ARRIVED = 0
PLAN = Plan("m", "1", (), None)


class Durations(NamedTuple):
    """Of one request, in the order they happen."""

    dispatch: int = 10
    queue: int = 200
    wait: int = 30
    gather: int = 4_000
    infer: int = 500_000
    split: int = 6_000
    answer: int = 700

    @property
    def request(self) -> int:
        return sum(self)

    @property
    def by_stage(self) -> tuple[int, ...]:
        return self.request, self.queue, self.gather, self.infer, self.split


def answered(durations: Durations) -> tuple[InferRequest, int]:
    request = InferRequest(PLAN, "", {}, ARRIVED)
    request.enqueued = request.arrived + durations.dispatch
    request.dispatched = request.enqueued + durations.queue
    request.compute_start = request.dispatched + durations.wait
    request.infer_start = request.compute_start + durations.gather
    request.infer_end = request.infer_start + durations.infer
    request.compute_end = request.infer_end + durations.split
    return request, request.compute_end + durations.answer


def statistics() -> ModelStatistics:
    return ModelStatistics("m", "3", wall_clock_ns=lambda: 1_700_000_000_123_456_789)


_nanoseconds = st.one_of(
    st.integers(0, 20_000_000_000),
    st.sampled_from(BUCKET_BOUNDS_NS),
    st.sampled_from([bound + 1 for bound in BUCKET_BOUNDS_NS]),
)
_durations = st.builds(Durations, *[_nanoseconds] * len(Durations._fields))


@settings(deadline=None)
@given(st.lists(st.tuples(_durations, st.integers(1, 64)), max_size=40), st.integers(1, 40))
def test_sums_and_histograms_are_those_of_the_requests(requests: list[tuple[Durations, int]], read_every: int) -> None:
    counted = statistics()
    for index, (durations, rows) in enumerate(requests):
        request, now = answered(durations)
        counted.record_success(request, now, rows)
        if index % read_every == 0:
            counted.to_protobuf()  # reading in between must lose and double nothing
    snapshot = counted.snapshot()
    assert snapshot.success == len(requests)
    assert snapshot.inference_count == sum(rows for _, rows in requests)
    for index, stage in enumerate(STAGES):
        expected = [0] * (len(BUCKET_BOUNDS_NS) + 1)
        for durations, _ in requests:
            # A bucket holds what is at most its bound, as Prometheus' "le" says.
            expected[bisect_left(BUCKET_BOUNDS_NS, durations.by_stage[index])] += 1
        assert snapshot.stages[stage].counts.tolist() == expected
        assert snapshot.stages[stage].sum_ns == sum(d.by_stage[index] for d, _ in requests)


def test_requests_that_ran_alone_are_those_that_ran_without_gather_and_split() -> None:
    alone, other = statistics(), statistics()
    for number in range(1, 100):
        durations = Durations(0, number * 1_000, 0, 0, number * 7_000, 0, 0)
        request, now = answered(durations)
        alone.record_single(request, now, number % 3 + 1)
        other.record_success(request, now, number % 3 + 1)
        other.record_batch(number % 3 + 1, 0, durations.infer, 0)
    assert alone.to_protobuf().inference_stats == other.to_protobuf().inference_stats
    assert alone.to_protobuf().batch_stats == other.to_protobuf().batch_stats
    assert alone.snapshot().inference_count == other.snapshot().inference_count
    for stage in STAGES:
        first, second = alone.snapshot().stages[stage], other.snapshot().stages[stage]
        assert (first.counts.tolist(), first.sum_ns) == (second.counts.tolist(), second.sum_ns)


def test_protobuf_has_tritons_meaning() -> None:
    counted = statistics()
    for durations in (Durations(queue=100), Durations(queue=300)):
        request, now = answered(durations)
        counted.record_success(request, now, 4)
    counted.record_batch(8, 11, 22, 33)
    counted.record_batch(8, 1, 2, 3)
    counted.record_batch(1, 5, 6, 7)
    hit, now = answered(Durations(queue=50))
    counted.record_cache_hit(hit, now, lookup_ns=9)
    counted.record_cache_miss(lookup_ns=3, insert_ns=4)
    counted.record_failure("model_failed", 1_000)
    counted.record_failure("cancelled", 500)
    counted.record_rejected("queue_full")

    message = counted.to_protobuf()
    each = Durations()
    assert (message.name, message.version) == ("m", "3")
    assert message.last_inference == 1_700_000_000_123
    assert message.inference_count == 8  # rows; the hit is not among them
    assert message.execution_count == 3
    stats = message.inference_stats
    request_ns = Durations(queue=100).request + Durations(queue=300).request + Durations(queue=50).request
    assert (stats.success.count, stats.success.ns) == (3, request_ns)
    assert (stats.queue.count, stats.queue.ns) == (3, 450)
    assert (stats.compute_input.count, stats.compute_input.ns) == (2, 2 * each.gather)
    assert (stats.compute_infer.count, stats.compute_infer.ns) == (2, 2 * each.infer)
    assert (stats.compute_output.count, stats.compute_output.ns) == (2, 2 * each.split)
    assert (stats.cache_hit.count, stats.cache_hit.ns) == (1, 9)
    assert (stats.cache_miss.count, stats.cache_miss.ns) == (1, 7)
    assert (stats.fail.count, stats.fail.ns) == (3, 1_500)
    by_size = {
        batch.batch_size: [
            (duration.count, duration.ns)
            for duration in (batch.compute_input, batch.compute_infer, batch.compute_output)
        ]
        for batch in message.batch_stats
    }
    assert by_size == {1: [(1, 5), (1, 6), (1, 7)], 8: [(2, 12), (2, 24), (2, 36)]}


def test_an_unused_model_still_tells_every_duration() -> None:
    message = statistics().to_protobuf()
    assert message.last_inference == 0
    shown = MessageToDict(message, preserving_proto_field_name=True)
    # perf_analyzer refuses statistics in which one of these is missing.
    assert set(shown["inference_stats"]) == {
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    }


def test_a_stage_without_marks_counts_as_zero() -> None:
    counted = statistics()
    counted.record_success(InferRequest(PLAN, "", {}, ARRIVED), ARRIVED + 77, 1)
    sums = {stage: histogram.sum_ns for stage, histogram in counted.snapshot().stages.items()}
    assert sums == {"request": 77, "queue": 0, "compute_input": 0, "compute_infer": 0, "compute_output": 0}


def test_a_hit_that_was_never_queued_waited_for_nothing() -> None:
    counted = statistics()
    counted.record_cache_hit(InferRequest(PLAN, "", {}, ARRIVED), ARRIVED + 60_000, lookup_ns=5)
    snapshot = counted.snapshot()
    assert snapshot.success == snapshot.cache_hits == 1
    assert snapshot.inference_count == 0
    assert snapshot.stages["request"].sum_ns == 60_000
    assert snapshot.stages["request"].counts.tolist()[:2] == [0, 1]
    assert (snapshot.stages["queue"].sum_ns, snapshot.stages["queue"].count) == (0, 1)
    assert snapshot.stages["compute_infer"].count == 0


def test_failures_and_rejections_are_told_by_code() -> None:
    counted = statistics()
    counted.record_failure("model_failed", 1)
    counted.record_failure("model_failed", 1)
    counted.record_rejected("queue_full")
    snapshot = counted.snapshot(digest="d", pending=5)
    assert snapshot.failures == {"model_failed": 2}
    assert snapshot.rejections == {"queue_full": 1}
    assert (snapshot.digest, snapshot.pending) == ("d", 5)


def test_a_snapshot_does_not_change_afterwards() -> None:
    counted = statistics()
    request, now = answered(Durations())
    counted.record_success(request, now, 1)
    snapshot = counted.snapshot()
    counted.record_success(request, now, 1)
    counted.record_failure("internal", 1)
    counted.snapshot()
    assert snapshot.success == 1
    assert snapshot.stages["request"].count == 1
    assert snapshot.failures == {}
    with pytest.raises(ValueError, match="read-only"):
        snapshot.stages["request"].counts[0] = 1
