"""The journal of a download, under every way of losing a part of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.models.sources.cache.ranges import RANGE_BYTES, end_of, journal_line, missing_ranges, read_journal

_SIZES = st.integers(0, 5 * RANGE_BYTES)


@given(_SIZES, st.sets(st.integers(0, 5).map(lambda number: number * RANGE_BYTES)))
def test_finished_and_missing_ranges_are_the_whole_file(size: int, finished: set[int]) -> None:
    missing = missing_ranges(size, finished)
    there = [(start, end_of(start, size)) for start in finished if start < size]
    covered = sorted([*missing, *there])
    assert [start for start, _ in covered] == [0, *(end for _, end in covered[:-1])][: len(covered)]
    assert (covered[-1][1] if covered else 0) == size


@given(_SIZES, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2**32 - 1)), max_size=8), st.integers(0, 400))
def test_a_torn_journal_gives_no_range_that_was_not_written(
    size: int, written: list[tuple[int, int]], torn_at: int
) -> None:
    lines = [(number * RANGE_BYTES, crc) for number, crc in written]
    content = b"".join(journal_line(start, crc) for start, crc in lines)[:torn_at]
    found = read_journal(content, size)
    assert all((start, crc) in lines and start < size for start, crc in found.items())
    whole = content.count(b"\n")
    assert set(found) == {start for start, _ in lines[:whole] if start < size}


@given(st.binary(max_size=200), _SIZES)
def test_any_bytes_are_read_without_an_error(content: bytes, size: int) -> None:
    assert all(start % RANGE_BYTES == 0 and 0 <= start < size for start in read_journal(content, size))
