"""Memoises parsed message heads by their bytes, once the same bytes have come twice.

A head that holds a field of its own for each request (a trace id) never repeats, and must not evict those that do.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def remember_second(raw: bytes, head: T, memo: dict[bytes, T], seen: set[int], limit: int) -> None:
    """Memoises what was parsed from ``raw`` if ``raw`` has come before; else only notes that it came."""
    mark = hash(raw)
    if mark in seen:
        if len(memo) >= limit:
            memo.clear()
        memo[raw] = head
    else:
        if len(seen) >= limit:
            seen.clear()
        seen.add(mark)
