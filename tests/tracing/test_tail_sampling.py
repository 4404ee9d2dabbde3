"""Tail sampling: shares, counts, and the slowest of each minute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.tracing.tail_sampling import MINUTE_NS, SlowestOfMinute, TraceShare


@given(st.integers(1, 50), st.integers(0, 500))
def test_every_rate_th_request_is_due(rate: int, requests: int) -> None:
    share = TraceShare(rate, -1)
    due = [number for number in range(1, requests + 1) if share.is_due()]
    assert due == list(range(rate, requests + 1, rate))


def test_a_rate_of_zero_is_never_due() -> None:
    share = TraceShare(0, -1)
    assert not any(share.is_due() for _ in range(1000))


@given(st.integers(-1, 20), st.integers(0, 40))
def test_no_more_traces_than_the_count(count: int, wanted: int) -> None:
    share = TraceShare(1, count)
    kept = sum(share.spend() for _ in range(wanted))
    assert kept == (wanted if count < 0 else min(wanted, count))
    assert share.left == (-1 if count < 0 else count - kept)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 6))
def test_the_slowest_are_kept_and_nothing_else(durations: list[int], most: int) -> None:
    slowest = SlowestOfMinute(0, most)
    for number, duration in enumerate(durations):
        # As the worker asks: what is not above the threshold is not offered.
        if duration > slowest.threshold:
            slowest.add(duration, ("slowest", duration, number))
    kept = slowest.ended(MINUTE_NS)
    assert [record[1] for record in kept] == sorted(durations, reverse=True)[:most]


def test_minutes_are_judged_each_by_itself() -> None:
    slowest = SlowestOfMinute(0, 1)
    slowest.add(100, ("a",))
    assert slowest.threshold == 100
    assert slowest.ended(MINUTE_NS - 1) == []
    assert slowest.ended(MINUTE_NS) == [("a",)]
    assert slowest.threshold < 0
    slowest.add(1, ("b",))
    assert slowest.ended(MINUTE_NS + 1) == []
    assert slowest.ended(2 * MINUTE_NS) == [("b",)]
    assert slowest.ended(3 * MINUTE_NS) == []


@given(st.lists(st.integers(1, 10_000), max_size=300))
def test_memory_is_bounded(durations: list[int]) -> None:
    slowest = SlowestOfMinute(0)
    for duration in durations:
        slowest.add(duration, (duration,))
    assert len(slowest.close(0)) <= 5
