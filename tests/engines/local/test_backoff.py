"""Pauses before a process is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.engines.local.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff()
    assert [backoff.pause(1.0) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_process_that_lived_a_while_begins_anew() -> None:
    backoff = Backoff()
    assert [backoff.pause(lived) for lived in (0.0, 0.0, 30.0, 29.9)] == [0.1, 0.2, 0.1, 0.2]


@given(st.lists(st.floats(0, 100)))
def test_no_pause_is_shorter_than_the_first_or_longer_than_the_longest(lives: list[float]) -> None:
    backoff = Backoff()
    assert all(0.1 <= backoff.pause(lived) <= 5.0 for lived in lives)
