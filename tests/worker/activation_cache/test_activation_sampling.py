"""The error of reused outputs, and the alarm."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.activation_cache.sampling import (
    ALARM_SAMPLES,
    COMPARED_ELEMENTS,
    JUDGED_SAMPLES,
    ErrorMonitor,
    _spaced,
    output_error,
)

Array = np.ndarray[Any, Any]


def error(reused: Any, computed: Any) -> float:
    return output_error({"y": np.asarray(reused)}, {"y": np.asarray(computed)})


def test_the_error_is_relative_to_what_was_computed() -> None:
    assert error([3.0, 4.0], [3.0, 4.0]) == 0
    assert error([3.0, 4.5], [3.0, 4.0]) == pytest.approx(0.1)
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
    assert error([np.inf, 1.0], [-np.inf, 1.0]) == 1
    assert output_error({"x": np.ones(1)}, {"y": np.ones(1)}) == 1


def test_infinities_in_the_same_places_leave_the_error_of_the_others() -> None:
    computed = np.array([-np.inf, 3.0, np.inf, 4.0, np.nan])
    reused = np.array([-np.inf, 3.0, np.inf, 4.5, np.nan])
    for dtype in (np.float64, np.float32, np.float16):
        assert error(reused.astype(dtype), computed.astype(dtype)) == pytest.approx(0.1, rel=1e-3)
    assert error([np.inf, np.nan], [np.inf, np.nan]) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_numbers_have_an_error_too(dtype: Any) -> None:
    largest = np.finfo(dtype).max
    computed = np.full(100, largest, dtype)
    assert error(computed * dtype(0.9), computed) == pytest.approx(0.1, rel=1e-3)
    assert error(-computed, computed) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_of_whole_numbers_the_share_that_differs(dtype: Any) -> None:
    # Labels: 7 is no nearer to 8 than to 200.
    assert error(np.array([7, 7, 7, 7], dtype), np.array([7, 8, 7, 100], dtype)) == 0.5
    assert error(np.zeros(4, dtype), np.zeros(4, dtype)) == 0


@pytest.mark.parametrize("shape", [(COMPARED_ELEMENTS + 1,), (40, 60, 64), (2, 3, 200_000)])
def test_of_large_outputs_a_part_is_compared(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(5)
    computed = random.random(shape, np.float32)
    reused = computed + random.normal(0, 0.1, shape).astype(np.float32)
    exact = float(np.sqrt(((reused - computed) ** 2).mean() / (computed**2).mean()))
    assert error(reused, computed) == pytest.approx(exact, rel=0.05)
    # Whatever their order in memory.
    assert error(np.asfortranarray(reused), computed) == pytest.approx(error(reused, computed))
    # Every channel is seen.
    for channel in range(0, shape[-1], max(1, shape[-1] // 8)) if shape[-1] < 1000 else ():
        changed = computed.copy()
        changed[..., channel] += 9
        assert error(changed, computed) > 0


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_compared_elements_is_bounded(count: int) -> None:
    tensors = {str(index): np.zeros((7, 50_000 + index), np.float32) for index in range(count)}
    spaced = [_spaced(tensor, COMPARED_ELEMENTS // count) for tensor in tensors.values()]
    assert COMPARED_ELEMENTS // 2 < sum(each.size for each in spaced) <= COMPARED_ELEMENTS
    assert output_error(tensors, tensors) == 0


@pytest.mark.interpreted
def test_the_error_is_computed_without_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("BLAS may be called, whose threads hold the event loop")

    for name in ("dot", "vdot", "inner", "matmul", "einsum", "tensordot"):
        monkeypatch.setattr(np, name, fail)
    monkeypatch.setattr(np.linalg, "norm", fail)
    assert error(np.full(20_000, 1.5, np.float32), np.ones(20_000, np.float32)) == pytest.approx(0.5)


def test_of_texts_the_share_that_differs() -> None:
    reused, computed = np.array([b"cat", b"dog"], object), np.array([b"cat", b"cow"], object)
    assert error(reused, computed) == 0.5
    assert error(np.array([True, False]), np.array([True, True])) == 0.5


def test_the_alarm_begins_over_the_budget_and_ends_well_inside() -> None:
    monitor = ErrorMonitor(budget=0.1, share=0.0, seed="d")
    assert not monitor.takes_sample()
    assert not any(monitor.record(0.05) for _ in range(20))
    assert monitor.record(0.95)
    assert monitor.is_alarmed
    # While it lasts, every hit is a sample.
    assert monitor.takes_sample()
    # It is judged by the mean of its own samples.
    assert not any(monitor.record(0.085) for _ in range(10 * ALARM_SAMPLES))
    changes = [monitor.record(0.075) for _ in range(ALARM_SAMPLES)]
    assert changes == [False] * (ALARM_SAMPLES - 1) + [True]
    assert not monitor.is_alarmed
    assert monitor.estimate == pytest.approx(0.075)
    assert (monitor.over_budget, monitor.largest) == (1, 0.95)


def test_the_first_samples_alone_raise_no_alarm() -> None:
    monitor = ErrorMonitor(budget=0.1, share=0.01, seed="d")
    assert not any(monitor.record(0.5) for _ in range(JUDGED_SAMPLES - 1))
    assert monitor.record(0.5)
    monitor = ErrorMonitor(budget=0.1, share=0.01, seed="d")
    monitor.record(0.5)
    assert not any(monitor.record(0.02) for _ in range(JUDGED_SAMPLES))


def hits_until_alarm(monitor: ErrorMonitor, error_of_hits: float) -> int:
    for hits in range(100_000):
        if monitor.takes_sample() and monitor.record(error_of_hits):
            return hits
    raise AssertionError("no alarm")


def test_one_sample_over_the_budget_brings_more() -> None:
    """From an error of 0.015 to one of 0.15, with a budget of 0.1: samples of 1 % would need 1,500 hits."""
    found = []
    for seed in range(50):
        monitor = ErrorMonitor(budget=0.1, share=0.01, seed=str(seed))
        for _ in range(50):
            monitor.record(0.015)
        found.append(hits_until_alarm(monitor, 0.15))
    assert np.mean(found) < 300


def test_single_errors_over_the_budget_leave_most_hits() -> None:
    monitor = ErrorMonitor(budget=0.1, share=0.01, seed="d")
    errors = cycle([0.02, 0.11, 0.02])
    taken = 0
    for _ in range(50_000):
        if monitor.takes_sample():
            taken += 1
            assert not monitor.record(next(errors))
    assert taken < 0.08 * 50_000


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
