"""Adding up what gateways counted: differences since a step began, gateways that restart, join and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.evaluation.figures import Figures, Tally
from isochrone.gateway.evaluation.counts import EvaluationCounts, bucket_bounds, bucket_of


def answer(counts: EvaluationCounts, version: str, times: int, latency: int = 1000, failed: bool = False) -> None:
    for _ in range(times):
        counts.ended(version, latency, failed)


def test_only_what_came_since_the_first_report_counts() -> None:
    one, other = EvaluationCounts("1", "2"), EvaluationCounts("1", "2")
    answer(one, "1", 10)
    answer(one, "2", 3, failed=True)
    tally = Tally("1", "2")
    tally.take("a", one.report())
    tally.take("b", other.report())
    assert tally.figures() == (Figures(), Figures())
    answer(one, "1", 5, latency=2000)
    answer(other, "1", 2)
    answer(other, "2", 1, failed=True)
    tally.take("a", one.report())
    tally.take("b", other.report())
    stable, canary = tally.figures()
    assert stable == Figures(7, 0, {bucket_of(2000): 5, bucket_of(1000): 2})
    assert canary == Figures(1, 1, {})


def test_a_gateway_that_counts_anew_loses_nothing_that_was_read() -> None:
    first = EvaluationCounts("1", "2")
    tally = Tally("1", "2")
    answer(first, "2", 4)
    tally.take("a", first.report())
    answer(first, "2", 6)
    tally.take("a", first.report())
    again = EvaluationCounts("1", "2")
    # More than before the restart: the counts alone do not show it.
    answer(again, "2", 50)
    tally.take("a", again.report())
    assert tally.figures()[1].requests == 56
    answer(again, "2", 1)
    tally.take("a", again.report())
    assert tally.figures()[1].requests == 57


def test_latencies_are_forgotten_and_answers_and_failures_are_not() -> None:
    first, tally = EvaluationCounts("1", "2"), Tally("1", "2")
    tally.take("a", first.report())
    answer(first, "1", 4)
    answer(first, "2", 2, failed=True)
    tally.take("a", first.report())
    again = EvaluationCounts("1", "2")
    answer(again, "1", 3, latency=2000)
    tally.take("a", again.report())
    tally.forget_latencies()
    assert tally.figures() == (Figures(7, 0, {}), Figures(2, 2, {}))
    answer(again, "1", 5, latency=2000)
    answer(again, "2", 1)
    tally.take("a", again.report())
    assert tally.figures() == (Figures(12, 0, {bucket_of(2000): 5}), Figures(3, 2, {bucket_of(1000): 1}))


def test_a_gateway_that_joins_counts_from_its_start_and_one_that_is_silent_keeps_its_counts() -> None:
    counts = EvaluationCounts("1", "2")
    answer(counts, "1", 8)
    tally = Tally("1", "2")
    tally.take("late", counts.report(), joined=True)
    tally.take("late", None)
    tally.take("late", EvaluationCounts("1", "3").report())
    assert tally.figures()[0].requests == 8


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(latencies: list[int], share: float) -> None:
    counts = EvaluationCounts("1", "2")
    for latency in latencies:
        counts.ended("1", latency, False)
    figures = Figures.of(counts.report().versions["1"])
    rank = next(number for number in range(1, len(latencies) + 1) if number >= share * len(latencies))
    low, high = bucket_bounds(bucket_of(sorted(latencies)[rank - 1]))
    assert low <= figures.quantile(share) <= high


def test_without_answers_there_is_no_quantile() -> None:
    assert Figures().quantile(0.95) == 0.0
