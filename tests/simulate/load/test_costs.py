"""Every distribution of work has mean 1 and the shape it is named for."""

from __future__ import annotations

import numpy as np
import pytest

from isochrone.simulate.load.costs import Constant, Cost, Exponential, Lognormal, Normal, Pareto

COUNT = 200_000


def drawn(cost: Cost) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values: np.ndarray[tuple[int], np.dtype[np.float64]] = cost.draw(np.random.default_rng(7))(COUNT)
    return values


@pytest.mark.parametrize(
    "cost", [Constant(), Exponential(), Lognormal(cv=0.5), Lognormal(cv=2), Normal(), Normal(cv=0.3), Pareto(shape=2.5)]
)
def test_the_mean_is_one_and_nothing_is_negative(cost: Cost) -> None:
    values = drawn(cost)
    assert len(values) == COUNT
    assert values.mean() == pytest.approx(1.0, rel=0.02)
    assert values.min() > 0


def test_lognormal_has_its_coefficient_of_variation() -> None:
    assert drawn(Lognormal(cv=0.5)).std() == pytest.approx(0.5, rel=0.02)


def test_normal_is_prequals_truncated_at_zero() -> None:
    # Of a normal with sigma = mu, the part above 0 has mean 1.2876 mu and standard deviation 0.7935 mu.
    values = drawn(Normal(cv=1.0))
    assert values.std() == pytest.approx(0.7935 / 1.2876, rel=0.02)
    # P(X < mu) given X > 0.
    assert (values < 1 / 1.2876).mean() == pytest.approx((0.5 - 0.15866) / 0.84134, abs=0.01)


def test_pareto_begins_at_a_third_of_its_mean_and_has_parks_tail() -> None:
    values = drawn(Pareto(shape=1.5))
    assert values.min() == pytest.approx(1 / 3, rel=0.001)
    # P(X > 10 times the smallest) = 10 ** -1.5.
    assert (values > 10 / 3).mean() == pytest.approx(10**-1.5, rel=0.05)
