"""The error of reused outputs, and the alarm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.activation_cache.sampling import ErrorMonitor, output_error

Array = np.ndarray[Any, Any]


def error(reused: Any, computed: Any) -> float:
    return output_error({"y": np.asarray(reused)}, {"y": np.asarray(computed)})


def test_the_error_is_relative_to_what_was_computed() -> None:
    assert error([3.0, 4.0], [3.0, 4.0]) == 0
    assert error([3.0, 4.5], [3.0, 4.0]) == pytest.approx(0.1)
    assert error(np.array([3, 5], np.uint8), np.array([3, 4], np.uint8)) == pytest.approx(0.2)
    assert error(np.array([3, 4], np.float16), np.array([3, 4], np.float16)) == 0


def test_the_worst_output_counts_and_one_is_the_most() -> None:
    computed = {"a": np.ones(4), "b": np.ones(4)}
    assert output_error({"a": np.ones(4), "b": np.full(4, 1.5)}, computed) == pytest.approx(0.5)
    assert output_error({"a": np.ones(4), "b": np.full(4, -9.0)}, computed) == 1


def test_what_cannot_be_compared_is_entirely_wrong() -> None:
    assert error(np.ones(3), np.ones(4)) == 1
    assert error(np.ones(4, np.float32), np.ones(4)) == 1
    assert error([0.0, 1.0], [0.0, 0.0]) == 1
    assert error([0.0, 0.0], [0.0, 0.0]) == 0
    assert error([np.nan, 1.0], [np.nan, 1.0]) == 0
    assert error([np.nan, 1.0], [2.0, 1.0]) == 1
    assert error([np.inf], [1.0]) == 1
    assert output_error({"x": np.ones(1)}, {"y": np.ones(1)}) == 1


def test_of_texts_the_share_that_differs() -> None:
    reused, computed = np.array([b"cat", b"dog"], object), np.array([b"cat", b"cow"], object)
    assert error(reused, computed) == 0.5
    assert error(np.array([True, False]), np.array([True, True])) == 0.5


def test_the_alarm_begins_over_the_budget_and_ends_well_inside() -> None:
    monitor = ErrorMonitor(budget=0.1, share=0.0, seed="d")
    assert not monitor.takes_sample()
    assert not monitor.record(0.05)
    assert monitor.record(0.5)
    assert monitor.is_alarmed
    # While it lasts, every hit is a sample.
    assert monitor.takes_sample()
    changes = [monitor.record(0.0) for _ in range(60)]
    assert changes.count(True) == 1
    assert not monitor.is_alarmed
    assert monitor.estimate <= 0.05
    assert (monitor.samples, monitor.over_budget, monitor.largest) == (62, 1, 0.5)


def test_one_answer_that_is_entirely_wrong_is_seen_among_good_ones() -> None:
    monitor = ErrorMonitor(budget=0.05, share=0.01, seed="d")
    for _ in range(1000):
        monitor.record(0.0)
    assert monitor.record(1.0)


def test_the_same_hits_are_sampled_with_the_same_seed() -> None:
    first, second = (ErrorMonitor(0.1, 0.1, "digest") for _ in range(2))
    chosen = [first.takes_sample() for _ in range(2000)]
    assert chosen == [second.takes_sample() for _ in range(2000)]
    assert 120 < sum(chosen) < 280


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0.01, 1))
def test_the_estimate_lies_between_the_samples(errors: list[float], budget: float) -> None:
    monitor = ErrorMonitor(budget, 0.0, "d")
    for each in errors:
        monitor.record(each)
    assert min(errors) - 1e-9 <= monitor.estimate <= max(errors) + 1e-9
    if max(errors) <= budget:
        assert not monitor.is_alarmed
