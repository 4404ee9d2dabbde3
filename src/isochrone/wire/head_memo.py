"""Memoises message heads, parsed or written, from their second occurrence on.

A head with a field that differs for each request (a trace id, a time) never repeats, and must not evict heads that do.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

Key = TypeVar("Key", bound=Hashable)
Head = TypeVar("Head")

#: Larger heads are not memoised. A token of an OpenID provider alone has one to three KiB.
MAX_MEMOISED_BYTES: Final = 8192


def entries_of(size: int, limit: int, ordinary: int) -> int:
    """The number of entries of a memo to which a head of ``size`` bytes may be added: ``limit`` of up to ``ordinary``
    bytes, and fewer the larger it is. The n-th entry thus has at most ``limit * ordinary / n`` bytes, and all of them
    together ``limit * ordinary * (1 + ln(limit))``."""
    return limit if size <= ordinary else limit * ordinary // size


def remember_second(key: Key, head: Head, memo: dict[Key, Head], seen: set[int], limit: int, most: int) -> None:
    """Memoise ``head``, made from ``key``, if the key has been seen before; otherwise record that it was seen.

    ``limit`` bounds the keys that were seen once, ``most`` the entries of ``memo``.
    """
    mark = hash(key)
    if mark in seen:
        if len(memo) >= most:
            memo.clear()
        memo[key] = head
    else:
        if len(seen) >= limit:
            seen.clear()
        seen.add(mark)
