"""The retry budget: never more than its share over any schedule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.resilience.retry_budget import Budget, RetryRules, retry_budget

MS = 1_000_000
SECOND = 1_000 * MS


@given(
    ratio=st.sampled_from([0.0, 0.05, 0.1, 1.0]),
    floor=st.sampled_from([0.0, 0.2, 3.0]),
    steps=st.lists(st.tuples(st.sampled_from([0, 1, 90, 400, 3_000, 20_000]), st.integers(0, 30), st.integers(0, 9))),
)
def test_never_more_than_the_share_over_any_window(
    ratio: float, floor: float, steps: list[tuple[int, int, int]]
) -> None:
    window = 10 * SECOND
    budget = Budget(ratio, floor, window)
    now, requests, granted = 0, list[int](), list[int]()
    for passed_ms, sends, wishes in steps:
        now += passed_ms * MS
        for _ in range(sends):
            budget.unbooked += 1
            budget.book(now)
            requests.append(now)
        for _ in range(wishes):
            if budget.take(now):
                granted.append(now)
            # What is in the whole window bounds what was granted in all of it but its oldest slot.
            recent = sum(at > now - window + SECOND for at in granted)
            assert recent <= ratio * sum(at > now - window - SECOND for at in requests) + floor * window / SECOND


def test_the_budget_comes_back_as_the_window_slides() -> None:
    budget = Budget(0.1, 0.0, 10 * SECOND)
    for _ in range(100):
        budget.unbooked += 1
        budget.book(0)
    assert [budget.take(0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not budget.take(5 * SECOND)
    for _ in range(20):
        budget.unbooked += 1
        budget.book(11 * SECOND)
    assert [budget.take(11 * SECOND) for _ in range(3)] == [True, True, False]


def test_a_quiet_model_may_still_retry() -> None:
    budget = retry_budget(RetryRules(floor_per_second=1, window_ns=2 * SECOND))
    assert [budget.take(SECOND) for _ in range(3)] == [True, True, False]


def test_switched_off_nothing_is_granted() -> None:
    budget = retry_budget(RetryRules(enabled=False))
    for _ in range(1_000):
        budget.unbooked += 1
        budget.book(0)
    assert not budget.take(0)
