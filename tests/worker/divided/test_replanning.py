"""When the present division moves: never for noise below the margin, always and soon for a real change."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.worker.divided.replanning import FASTER, LOST, Move, Replanner, ReplanRules

RULES = ReplanRules()
LOOK = SECOND // 2
NAMES = ("edge", "cut-3", "cut-9", "core")
#: With both times wrong by so much in opposite directions, one that is faster by the margin is truly faster.
NOISE = 0.05

times = st.fixed_dictionaries({name: st.floats(1e6, 1e9) for name in NAMES})


def looks_of(planner: Replanner, late: dict[str, float], count: int, start: int = 0, seed: int = 0) -> list[Move]:
    """Moves at so many looks with noise."""
    noise = random.Random(seed)
    moves = []
    for number in range(count):
        seen = {name: ns * (1 + NOISE * noise.uniform(-1, 1)) for name, ns in late.items()}
        move = planner.look(start + number * LOOK, seen)
        if move is not None:
            moves.append(move)
    return moves


@given(times, st.sampled_from(NAMES), st.integers(0, 1000))
def test_under_constant_times_every_move_is_to_a_faster_division_and_moves_end(
    late: dict[str, float], present: str, seed: int
) -> None:
    moves = looks_of(Replanner(present, RULES, 0), late, 300, seed=seed)
    for move in moves:
        assert late[move.target] < late[move.origin]
    assert len(moves) < len(NAMES)


@given(times, st.sampled_from(NAMES), st.integers(0, 1000))
def test_it_ends_close_to_the_fastest(late: dict[str, float], present: str, seed: int) -> None:
    planner = Replanner(present, RULES, 0)
    looks_of(planner, late, 300, seed=seed)
    # Both the margin and the noise may hide a faster one.
    assert late[planner.present] <= min(late.values()) / (1 - RULES.margin) * (1 + NOISE) / (1 - NOISE) * 1.001


@given(times, st.sampled_from(NAMES), st.floats(1.5, 100), st.integers(0, 1000))
def test_a_real_change_moves_it_within_the_looks_and_the_least_stay(
    late: dict[str, float], present: str, slower: float, seed: int
) -> None:
    planner = Replanner(present, RULES, 0)
    looks_of(planner, late, 300, seed=seed)
    settled = planner.present
    late[settled] = max(late.values()) * slower
    fastest = min(ns for name, ns in late.items() if name != settled)
    assert fastest * slower <= late[settled]
    moves = looks_of(planner, late, RULES.looks, 300 * LOOK, seed)
    assert [move.origin for move in moves] == [settled]
    assert moves[0].reason == FASTER


@given(times, st.sampled_from(NAMES))
def test_a_lost_division_is_left_at_once_and_not_returned_to_before_the_least_stay(
    late: dict[str, float], present: str
) -> None:
    planner = Replanner(present, RULES, 0)
    others = {name: ns for name, ns in late.items() if name != present}
    move = planner.look(0, others)
    assert move is not None
    assert (move.reason, move.before) == (LOST, None)
    assert move.after == min(others.values())
    back = {**others, present: 1.0}
    returned = [now for now in range(LOOK, 40 * LOOK, LOOK) if planner.look(now, back) is not None]
    assert returned == [max(RULES.least_stay_ns, RULES.looks * LOOK)]


def test_nothing_offered_moves_nothing() -> None:
    planner = Replanner("core", RULES, 0)
    assert planner.look(0, {}) is None
    assert planner.present == "core"


def test_the_first_division_has_the_least_stay_too() -> None:
    planner = Replanner("core", RULES, 0)
    moved = [now for now in range(0, 40 * LOOK, LOOK) if planner.look(now, {"core": 10.0, "edge": 5.0}) is not None]
    assert moved == [RULES.least_stay_ns]


def test_looks_in_a_row_name_one_target() -> None:
    planner = Replanner("core", RULES, -RULES.least_stay_ns)
    late = {"core": 10.0, "edge": 8.0, "cut-3": 8.0}
    for number in range(40):
        # The faster one of two changes at each look.
        assert planner.look(number * LOOK, {**late, ("edge", "cut-3")[number % 2]: 4.0}) is None


def test_two_targets_that_are_alike_do_not_block_a_move() -> None:
    planner = Replanner("core", RULES, -RULES.least_stay_ns)
    late = {"core": 10.0, "edge": 5.0, "cut-3": 5.0}
    moves = [planner.look(number * LOOK, {**late, ("edge", "cut-3")[number % 2]: 4.9}) for number in range(RULES.looks)]
    assert moves[-1] is not None
    assert moves[:-1] == [None] * (RULES.looks - 1)


def test_looks_that_are_not_in_a_row_do_not_count() -> None:
    planner = Replanner("core", RULES, 0)
    for number in range(0, 40, 2):
        assert planner.look(number * LOOK, {"core": 10.0, "edge": 5.0}) is None
        assert planner.look((number + 1) * LOOK, {"core": 10.0, "edge": 9.5}) is None


def moves_of(planner: Replanner, until: int, late: Callable[[int, str], dict[str, float]]) -> list[int]:
    """When it moves, with times that may depend on the present division."""
    return [now for now in range(0, until, LOOK) if planner.look(now, late(now, planner.present)) is not None]


def test_divisions_that_contradict_each_other_move_it_less_and_less() -> None:
    """Each is measured to be slower than the other one's estimate."""
    planner = Replanner("a", RULES, 0)
    stay = RULES.least_stay_ns
    moves = moves_of(planner, 100 * stay, lambda now, present: {each: 1.2 if each == present else 1.0 for each in "ab"})
    stays = [after - before for before, after in pairwise(moves)]
    assert stays[:4] == [stay, 2 * stay, 4 * stay, 8 * stay]
    assert set(stays[4:]) == {RULES.longest_stay * stay}


def test_a_division_that_is_twice_as_fast_does_not_wait_for_the_longer_stay() -> None:
    planner = Replanner("a", RULES, 0)
    stay = RULES.least_stay_ns

    def late(now: int, present: str) -> dict[str, float]:
        alike = {each: 1.2 if each == present else 1.0 for each in "ab"}
        return alike if now < 9 * stay else {"a": 1.0, "b": 1.0, "fast": 0.4}

    moves = moves_of(planner, 12 * stay, late)
    assert moves[:4] == [stay, 2 * stay, 4 * stay, 8 * stay]
    assert planner.present == "fast"
    assert moves[4] == 9 * stay + (RULES.looks - 1) * LOOK


def test_after_a_long_stay_the_least_one_holds_again() -> None:
    planner = Replanner("a", RULES, 0)
    stay = RULES.least_stay_ns

    def late(now: int, present: str) -> dict[str, float]:
        calm = 2 * stay < now < 40 * stay
        return {each: 1.2 if each == present and not calm else 1.0 for each in "ab"}

    moves = moves_of(planner, 45 * stay, late)
    assert moves[:2] == [stay, 2 * stay]
    assert [after - before for before, after in pairwise(moves[2:])][:2] == [stay, 2 * stay]
