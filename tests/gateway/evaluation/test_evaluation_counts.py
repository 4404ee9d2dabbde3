"""Counting two versions under evaluation: buckets hold what they say, counts only grow, reports survive JSON."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.evaluation.counts import EvaluationCounts, EvaluationReport, bucket_bounds, bucket_of

LATENCIES = st.integers(0, 1 << 46)


@given(st.integers(0, (1 << 42) - 1))
def test_a_latency_lies_in_its_bucket_and_buckets_are_narrow(latency: int) -> None:
    low, high = bucket_bounds(bucket_of(latency))
    assert low <= latency < high
    assert high - low <= max(1, low / 32)


def test_buckets_leave_no_gap_and_what_is_beyond_goes_to_the_last() -> None:
    last = bucket_of(1 << 60)
    ends = [bucket_bounds(bucket) for bucket in range(last + 1)]
    assert ends[0] == (0, 1)
    assert ends[-1][1] == 1 << 42
    assert all(left[1] == right[0] for left, right in pairwise(ends))
    assert bucket_of(-5) == 0


@given(st.lists(st.tuples(st.sampled_from(["1", "2", "3"]), LATENCIES, st.booleans()), max_size=60))
def test_what_is_told_is_what_was_counted(answers: list[tuple[str, int, bool]]) -> None:
    counts = EvaluationCounts("1", "2")
    seen: dict[str, list[int]] = {"1": [], "2": []}
    failures = {"1": 0, "2": 0}
    earlier = counts.report()
    for version, latency, failed in answers:
        counts.ended(version, latency, failed)
        if version in seen:
            failures[version] += failed
            seen[version] += [] if failed else [bucket_of(latency)]
        report = counts.report()
        assert all(report.versions[each].requests >= earlier.versions[each].requests for each in seen)
        earlier = report
    report = counts.report()
    assert (report.stable, report.canary, set(report.versions)) == ("1", "2", {"1", "2"})
    for version, buckets in seen.items():
        told = report.versions[version]
        assert (told.requests, told.failures) == (len(buckets) + failures[version], failures[version])
        assert told.histogram == tuple((bucket, buckets.count(bucket)) for bucket in sorted(set(buckets)))


def test_a_report_survives_json_and_a_new_trial_has_another_identity() -> None:
    counts = EvaluationCounts("1", "2")
    counts.ended("1", 1_000_000, False)
    counts.ended("2", 0, True)
    report = counts.report()
    assert msgspec.json.decode(msgspec.json.encode(report), type=EvaluationReport) == report
    assert EvaluationCounts("1", "2").identity != counts.identity
    assert counts.report().identity == report.identity
