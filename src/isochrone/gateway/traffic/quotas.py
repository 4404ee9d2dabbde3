"""Quotas: rate, burst, concurrency and compute time per caller, and a rate for all callers. Pure.

Quotas are checked first. A bucket is stored as one instant: the time at which it is full again (the generic cell rate
algorithm of ITU-T I.371). So it needs no refilling, and the account of an idle caller can be discarded without loss.
Memory is bounded: of millions of callers only those that sent recently have an account.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import NamedTuple

from isochrone.gateway.traffic.affinity import AGENT_HEADER
from isochrone.settings.ranges import Amount, Count, Duration, Positive, Share

#: Longer keys are hashed: a caller must not decide how much memory its account needs.
_MAX_KEY = 64
#: Accounts that are considered for eviction at once.
_CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """The limits of one caller, and of all together. Requests without a caller's name share one account."""

    #: The header with the caller's name: ``x-agent-id`` for agents, or a tenant's header.
    header: str = AGENT_HEADER
    #: Requests per second of one caller; 0: no limit.
    rate: Amount = 0.0
    #: Requests a caller may send at once after it was idle.
    burst: Positive = 10
    #: Requests of one caller in flight at once; 0: no limit.
    concurrency: Count = 0
    #: Seconds of compute one caller may use per second; 0: no limit. Charged after the answer, so a long request is
    #: never interrupted: the next ones are rejected.
    compute_share: Amount = 0.0
    #: Compute a caller may use at once after it was idle.
    compute_burst_ns: Duration = 1_000_000_000
    #: Requests per second of all callers together; 0: no limit.
    total_rate: Amount = 0.0
    #: Requests of all callers at once after an idle time.
    total_burst: Positive = 100
    #: Share of the total burst that a priority class leaves for the classes above it, from class 1 (the highest) on.
    #: Classes beyond the last, and requests without a class, count as the last.
    reserve: tuple[Share, ...] = (0.0, 0.1, 0.3)
    #: Limit of accounts. Idle ones are discarded without loss; if there are more busy ones than this, the least
    #: recently used one is reset.
    max_tracked: Positive = 65_536

    @property
    def enabled(self) -> bool:
        return bool(self.rate or self.concurrency or self.compute_share or self.total_rate)


class QuotaRejection(NamedTuple):
    """A quota is used up; the answer is 429 or RESOURCE_EXHAUSTED."""

    #: Name of the setting: rate, concurrency, compute_share or total_rate.
    quota: str
    key: bytes
    #: The limit as text.
    limit: str
    #: When it can be granted; 0: when one of the caller's own requests ends.
    retry_after_ns: int

    @property
    def retry_after(self) -> int:
        """Seconds for the header Retry-After, which allows integers only (RFC 9110 §10.2.3)."""
        return max(1, ceil(self.retry_after_ns / 1e9))

    @property
    def message(self) -> str:
        whose = "of all callers" if self.quota == "total_rate" else f"of {self.key.decode('latin-1') or 'no caller'!r}"
        again = f"in {self.retry_after_ns / 1e6:.1f} ms" if self.retry_after_ns else "when a request has ended"
        return f"quota {self.quota} {whose} is used up: {self.limit}; try again {again}"


class _Account:
    """One caller."""

    __slots__ = ("compute_full_at", "in_flight", "rate_full_at")

    def __init__(self) -> None:
        self.in_flight = 0
        #: When its buckets are full again; an instant in the past: they are full.
        self.rate_full_at = 0
        self.compute_full_at = 0


class Quotas:
    """The quotas of one model, or of a whole gateway."""

    def __init__(self, rules: QuotaRules) -> None:
        self.rules = rules
        #: The header's name in lower case.
        self.header = rules.header.lower().encode("latin-1")
        self._accounts: OrderedDict[bytes, _Account] = OrderedDict()
        self._total_full_at = 0
        #: The refill time of one request, and how far in the future ``rate_full_at`` may be to grant one more.
        self._step = max(1, int(1e9 / rules.rate)) if rules.rate else 0
        self._ahead = (rules.burst - 1) * self._step
        self._total_step = max(1, int(1e9 / rules.total_rate)) if rules.total_rate else 0
        reserves = rules.reserve or (0.0,)
        self._total_ahead = tuple(
            max(0, int((rules.total_burst - 1 - reserve * rules.total_burst) * self._total_step))
            for reserve in reserves
        )
        self._compute_ahead = int(rules.compute_burst_ns / rules.compute_share) if rules.compute_share else 0

    def __len__(self) -> int:
        return len(self._accounts)

    def take(self, key: bytes, priority: int, now: int, *, occupies: bool = True) -> QuotaRejection | None:
        """Take one request from the caller's quotas, or return the quota that is used up; then nothing is taken.

        After None, the caller must call ``ended``, or ``undo`` if another quota rejects the request. ``occupies``: it
        counts against the concurrency; a message of a stream does not, since its stream does already.
        """
        rules = self.rules
        key = _short(key)
        account = self._accounts.get(key)
        if account is None:
            self._evict(now)
            account = self._accounts[key] = _Account()
        else:
            self._accounts.move_to_end(key)
        if self._step and account.rate_full_at - now > self._ahead:
            limit = f"{rules.rate:g} requests per second with a burst of {rules.burst}"
            return QuotaRejection("rate", key, limit, account.rate_full_at - now - self._ahead)
        if occupies and rules.concurrency and account.in_flight >= rules.concurrency:
            return QuotaRejection("concurrency", key, f"{rules.concurrency} requests at once", 0)
        if self._compute_ahead and account.compute_full_at - now >= self._compute_ahead:
            limit = f"{rules.compute_share:g} s of compute per second, {rules.compute_burst_ns / 1e9:g} s at once"
            return QuotaRejection("compute_share", key, limit, account.compute_full_at - now - self._compute_ahead + 1)
        if self._total_step:
            classes = len(self._total_ahead)
            ahead = self._total_ahead[priority - 1 if 0 < priority < classes else classes - 1]
            # A full bucket always grants: a small burst with a large reserve must not starve a class.
            if self._total_full_at - now > ahead:
                limit = f"{rules.total_rate:g} requests per second with a burst of {rules.total_burst}"
                return QuotaRejection("total_rate", key, limit, self._total_full_at - now - ahead)
            self._total_full_at = max(self._total_full_at, now) + self._total_step
        if self._step:
            account.rate_full_at = max(account.rate_full_at, now) + self._step
        account.in_flight += 1
        return None

    def ended(self, key: bytes, compute_ns: int, now: int) -> None:
        """End a granted request, and charge its compute time."""
        account = self._accounts.get(_short(key))
        if account is None:
            return
        account.in_flight -= 1
        if self._compute_ahead:
            account.compute_full_at = max(account.compute_full_at, now) + int(compute_ns / self.rules.compute_share)

    def undo(self, key: bytes) -> None:
        """Return a granted request that was not sent."""
        account = self._accounts.get(_short(key))
        if account is None:
            return
        account.in_flight -= 1
        account.rate_full_at -= self._step
        self._total_full_at -= self._total_step

    def _evict(self, now: int) -> None:
        """Evict old accounts: two idle ones for each new one; at the limit, also others without requests in flight."""
        accounts, most = self._accounts, self.rules.max_tracked
        removed = 0
        for _ in range(min(_CANDIDATES, len(accounts))):
            key, account = next(iter(accounts.items()))
            owes = account.in_flight > 0 or account.compute_full_at > now
            full = len(accounts) >= most
            if account.in_flight == 0 and (full or not (owes or account.rate_full_at > now)):
                del accounts[key]
                removed += 1
                if removed == 2:
                    return
            elif owes:
                # It may owe compute for a long time and must not block the idle ones behind it. Connections bound the
                # number of such accounts.
                accounts.move_to_end(key)
            else:
                return


def _short(key: bytes) -> bytes:
    return key if len(key) <= _MAX_KEY else blake2b(key, digest_size=32).digest()
