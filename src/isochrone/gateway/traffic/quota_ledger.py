"""The accounts that several processes of one gateway keep together, in memory that all of them share. Pure.

A row is one account. Each process writes its own columns of it and reads all: its requests in flight, and of each
bucket what it has charged in all and when the bucket is full again, as far as it knows. So a process that dies or stops
keeps nobody waiting, and what it charged stays charged. Words are aligned and set as a whole.

A process looks at a row before it grants, and adds what the others have charged since its last look. Two that decide
within the same microsecond do not see each other: then one request more may be granted for each further process. Both
see it at their next look, so it is repaid. A bucket that is full again may be seen late by one process: the newest
instant of all rows says so.

Only who gets a row is decided under a lock. A process that does not get the lock, or finds no row, grants its share of
the limit beside what the others grant.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

#: Buckets of an account: requests, compute, tokens.
RATE, COMPUTE, TOKENS = range(3)
_BUCKETS: Final = 3
#: Columns of a process: requests in flight; of each bucket what was charged in all, and when it is full again, in ns.
_COLUMNS: Final = 1 + 2 * _BUCKETS
#: Rows where an account may stand.
_PROBES: Final = 16
#: Between two attempts to get a row.
_RETRY_NS: Final = 100_000_000
#: A row is another account's only when the last one has been idle for so long.
_IDLE_NS: Final = 10_000_000_000

ROWS: Final = 16_384


def size(count: int, rows: int = ROWS) -> int:
    """Bytes for ``count`` processes."""
    return rows * (1 + count * _COLUMNS) * 8


class QuotaLedger:
    """Process ``number`` of ``count``, numbered from 1. ``words``: shared signed 64-bit words, 0 at first.

    ``locked`` calls a function while no other process is in one, and returns False without a call if it cannot soon.
    ``secret`` keeps callers from choosing who shares a row.
    """

    def __init__(
        self, words: memoryview, count: int, number: int, secret: bytes, locked: Callable[[Callable[[], None]], bool]
    ) -> None:
        self.count = count
        self._words = words
        self._width = 1 + count * _COLUMNS
        self._rows = len(words) // self._width
        self._own = 1 + (number - 1) * _COLUMNS
        self._secret = secret
        self._locked = locked

    def account(self, scope: bytes, key: bytes, buckets: tuple[int, ...] = (RATE, COMPUTE, TOKENS)) -> SharedAccount:
        """``scope``: which quota it is of; ``buckets``: those that it uses."""
        # The length keeps a scope and a key apart.
        text = b"%d:%s%s" % (len(scope), scope, key)
        digest = blake2b(text, digest_size=8, key=self._secret).digest()
        return SharedAccount(self, int.from_bytes(digest, "big", signed=True) or 1, buckets)

    def forget_in_flight(self) -> None:
        """This process is new: requests of the one before it with its number have ended."""
        for base in range(0, self._rows * self._width, self._width):
            if self._words[base]:
                self._words[base + self._own] = 0

    def find(self, mark: int, now: int) -> int:
        """Where the row of an account is; -1: it has none now."""
        # Mostly another process has made it; only the lock's owner changes marks.
        for probe in range(_PROBES):
            base = (mark + probe) % self._rows * self._width
            if self._words[base] == mark:
                return base
        found = [-1]

        def claim() -> None:
            found[0] = self._claim(mark, now)

        self._locked(claim)
        return found[0]

    def _claim(self, mark: int, now: int) -> int:
        words, width, free = self._words, self._width, -1
        for probe in range(_PROBES):
            base = (mark + probe) % self._rows * width
            if words[base] == mark:
                return base
            if free < 0 and (not words[base] or self._is_idle(base, now)):
                free = base
        if free >= 0:
            for place in range(free + 1, free + width):
                words[place] = 0
            words[free] = mark
        return free

    def _is_idle(self, base: int, now: int) -> bool:
        row = self._words[base : base + self._width].tolist()
        for own in range(1, self._width, _COLUMNS):
            if row[own] > 0 or any(row[own + 2 + 2 * each] > now - _IDLE_NS for each in range(_BUCKETS)):
                return False
        return True


class SharedAccount:
    """One account as one process sees it: between two looks, its own charges alone change it."""

    __slots__ = ("_base",
        "_buckets", "_charged", "_ledger", "_looked_at", "_mark", "_own_in_flight", "_retry_at", "full_at",
                 "in_flight")  # fmt: skip

    def __init__(self, ledger: QuotaLedger, mark: int, buckets: tuple[int, ...]) -> None:
        self._ledger = ledger
        self._mark = mark
        self._buckets = buckets
        self._base = -1
        self._retry_at = 0
        self._looked_at = 0
        self._own_in_flight = 0
        #: What the others had charged at the last look.
        self._charged = [0] * _BUCKETS
        #: Of all processes, at the last look.
        self.in_flight = 0
        #: Of each bucket: the instant at which it is full again.
        self.full_at = [0] * _BUCKETS

    def look(self, now: int) -> bool:
        """See what the others have charged; False: only this process's own charges are known."""
        ledger, base = self._ledger, self._base
        if base < 0:
            if now < self._retry_at or not self._bind(now):
                return False
            base = self._base
        row = ledger._words[base : base + ledger._width].tolist()
        if row[0] != self._mark:
            self._base = -1
            if not self._bind(now):
                return False
            row = ledger._words[self._base : self._base + ledger._width].tolist()
        own = ledger._own
        full_at = self.full_at
        self.in_flight = sum(row[1::_COLUMNS])
        for bucket in self._buckets:
            column = 2 + 2 * bucket
            charged = sum(row[column::_COLUMNS]) - row[own + column - 1]
            known = full_at[bucket]
            if charged != self._charged[bucket]:
                known = max(known, self._looked_at) + charged - self._charged[bucket]
                self._charged[bucket] = charged
            # What others know of charges that came after the bucket was full again.
            full_at[bucket] = max(known, max(row[column + 1 :: _COLUMNS]))
        self._looked_at = now
        return True

    def enter(self) -> None:
        self._count(1)

    def leave(self) -> None:
        self._count(-1)

    def charge(self, bucket: int, cost: int, now: int) -> None:
        """``cost``: the time in which the bucket refills by it."""
        self._put(bucket, cost, max(self.full_at[bucket], now) + cost)

    def undo(self, bucket: int, cost: int) -> None:
        self._put(bucket, -cost, self.full_at[bucket] - cost)

    @property
    def is_used(self) -> bool:
        """Whether it has requests in flight in this process."""
        return self._own_in_flight > 0

    def owes(self, now: int) -> bool:
        """Whether it cannot be discarded: it has requests in flight here, or has used more than it may."""
        return self._own_in_flight > 0 or self.full_at[COMPUTE] > now or self.full_at[TOKENS] > now

    def _count(self, change: int) -> None:
        self._own_in_flight += change
        self.in_flight += change
        base = self._base
        words = self._ledger._words
        if base >= 0 and words[base] == self._mark:
            words[base + self._ledger._own] += change

    def _put(self, bucket: int, cost: int, full_at: int) -> None:
        self.full_at[bucket] = full_at
        base = self._base
        words = self._ledger._words
        if base >= 0 and words[base] == self._mark:
            column = base + self._ledger._own + 1 + 2 * bucket
            words[column] += cost
            words[column + 1] = full_at

    def _bind(self, now: int) -> bool:
        """Find the row, and enter what is known here only."""
        ledger = self._ledger
        base = self._base = ledger.find(self._mark, now)
        if base < 0:
            self._retry_at = now + _RETRY_NS
            return False
        words, own = ledger._words, base + ledger._own
        words[own] += self._own_in_flight
        row = words[base : base + ledger._width].tolist()
        for bucket in range(_BUCKETS):
            column = 2 + 2 * bucket
            self._charged[bucket] = sum(row[column::_COLUMNS]) - row[ledger._own + column - 1]
            if self.full_at[bucket] > row[ledger._own + column]:
                words[own + column] = self.full_at[bucket]
        self._looked_at = now
        return True
