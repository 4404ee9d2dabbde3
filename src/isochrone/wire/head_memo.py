"""Memoises parsed message heads by their bytes, from the second occurrence on.

A head with a field that differs for each request (a trace id) never repeats, and must not evict heads that do.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def remember_second(raw: bytes, head: T, memo: dict[bytes, T], seen: set[int], limit: int) -> None:
    """Memoise ``head``, parsed from ``raw``, if ``raw`` has been seen before; otherwise record that it was seen."""
    mark = hash(raw)
    if mark in seen:
        if len(memo) >= limit:
            memo.clear()
        memo[raw] = head
    else:
        if len(seen) >= limit:
            seen.clear()
        seen.add(mark)
