"""Expected times: exact where the model of costs holds, bounded where it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_costs import Cost

from isochrone.optimize.profiling.search.estimates import Estimates, on_curve
from isochrone.optimize.profiling.search.space import Configuration


@given(
    st.floats(1e3, 1e7), st.floats(1e2, 1e6), st.floats(0.0, 1.0), st.floats(0.0, 2.0), st.sampled_from([1, 2, 4, 8])
)
def test_a_cost_of_this_form_is_estimated_exactly(
    fixed: float, row: float, serial: float, contention: float, threads: int
) -> None:
    cost = Cost(8, fixed, row, serial, contention)
    known = [(1, 1, 1), (8, 1, 1), (8, 1, 8), (8, 2, 4)]
    times: dict[tuple[int, int], dict[int, float]] = {}
    for batch, *pair in known:
        times.setdefault((pair[0], pair[1]), {})[batch] = cost.run_ns(Configuration(batch, *pair))
    given_pair = (threads, 8 // threads)
    expected = cost.run_ns(Configuration(64, *given_pair))
    assert Estimates(times).run_ns(64, given_pair) == pytest.approx(expected, rel=1e-6)


def test_what_is_unknown_is_ideal() -> None:
    estimates = Estimates({(1, 1): {1: 100.0, 8: 170.0}})
    assert estimates.run_ns(16, (1, 1)) == pytest.approx(250.0)
    assert estimates.run_ns(16, (1, 4)) == pytest.approx(250.0)
    assert estimates.run_ns(16, (4, 1)) == pytest.approx(62.5)


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 32]), st.floats(1.0, 1e9), min_size=1), st.integers(1, 64))
def test_estimates_are_positive_whatever_was_measured(times: dict[int, float], batch: int) -> None:
    estimates = Estimates({(1, 1): times, (2, 1): {4: 5.0}})
    for pair in ((1, 1), (2, 1), (1, 2), (4, 1)):
        assert estimates.run_ns(batch, pair) > 0


def test_a_curve_goes_on_beyond_its_ends() -> None:
    curve = [(1.0, 10.0), (3.0, 20.0), (5.0, 60.0)]
    assert [on_curve(curve, at) for at in (2.0, 4.0, 6.0)] == [15.0, 40.0, 80.0]
    assert on_curve(curve[:1], 9.0) == 10.0
