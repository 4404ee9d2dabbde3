"""How many failures are recorded: a rate on average, ten times as many at once, and all of the others counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.observe.failure_limit import FailureLimit


@given(st.integers(1, 50), st.lists(st.integers(0, SECOND // 5), max_size=400))
def test_never_more_than_the_rate_and_its_burst(per_second: int, pauses: list[int]) -> None:
    limit = FailureLimit(per_second, 0)
    now = taken = 0
    for pause in pauses:
        now += pause
        taken += limit.takes(now)
    assert taken <= per_second * 10 + now * per_second / SECOND + 1
    assert taken + limit.dropped == len(pauses)


def test_it_fills_up_again() -> None:
    limit = FailureLimit(2, 0)
    assert [limit.takes(0) for _ in range(21)] == [True] * 20 + [False]
    assert not limit.takes(SECOND // 4)
    assert limit.takes(SECOND)
    assert limit.dropped == 2
