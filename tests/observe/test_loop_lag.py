"""How often the event loop's lag is measured: often in a process that works, rarely in one that is idle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.loop_lag import interval_after

TIMES = st.integers(1, 10**12)


def test_a_process_that_works_is_measured_fifty_times_a_second() -> None:
    assert interval_after(10_000_000, 20_000_000) == 0.02
    assert interval_after(1_000_000, 20_000_000) == 0.02
    assert interval_after(100_000, 20_000_000) == 1.0
    assert interval_after(0, 1_000_000_000) == 1.0
    # Four threads that work.
    assert interval_after(4_000_000_000, 1_000_000_000) == 0.02


@given(used=TIMES, more=TIMES, passed=TIMES)
def test_more_work_is_never_measured_less_often(used: int, more: int, passed: int) -> None:
    assert interval_after(used + more, passed) <= interval_after(used, passed)
