"""The memory budget: what is held adds up, nobody takes all, and what is given back is free again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.wire.bodies.budget import MemoryBudget, Share

LIMIT = 1000


def test_one_connection_may_hold_half_two_a_third_each_and_a_newcomer_finds_room() -> None:
    budget = MemoryBudget(LIMIT)
    first, second, third = (Share(budget) for _ in range(3))
    assert first.reserve(500)
    assert not first.reserve(1)
    assert second.reserve(250)
    assert not second.reserve(1)
    assert third.reserve(125)
    assert budget.rejected == 2
    first.give_back(500)
    assert second.reserve(100)


def test_answers_cannot_be_refused_and_keep_their_connection_from_asking() -> None:
    budget = MemoryBudget(LIMIT)
    busy, other = Share(budget), Share(budget)
    busy.add(900)
    assert busy.is_exceeded
    assert not other.is_exceeded
    assert other.reserve(50)
    busy.add(500)
    assert budget.free < 0
    assert other.is_exceeded
    assert not other.reserve(1)
    busy.close()
    assert not other.is_exceeded
    assert budget.held == 50
    assert budget.lowest == LIMIT - 1450


def test_who_holds_nothing_may_ask_however_much_others_hold() -> None:
    budget = MemoryBudget(LIMIT)
    Share(budget).add(5 * LIMIT)
    assert budget.free < 0
    assert not Share(budget).is_exceeded


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["reserve", "add", "give back", "close"]), st.integers(0, 400)),
        max_size=60,
    )
)
def test_what_is_held_adds_up(events: list[tuple[int, str, int]]) -> None:
    budget = MemoryBudget(LIMIT)
    shares = [Share(budget) for _ in range(5)]
    for index, event, size in events:
        share = shares[index]
        if event == "reserve":
            free = budget.free
            if share.reserve(size):
                assert budget.free >= share.held
            else:
                assert budget.free == free
        elif event == "add":
            share.add(size)
        elif event == "give back":
            share.give_back(min(size, share.held))
        else:
            share.close()
        assert budget.held == sum(each.held for each in shares)
        assert all(each.held >= 0 for each in shares)
        assert budget.lowest <= budget.free


def test_the_peak_since_the_last_question_and_the_peak_of_all_times() -> None:
    budget = MemoryBudget(1000)
    share = Share(budget)
    share.add(300)
    share.give_back(200)
    assert (budget.take_peak(), budget.peak) == (300, 300)
    # What is held still counts.
    assert (budget.take_peak(), budget.peak) == (100, 300)
    share.add(400)
    assert budget.peak == 500
    share.close()
    assert (budget.take_peak(), budget.take_peak(), budget.peak) == (500, 0, 500)
