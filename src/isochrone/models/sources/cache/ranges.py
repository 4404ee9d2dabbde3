"""Which ranges of a file are still to be fetched, and the journal of the finished ones. Pure.

A line of the journal is written after its range. It has the range's CRC, and the range is read again before it counts:
so neither a torn line nor a range that the disk lost in a power failure matters.
"""

from __future__ import annotations

import re
from collections.abc import Collection

#: Large enough that requests cost little, small enough that little is lost with one.
RANGE_BYTES = 8 << 20
_LINE = re.compile(rb"([0-9]{1,19}) ([0-9a-f]{8})", re.ASCII)


def journal_line(start: int, crc: int) -> bytes:
    return b"%d %08x\n" % (start, crc)


def read_journal(content: bytes, size: int) -> dict[int, int]:
    """Start → CRC of the ranges that a journal states; lines that are not whole or not of this file are left out."""
    starts = range(0, size, RANGE_BYTES)
    found = {}
    # What follows the last line's end is torn.
    for line in content.split(b"\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match is not None and int(match[1]) in starts:
            found[int(match[1])] = int(match[2], 16)
    return found


def end_of(start: int, size: int) -> int:
    return min(start + RANGE_BYTES, size)


def missing_ranges(size: int, finished: Collection[int]) -> list[tuple[int, int]]:
    """(start, end) of the ranges that are not finished, ascending."""
    return [(start, end_of(start, size)) for start in range(0, size, RANGE_BYTES) if start not in finished]
