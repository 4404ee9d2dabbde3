"""Memoises message heads, parsed or written, from their second occurrence on.

A head with a field that differs for each request (a trace id, a time) never repeats, and must not evict heads that do.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Head = TypeVar("Head")


def remember_second(key: Key, head: Head, memo: dict[Key, Head], seen: set[int], limit: int) -> None:
    """Memoise ``head``, made from ``key``, if the key has been seen before; otherwise record that it was seen."""
    mark = hash(key)
    if mark in seen:
        if len(memo) >= limit:
            memo.clear()
        memo[key] = head
    else:
        if len(seen) >= limit:
            seen.clear()
        seen.add(mark)
