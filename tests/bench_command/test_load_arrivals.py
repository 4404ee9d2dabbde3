"""Arrivals of an open loop: rates, order, seeds, and the parts of several processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from isochrone.bench.workload.arrivals import BLOCK, bursts, constant, poisson, read_trace, recorded, shared
from isochrone.clock import SECOND
from isochrone.errors import ConfigError

RATES = st.floats(0.5, 5000)
SECONDS = st.floats(0.01, 20)
SEEDS = st.integers(0, 1 << 32)


def together(blocks: object) -> NDArray[np.int64]:
    parts = list(blocks)  # type: ignore[call-overload]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def check(instants: NDArray[np.int64], seconds: float) -> None:
    assert (np.diff(instants) >= 0).all()
    if len(instants):
        assert instants[0] >= 0
        assert instants[-1] <= seconds * SECOND + 1


@given(RATES, SECONDS)
def test_constant_intervals(rate: float, seconds: float) -> None:
    instants = together(constant(rate, seconds))
    check(instants, seconds)
    assert len(instants) == pytest.approx(rate * seconds, abs=1.01)
    assert (np.abs(np.diff(instants) - SECOND / rate) <= 1).all()


@given(RATES, SECONDS, SEEDS)
def test_poisson_is_sorted_inside_and_repeatable(rate: float, seconds: float, seed: int) -> None:
    instants = together(poisson(rate, seconds, seed))
    check(instants, seconds)
    assert np.array_equal(instants, together(poisson(rate, seconds, seed)))
    # Seven standard deviations: never by chance, over all examples.
    expected = rate * seconds
    assert abs(len(instants) - expected) <= 7 * np.sqrt(expected) + 7


def test_poisson_intervals_are_exponential() -> None:
    intervals = np.diff(together(poisson(1000, 100, 7))) / SECOND
    assert len(intervals) > 10 * BLOCK, "over several blocks"
    assert intervals.mean() == pytest.approx(1e-3, rel=0.02)
    assert intervals.std() == pytest.approx(intervals.mean(), rel=0.02)
    lag = np.corrcoef(intervals[:-1], intervals[1:])[0, 1]
    assert abs(lag) < 0.02


@given(RATES, st.floats(0.01, 3), st.floats(0.01, 3), SECONDS, SEEDS)
def test_bursts_are_silent_while_off(rate: float, on: float, off: float, seconds: float, seed: int) -> None:
    instants = together(bursts(rate, on, off, seconds, seed))
    check(instants, seconds)
    phase = (instants / SECOND) % (on + off)
    # To the nanosecond, which an instant is rounded to.
    assert ((phase <= on + 1e-8) | (phase >= on + off - 1e-8)).all()


def test_bursts_have_the_mean_rate() -> None:
    assert len(together(bursts(500, 0.5, 1.5, 200, 3))) == pytest.approx(100_000, rel=0.02)


@given(st.lists(st.floats(0, 100), max_size=50).map(sorted), st.floats(0.1, 120))
def test_a_trace_is_sent_as_recorded(offsets: list[float], seconds: float) -> None:
    expected = [round(offset * SECOND) for offset in offsets if offset < seconds]
    assert together(recorded(offsets, seconds)).tolist() == pytest.approx(expected, abs=1)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 7))
def test_processes_share_all_instants(sizes: list[int], count: int) -> None:
    numbers = iter(range(1000))
    blocks = [np.array([next(numbers) for _ in range(size)], np.int64) for size in sizes]
    parts = [together(shared(blocks, index, count)) for index in range(count)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(sizes)))
    for index, part in enumerate(parts):
        assert (part % count == index).all()


def test_a_trace_is_read_with_its_line_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("# recorded\n0\n0.5\n\n1.25\n")
    assert read_trace(path) == (0.0, 0.5, 1.25)
    for text, line in (("0\nx\n", 2), ("1\n0.5\n", 2), ("-1\n", 1), ("nan\n", 1), ("inf\n", 1)):
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"trace.txt:{line}: offset: expected seconds"):
            read_trace(path)
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="given no number"):
        read_trace(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "absent")
