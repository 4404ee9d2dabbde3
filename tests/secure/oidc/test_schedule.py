"""When keys are fetched: strangers cannot cause more than one fetch in ten seconds, beside the regular ones."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.oidc.schedule import LEAST_SECONDS, Schedule


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.booleans(), st.booleans()),
        min_size=1,
        max_size=80,
    ),
    st.floats(10, 600),
)
def test_fetches_are_apart_whatever_comes(steps: list[tuple[float, bool, bool]], refresh: float) -> None:
    schedule, now = Schedule(refresh), 100.0
    asked: list[float] = []
    for wait, is_asked, succeeds in steps:
        now += wait
        by_token = is_asked and schedule.admits(now)
        if by_token or now >= schedule.due:
            schedule.started(now, is_asked=by_token)
            asked += [now] if by_token else []
            schedule.ended(now, fetched=succeeds)
            assert schedule.due == now + (refresh if succeeds else LEAST_SECONDS)
            assert schedule.admits(now) == (succeeds and not (asked and now - asked[-1] < LEAST_SECONDS))
        elif is_asked:
            # The next fetch is then as soon as a token may cause one.
            schedule.hasten()
            assert schedule.due <= now + LEAST_SECONDS
            assert schedule.admits(schedule.due + 1e-9)
    assert all(later - earlier >= LEAST_SECONDS - 1e-9 for earlier, later in itertools.pairwise(asked))


def test_the_first_fetch_is_due_at_once() -> None:
    schedule = Schedule(300.0)
    assert schedule.due == 0.0
    assert schedule.admits(0.0)
