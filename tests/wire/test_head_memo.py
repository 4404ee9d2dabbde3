"""What a memo of heads holds is bounded, whatever comes in whatever order, and the oldest leave first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.wire.exchange import Head
from isochrone.wire.head_memo import HeadMemo, cost_of

_ROOM = 64 * 1024


def head(characters: int, fields: int = 1) -> Head:
    return Head(b"POST", b"/", tuple((b"x", b"v" * (characters // fields)) for _ in range(fields)))


def key_of(number: int) -> bytes:
    return b"%d" % number


def noted_twice(memo: HeadMemo, number: int, made: Head) -> None:
    memo.note(key_of(number), made)
    memo.note(key_of(number), made)


@given(st.lists(st.tuples(st.integers(0, 8192), st.integers(1, 128)), max_size=200))
def test_memory_is_bounded(shapes: list[tuple[int, int]]) -> None:
    memo = HeadMemo(_ROOM)
    for number, (characters, fields) in enumerate(shapes):
        made = head(characters, fields)
        noted_twice(memo, number, made)
        assert memo.heads[key_of(number)] is made
        assert memo.held == sum(map(cost_of, memo.heads.values()))
        assert memo.held <= max(_ROOM, cost_of(made))


def test_a_head_that_never_repeats_evicts_nothing() -> None:
    memo = HeadMemo(_ROOM)
    kept = head(10)
    noted_twice(memo, 0, kept)
    for number in range(1, 1000):
        memo.note(key_of(number), head(10))
    assert memo.heads == {key_of(0): kept}


def test_one_large_head_makes_few_others_leave() -> None:
    memo = HeadMemo(_ROOM)
    small = _ROOM // cost_of(head(10))
    for number in range(small):
        noted_twice(memo, number, head(10))
    noted_twice(memo, small, head(8000))
    most = cost_of(head(8000)) // cost_of(head(10)) + 1
    assert small + 1 - most <= len(memo.heads) < small + 1
    assert list(memo.heads) == [key_of(number) for number in range(small + 1 - len(memo.heads), small + 1)]


def test_a_cleared_memo_holds_nothing() -> None:
    memo = HeadMemo(_ROOM)
    noted_twice(memo, 0, head(10))
    memo.clear()
    assert (memo.heads, memo.held) == ({}, 0)
    noted_twice(memo, 0, head(10))
    assert memo.held == cost_of(head(10))
