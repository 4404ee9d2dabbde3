"""Places of a ranking: how many, who gets one, and who keeps it."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.latencies.ranking import COUNTERS, Ranking

KEYS = st.sampled_from([f"k{number}" for number in range(30)])


@given(st.integers(1, 3), st.lists(st.one_of(KEYS, KEYS, KEYS, st.none()), max_size=200))
def test_places(most: int, steps: list[str | None]) -> None:
    """None: all weights are halved."""
    ranking = Ranking(most)
    for step in steps:
        if step is None:
            ranking.halve()
            continue
        before = set(ranking.places)
        dropped = ranking.add(step)
        after = set(ranking.places)
        assert before - after == ({dropped} if dropped is not None else set())
        assert after - before <= {step}
        assert dropped != step
        assert len(after) <= most
        for key, counter in ranking.places.items():
            assert ranking.get(key) is counter, "who has a place has a counter"
        counter = ranking.get(step)
        assert counter is not None
        if step not in after and counter.is_proven:
            lowest = min(each.count for each in ranking.places.values())
            assert len(after) == most
            assert counter.count <= lowest + lowest // 4
        if step in after - before:
            assert counter.is_proven


def test_keys_that_come_once_take_no_place() -> None:
    ranking, random = Ranking(4), Random(5)
    heavy = [f"heavy-{number}" for number in range(4)]
    for number in range(20_000):
        if number % 2:
            ranking.add(random.choice(heavy))
        else:
            ranking.add(f"once-{number}")
        if number > 200:
            assert set(ranking.places) == set(heavy)


def test_nearly_equal_keys_do_not_take_turns() -> None:
    ranking = Ranking(1)
    for _ in range(1000):
        assert ranking.add("a") is None
        assert ranking.add("b") is None
    assert set(ranking.places) == {"a"}
    dropped = [ranking.add("b") for _ in range(300)]
    assert dropped.count("a") == 1
    assert set(ranking.places) == {"b"}


def test_more_keys_than_places_that_are_as_frequent() -> None:
    """As long as there are counters for all of them, those with a place keep it."""
    ranking = Ranking(3)
    for _ in range(100):
        for number in range(3 * COUNTERS):
            ranking.add(f"k{number}")
    assert set(ranking.places) == {"k0", "k1", "k2"}
