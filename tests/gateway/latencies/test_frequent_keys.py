"""The most frequent keys against exact counts: what is promised of counts, errors and presence holds."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.latencies.frequent_keys import FrequentKeys

KEYS = st.sampled_from([f"k{number}" for number in range(12)])
MOST = st.integers(1, 6)


@given(MOST, st.lists(KEYS, max_size=200))
def test_counts_and_errors_without_ageing(most: int, keys: list[str]) -> None:
    frequent, exact = FrequentKeys(most), Counter(keys)
    for key in keys:
        counter, lost = frequent.add(key)
        assert counter.key == key
        assert lost != key
        assert lost is None or frequent.get(lost) is None
    counters = frequent.counters()
    assert len(counters) == len(frequent) == min(most, len(exact))
    assert sum(counter.count for counter in counters) == len(keys)
    for counter in counters:
        assert counter.count - counter.error <= exact[counter.key] <= counter.count
        assert counter.error <= len(keys) / most
    for key, count in exact.items():
        if count > len(keys) / most:
            assert frequent.get(key) is not None
    if len(exact) <= most:
        assert {counter.key: counter.count for counter in counters} == exact
        assert not any(counter.error for counter in counters)


@given(MOST, st.lists(st.one_of(KEYS, KEYS, KEYS, st.none()), max_size=200))
def test_halved_weights(most: int, steps: list[str | None]) -> None:
    """None: all weights are halved. Counts are rounded up by less than 1 each."""
    frequent = FrequentKeys(most)
    weights: dict[str, Fraction] = {}
    for step in steps:
        if step is None:
            frequent.halve()
            weights = {key: weight / 2 for key, weight in weights.items()}
        else:
            frequent.add(step)
            weights[step] = weights.get(step, Fraction(0)) + 1
        total = sum(weights.values())
        counters = frequent.counters()
        for counter in counters:
            assert weights[counter.key] <= counter.count
            assert counter.count - counter.error < weights[counter.key] + 1
            assert counter.error < total / most + 1
        lowest = min((counter.count for counter in counters), default=0)
        for key, weight in weights.items():
            if frequent.get(key) is None:
                assert weight <= lowest
                assert weight < total / most + 1
        assert total <= sum(counter.count for counter in counters) or len(weights) > most
        assert sum(counter.count for counter in counters) < total + most


def test_the_lowest_counter_is_taken_whatever_was_added_since() -> None:
    """The heap is brought up to date only when a counter is needed."""
    random, frequent = Random(7), FrequentKeys(20)
    for _ in range(5000):
        before = {counter.key: counter.count for counter in frequent.counters()}
        key = f"k{int(random.expovariate(0.05))}"
        _, lost = frequent.add(key)
        if lost is not None:
            assert before[lost] == min(before.values())


def test_proven_counts() -> None:
    frequent = FrequentKeys(1)
    first, _ = frequent.add("a")
    assert first.is_proven, "nothing of its count can be another key's"
    second, lost = frequent.add("b")
    assert (second.count, second.error, lost) == (2, 1, "a")
    assert not second.is_proven, "half of its count may be another key's"
    frequent.add("b")
    assert second.is_proven
