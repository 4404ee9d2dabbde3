"""The rate that a worker sustains within the SLO."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.autoscaler.capacity import rate_at_slo

CURVE = [0.0, 0.010, 0.015, 0.0, 0.025, 0.0, 0.0, 0.0, 0.045]


def test_the_largest_batch_that_fits_twice_decides() -> None:
    # 8 rows take 45 ms: 90 ms with the wait for the batch before. 4 rows: 50 ms.
    assert rate_at_slo(CURVE, 0.100) == pytest.approx(8 / 0.045)
    assert rate_at_slo(CURVE, 0.089) == pytest.approx(4 / 0.025)
    assert rate_at_slo(CURVE, 0.100, headroom=0.2) == pytest.approx(4 / 0.025)
    assert rate_at_slo(CURVE, 0.100, instances=3) == pytest.approx(3 * 8 / 0.045)


def test_sizes_without_a_measurement_are_not_taken_for_free() -> None:
    assert rate_at_slo([0.0, 0.010, 0.0], 1.0) == pytest.approx(100)
    assert rate_at_slo([0.0, 0.0], 1.0) == 0
    assert rate_at_slo([], 1.0) == 0


def test_a_larger_batch_with_less_throughput_is_not_chosen() -> None:
    assert rate_at_slo([0.0, 0.010, 0.030], 1.0) == pytest.approx(100)


def test_no_worker_keeps_an_slo_below_two_smallest_batches() -> None:
    assert rate_at_slo(CURVE, 0.019) == 0


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
    st.floats(0.001, 2),
    st.floats(0.001, 2),
    st.floats(0, 0.9),
)
def test_a_longer_slo_never_lowers_the_rate(curve: list[float], slo: float, other: float, headroom: float) -> None:
    short, long = sorted((slo, other))
    assert rate_at_slo(curve, short, headroom) <= rate_at_slo(curve, long, headroom)
    assert rate_at_slo(curve, short, headroom) <= rate_at_slo(curve, short)
