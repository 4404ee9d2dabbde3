"""Kinds of requests: shares, names, and sequences whose requests follow each other."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.bench.workload.mix import Kind, Sequences, choices, labels


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 1 << 32))
def test_kinds_are_drawn_by_weight_and_repeatable(weights: list[float], seed: int) -> None:
    kinds = [Kind(model="m", weight=weight) for weight in weights]
    drawn = list(islice(choices(kinds, seed), 2000))
    assert drawn == list(islice(choices(kinds, seed), 2000))
    counts = Counter(drawn)
    assert set(counts) <= set(range(len(kinds)))
    for index, weight in enumerate(weights):
        share = weight / sum(weights)
        # Seven standard deviations.
        assert abs(counts[index] - 2000 * share) <= 7 * (2000 * share * (1 - share)) ** 0.5 + 1


def test_names_are_distinct() -> None:
    kinds = [Kind(model="a"), Kind(model="a"), Kind(model="b", name="a"), Kind(model="b")]
    assert labels(kinds) == ("a", "a (2)", "a (3)", "b")


@given(st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.booleans()), max_size=80))
def test_requests_of_a_sequence_follow_each_other(length: int, events: list[tuple[bool, int, bool]]) -> None:
    """Each event is a new request, or the end of one of those in flight, answered or failed."""
    sequences = Sequences(length, 100)
    in_flight: list[tuple[int, int]] = []
    sent: dict[int, list[int]] = {}
    failed: set[int] = set()
    for is_new, which, answered in events:
        if is_new or not in_flight:
            sequence_id, position = sequences.take(0)
            assert sequence_id not in [other for other, _ in in_flight], "one request of a sequence at a time"
            assert sequence_id not in failed, "a failed sequence is not continued"
            sent.setdefault(sequence_id, []).append(position)
            parameters = sequences.parameters(sequence_id, position)
            assert parameters["sequence_start"] is (position == 0)
            assert parameters["sequence_end"] is (position == length - 1)
            in_flight.append((sequence_id, position))
        else:
            sequence_id, position = in_flight.pop(which % len(in_flight))
            sequences.give_back(sequence_id, position, 0, answered=answered)
            if not answered:
                failed.add(sequence_id)
    for positions in sent.values():
        assert positions == list(range(len(positions)))
        assert len(positions) <= length


def test_sequences_are_continued_in_turn_until_they_are_stale() -> None:
    """The server drops a sequence that is idle for long: a request of it would fail."""
    sequences = Sequences(5, 1, most_idle_ns=10)
    assert [sequences.take(0) for _ in range(3)] == [(1, 0), (2, 0), (3, 0)]
    for sequence_id, ended in ((1, 5), (2, 8), (3, 14)):
        sequences.give_back(sequence_id, 0, ended, answered=True)
    assert sequences.take(15) == (1, 1), "the oldest, not the newest: none waits longer than it has to"
    assert sequences.take(20) == (3, 1), "sequence 2 was idle for 12"
    assert sequences.take(20) == (4, 0)


@pytest.mark.parametrize(("milliseconds", "nanoseconds"), [(None, 0), (20.0, 20_000_000), (0.5, 500_000)])
def test_deadlines_in_nanoseconds(milliseconds: float | None, nanoseconds: int) -> None:
    assert Kind(model="m", deadline_ms=milliseconds).deadline_ns == nanoseconds
