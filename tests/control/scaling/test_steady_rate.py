"""A rate that noise does not change, and that follows what readings prove."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.scaling.measured.steady_rate import SteadyRate

READING = 2.0


def taken(rates: list[float], value: float | None = None, *, is_single: bool = True) -> SteadyRate:
    found = SteadyRate(value)
    for rate in rates:
        found.take(rate, READING, is_single=is_single)
    return found


def changes(rate: SteadyRate, rates: list[float]) -> int:
    count = 0
    for each in rates:
        before = rate.value
        rate.take(each, READING, is_single=True)
        count += rate.value != before
    return count


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.none() | st.floats(0, 1e6))
def test_an_estimate_is_never_beyond_what_was_read(rates: list[float], value: float | None) -> None:
    found = taken(rates, value).value
    seen = [*rates, *([value] if value is not None else [])]
    if found is not None:
        assert min(seen) * (1 - 1e-9) <= found <= max(seen) * (1 + 1e-9)


@given(st.floats(0, 1e6), st.integers(31, 120))
def test_an_exact_rate_is_taken_once_and_stays(rate: float, readings: int) -> None:
    found = taken([rate] * readings, is_single=False)
    assert found.value is not None
    assert abs(found.value - rate) <= 1e-6 * rate
    assert changes(found, [rate] * 50) == 0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=29))
def test_a_model_with_replicas_to_give_back_has_no_rate_in_the_first_minute(rates: list[float]) -> None:
    assert taken(rates, is_single=False).value is None


def test_random_arrivals_change_the_estimate_less_than_once_in_ten_minutes() -> None:
    source = random.Random(5)
    for rate in (0.5, 5.0, 70.0):
        # Of a binomial with many trials, which is nearly a Poisson distribution.
        counts = [sum(source.random() < rate * READING / 1000 for _ in range(1000)) for _ in range(900)]
        found = taken([count / READING for count in counts[:30]])
        assert changes(found, [count / READING for count in counts[30:]]) <= 3


def test_a_step_up_counts_with_the_second_reading_and_a_step_down_after_a_minute() -> None:
    found = taken([10.0] * 60)
    found.take(80.0, READING, is_single=True)
    found.take(80.0, READING, is_single=True)
    assert found.value is not None
    assert found.value > 60
    for _ in range(200):
        found.take(80.0, READING, is_single=True)
    for _ in range(15):
        found.take(10.0, READING, is_single=True)
    assert found.value > 60, "half a minute later"
    for _ in range(300):
        found.take(10.0, READING, is_single=True)
    assert found.value < 13


def test_a_few_requests_prove_nothing() -> None:
    found = taken([0.0] * 60)
    assert found.value == 0
    found.take(0.5, READING, is_single=True)
    assert found.value == 0
