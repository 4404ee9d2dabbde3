"""The board of scores against a plain minimum, in a list and in an array."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.policies.toolkit.scores import SMALL, ScoreBoard

SCORES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=2 * SMALL)


@given(SCORES)
def test_the_lowest_is_the_minimum(scores: list[float]) -> None:
    assert scores[ScoreBoard(scores).lowest()] == min(scores)


@given(SCORES, st.sets(st.integers(0, 2 * SMALL - 1)))
def test_slots_left_out_are_not_found_and_keep_their_scores(scores: list[float], out: set[int]) -> None:
    board = ScoreBoard(scores)
    out = {slot for slot in out if slot < len(scores)}
    found = board.lowest_but(out)
    left = [score for slot, score in enumerate(scores) if slot not in out]
    assert (found == -1) == (not left)
    if left:
        assert found not in out
        assert scores[found] == min(left)
    assert list(board.values) == scores


def test_a_score_can_be_written() -> None:
    for size in (3, SMALL + 3):
        board = ScoreBoard([1.0] * size)
        board.values[2] = 0.5
        assert board.lowest() == 2
