"""What a memo of heads holds is bounded, whatever sizes come in whatever order."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from isochrone.wire.head_memo import MAX_MEMOISED_BYTES, entries_of, remember_second

_LIMIT, _ORDINARY = 64, 512


@given(st.lists(st.integers(1, MAX_MEMOISED_BYTES), max_size=400))
def test_memory_is_bounded(sizes: list[int]) -> None:
    memo: dict[bytes, int] = {}
    seen: set[int] = set()
    for number, size in enumerate(sizes):
        key = b"%d" % number
        for _ in range(2):
            remember_second(key, size, memo, seen, _LIMIT, entries_of(size, _LIMIT, _ORDINARY))
        assert memo[key] == size
        assert max(len(memo), len(seen)) <= _LIMIT
        assert sum(memo.values()) <= _LIMIT * _ORDINARY * (1 + math.log(_LIMIT))


def test_a_head_that_never_repeats_evicts_nothing() -> None:
    memo: dict[bytes, int] = {}
    seen: set[int] = set()
    for _ in range(2):
        remember_second(b"kept", 1, memo, seen, _LIMIT, _LIMIT)
    for number in range(10 * _LIMIT):
        remember_second(b"%d" % number, 1, memo, seen, _LIMIT, _LIMIT)
    assert memo == {b"kept": 1}
