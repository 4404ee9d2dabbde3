"""Events are handled in order of time, then of scheduling."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.simulate.engine import START_NS, Engine


@given(st.lists(st.integers(0, 20), max_size=40))
def test_events_happen_in_order_and_ties_in_the_order_they_were_asked_for(offsets: list[int]) -> None:
    engine = Engine()
    seen: list[tuple[int, int]] = []
    for number, offset in enumerate(offsets):
        engine.at(START_NS + offset, lambda now, argument: seen.append((now - START_NS, argument)), number)
    engine.advance(START_NS + 20)
    assert seen == sorted(zip(offsets, range(len(offsets)), strict=True))
    assert engine.events == len(offsets)


def test_advance_stops_at_its_instant_and_includes_it() -> None:
    engine = Engine()
    seen: list[int] = []
    for offset in (1, 2, 3):
        engine.at(START_NS + offset, lambda now, _: seen.append(now - START_NS))
    engine.advance(START_NS + 2)
    assert seen == [1, 2]
    assert engine.now == START_NS + 2


def test_an_event_may_ask_for_one_at_the_same_instant() -> None:
    engine = Engine()
    seen: list[str] = []

    def first(now: int, _: object) -> None:
        seen.append("first")
        engine.at(now, lambda now, _: seen.append("second"))

    engine.at(START_NS, first)
    engine.advance(START_NS)
    assert seen == ["first", "second"]


def test_step_says_when_nothing_is_left() -> None:
    engine = Engine()
    engine.at(START_NS + 5, lambda now, _: None)
    assert engine.step()
    assert engine.now == START_NS + 5
    assert not engine.step()
