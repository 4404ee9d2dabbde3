"""Retries: never more than their share over any schedule, and only of what repeats nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import (
    GRPC_INVALID_ARGUMENT,
    GRPC_RESOURCE_EXHAUSTED,
    GRPC_UNAVAILABLE,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    ModelFailed,
    QueueFull,
    Unavailable,
)
from isochrone.gateway.resilience.retry_budget import (
    Budget,
    Failure,
    Kind,
    RetryRules,
    failure_of,
    failure_of_grpc,
    failure_of_status,
    is_safe,
    retry_budget,
)

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
            budget.request(now)
            requests.append(now)
        for _ in range(wishes):
            left = budget.left(now)
            took = budget.take(now)
            assert took == (left >= 1)
            if took:
                granted.append(now)
            # What is in the whole window bounds what was granted in all of it but its oldest slot.
            recent = sum(at > now - window + SECOND for at in granted)
            assert recent <= ratio * sum(at > now - window - SECOND for at in requests) + floor * window / SECOND


def test_the_budget_comes_back_as_the_window_slides() -> None:
    budget = Budget(0.1, 0.0, 10 * SECOND)
    for _ in range(100):
        budget.request(0)
    assert [budget.take(0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not budget.take(5 * SECOND)
    for _ in range(20):
        budget.request(11 * SECOND)
    assert [budget.take(11 * SECOND) for _ in range(3)] == [True, True, False]


def test_a_quiet_model_may_still_retry() -> None:
    budget = retry_budget(RetryRules(floor_per_second=1, window_ns=2 * SECOND))
    assert [budget.take(SECOND) for _ in range(3)] == [True, True, False]


def test_switched_off_nothing_is_granted() -> None:
    budget = retry_budget(RetryRules(enabled=False))
    for _ in range(1_000):
        budget.request(0)
    assert not budget.take(0)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ConnectionLost("before", unprocessed=True), Failure.NOT_BEGUN),
        (ConnectionLost("in the midst"), Failure.UNCLEAR),
        (Unavailable("loading"), Failure.NOT_BEGUN),
        (QueueFull("full"), Failure.NOT_BEGUN),
        (DeadlineExceeded("late"), Failure.UNCLEAR),
        (ModelFailed("raised"), Failure.FINAL),
        (InvalidArgument("shape"), Failure.FINAL),
    ],
)
def test_how_an_error_failed(error: Unavailable, failure: Failure) -> None:
    assert failure_of(error) is failure


def test_how_an_answer_failed() -> None:
    assert failure_of_status(503) is failure_of_status(429) is Failure.NOT_BEGUN
    assert failure_of_status(502) is Failure.UNCLEAR
    assert failure_of_status(500) is failure_of_status(404) is Failure.FINAL
    assert failure_of_grpc(GRPC_UNAVAILABLE) is failure_of_grpc(GRPC_RESOURCE_EXHAUSTED) is Failure.NOT_BEGUN
    assert failure_of_grpc(GRPC_INVALID_ARGUMENT) is Failure.FINAL


def safe(
    kind: Kind = Kind.STATELESS,
    failure: Failure = Failure.NOT_BEGUN,
    *,
    rules: RetryRules | None = None,
    attempts: int = 1,
    answered: bool = False,
    remaining_ns: int = SECOND,
    needed_ns: int = 0,
) -> bool:
    return is_safe(
        rules or RetryRules(),
        kind,
        failure,
        attempts=attempts,
        answered=answered,
        deadline=7 * SECOND + remaining_ns,
        now=7 * SECOND,
        needed_ns=needed_ns,
    )


@pytest.mark.parametrize("kind", Kind)
def test_what_was_not_begun_is_safe_for_all_and_what_is_final_for_none(kind: Kind) -> None:
    assert safe(kind, Failure.NOT_BEGUN)
    assert not safe(kind, Failure.FINAL)


def test_what_may_have_begun_is_safe_only_without_state() -> None:
    assert [kind for kind in Kind if safe(kind, Failure.UNCLEAR)] == [Kind.STATELESS]
    assert not safe(failure=Failure.UNCLEAR, rules=RetryRules(idempotent=False))


def test_never_after_the_deadline_or_too_late_to_help() -> None:
    assert not safe(remaining_ns=0)
    assert not safe(remaining_ns=3 * MS, needed_ns=3 * MS)
    assert safe(remaining_ns=3 * MS + 1, needed_ns=3 * MS)


def test_never_once_the_caller_has_a_part_of_the_answer_or_attempts_are_used_up() -> None:
    assert not safe(answered=True)
    assert [safe(attempts=attempts) for attempts in (1, 2, 3, 4)] == [True, True, False, False]
    assert not safe(rules=RetryRules(enabled=False))
