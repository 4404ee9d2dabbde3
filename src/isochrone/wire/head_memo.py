"""Memoises message heads, parsed or written, from their second occurrence on.

A head with a field that differs for each request (a trace id, a time) never repeats, and must not evict heads that do.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, TypeVar

from isochrone.wire.exchange import Head

Key = TypeVar("Key", bound=Hashable)
Written = TypeVar("Written")

#: Larger heads are not memoised. A token of an OpenID provider alone has one to three KiB.
MAX_MEMOISED_BYTES: Final = 8192
#: Keys that were seen once, by the bytes that a memo may hold: each takes some 60 bytes.
_ROOM_OF_A_MARK: Final = 2048
#: What Python's objects take, for an estimate: a head with its route, and a header field beside its characters.
_HEAD_BYTES: Final = 2048
_FIELD_BYTES: Final = 160


def cost_of(head: Head) -> int:
    """An estimate of the bytes that a memoised head holds, with its key."""
    characters = len(head.target)
    for name, value in head.headers:
        characters += len(name) + len(value)
    return _HEAD_BYTES + _FIELD_BYTES * len(head.headers) + 2 * characters


class HeadMemo:
    """Heads of requests within some bytes of memory; the oldest leave first."""

    __slots__ = ("_marks", "_room", "_seen", "heads", "held")

    def __init__(self, room: int) -> None:
        self._room = room
        self._marks = max(1, room // _ROOM_OF_A_MARK)
        #: Hashes of keys seen once.
        self._seen: set[int] = set()
        #: For the lookup of the hot path: to be read only.
        self.heads: dict[Any, Head] = {}
        #: Bytes, as ``cost_of`` counts them.
        self.held = 0

    def note(self, key: Hashable, head: Head) -> None:
        """``key`` was read as ``head``: memoised if that is not the first time. The same key stands for equal heads."""
        mark = hash(key)
        if mark in self._seen:
            self.keep(key, head)
        else:
            if len(self._seen) >= self._marks:
                self._seen.clear()
            self._seen.add(mark)

    def keep(self, key: Hashable, head: Head) -> None:
        """Memoise a head now."""
        heads = self.heads
        if key in heads:
            return
        self.held += cost_of(head)
        heads[key] = head
        while self.held > self._room and len(heads) > 1:
            oldest = next(iter(heads))
            self.held -= cost_of(heads.pop(oldest))

    def clear(self) -> None:
        self.heads.clear()
        self.held = 0


def remember_second(key: Key, written: Written, memo: dict[Key, Written], seen: set[int], limit: int) -> None:
    """Memoise what was ``written`` for ``key``, if the key has been seen before; otherwise record that it was seen."""
    mark = hash(key)
    if mark in seen:
        if len(memo) >= limit:
            memo.clear()
        memo[key] = written
    else:
        if len(seen) >= limit:
            seen.clear()
        seen.add(mark)
