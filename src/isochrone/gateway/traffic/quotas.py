"""Quotas: rate, burst, concurrency, compute time and tokens per caller, and a rate for all callers. Pure.

Quotas are checked first. A bucket is stored as one instant: the time at which it is full again (the generic cell rate
algorithm of ITU-T I.371). So it needs no refilling, and the account of an idle caller can be discarded without loss.
Memory is bounded: of millions of callers only those that sent recently have an account. Processes of one gateway keep
their accounts together (``quota_ledger``).
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from isochrone.gateway.traffic.quota_ledger import COMPUTE, RATE, TOKENS, QuotaLedger, SharedAccount
from isochrone.gateway.traffic.quota_rules import BY_HEADER, BY_IDENTITY, CallerLimits, QuotaRules

if TYPE_CHECKING:
    from isochrone.gateway.traffic.fields import Fields

#: Longer keys are hashed: a caller must not decide how much memory its account needs.
_MAX_KEY = 64
#: Accounts that are considered for eviction at once.
_CANDIDATES = 8
#: What the accounts of tenants begin with (``secure.access``), and those of headers' values that look like one.
TENANT = b"tenant:"
_HEADER = b"header:"
_ANONYMOUS = b"anonymous"
_TOTAL = b"total"


class QuotaRejection(NamedTuple):
    """A quota is used up; the answer is 429 or RESOURCE_EXHAUSTED."""

    #: Name of the setting: rate, concurrency, compute_share, token_rate or total_rate.
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


class _Limits:
    """What one caller may do, as the buckets compute it. ``share``: of the limits, 1 is all of them."""

    __slots__ = ("ahead", "burst", "compute_ahead", "compute_cost", "concurrency", "rules", "share", "step",
                 "token_ahead", "token_cost")  # fmt: skip

    def __init__(self, rules: CallerLimits, share: float) -> None:
        self.rules = rules
        self.set(share)

    def set(self, share: float) -> None:
        rules = self.rules
        self.share = share
        #: The refill time of one request, and how far in the future its bucket may be full to grant one more.
        self.step = _refill(rules.rate * share)
        self.burst = max(1, int(rules.burst * share))
        self.ahead = (self.burst - 1) * self.step
        self.concurrency = max(1, int(rules.concurrency * share)) if rules.concurrency else 0
        #: The refill time of one nanosecond of compute, and of one token.
        self.compute_cost = 1 / (rules.compute_share * share) if rules.compute_share else 0.0
        self.compute_ahead = int(rules.compute_burst_ns / rules.compute_share) if rules.compute_share else 0
        self.token_cost = 1e9 / (rules.token_rate * share) if rules.token_rate else 0.0
        self.token_ahead = int(rules.token_burst * 1e9 / rules.token_rate) if rules.token_rate else 0

    def of(self, share: str) -> str:
        """A limit as text; where the limits are divided, it says so."""
        return share if self.share == 1 else f"{share}, {self.share:.0%} of it here"


class LocalAccount:
    """One caller's in one process."""

    __slots__ = ("full_at", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        #: Of each bucket: when it is full again; an instant in the past: it is full.
        self.full_at = [0, 0, 0]

    def look(self, now: int) -> bool:
        return True

    def enter(self) -> None:
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1

    def charge(self, bucket: int, cost: int, now: int) -> None:
        self.full_at[bucket] = max(self.full_at[bucket], now) + cost

    def undo(self, bucket: int, cost: int) -> None:
        self.full_at[bucket] -= cost

    @property
    def is_used(self) -> bool:
        """Whether it has requests in flight."""
        return self.in_flight > 0

    def owes(self, now: int) -> bool:
        full_at = self.full_at
        return self.in_flight > 0 or full_at[COMPUTE] > now or full_at[TOKENS] > now


Account = LocalAccount | SharedAccount


class Quotas:
    """The quotas of one model, or of a whole gateway. ``scope``: whose, as its accounts in the ledger are named."""

    def __init__(
        self, rules: QuotaRules, scope: str = "", ledger: QuotaLedger | None = None, share: float = 1.0
    ) -> None:
        self.rules = rules
        self._by_header = rules.by == BY_HEADER
        self._by_identity = rules.by == BY_IDENTITY
        #: The header's name in lower case.
        self._header = rules.header.lower().encode("latin-1")
        self._scope = scope.encode()
        self._ledger = ledger
        every = (rules, *rules.tenants.values())
        used = {RATE: True, COMPUTE: any(e.compute_share for e in every), TOKENS: rules.counts_tokens}
        self._buckets = tuple(bucket for bucket, is_used in used.items() if is_used)
        self._accounts: OrderedDict[bytes, Account] = OrderedDict()
        self._total = self._open(_TOTAL, b"")
        self._each = _Limits(rules, 1)
        names = {_short(TENANT + name.encode()): name for name in rules.tenants}
        self._tenant_names = names
        self._tenants = {key: _Limits(rules.tenants[name], 1) for key, name in names.items()}
        #: The same for accounts that the ledger has no row for.
        self._alone: dict[_Limits, _Limits] = {each: _Limits(each.rules, 1) for each in self._limits()}
        #: Rejections by tenant and quota: of the tenants that the rules name, and of all other callers ("").
        self.rejections: dict[tuple[str, str], int] = {}
        self.set_share(share)

    def _limits(self) -> tuple[_Limits, ...]:
        return (self._each, *self._tenants.values())

    def set_share(self, share: float) -> None:
        """The share of all limits that this gateway has in its fleet. Accounts stay as they are."""
        rules, alone = self.rules, share / (self._ledger.count if self._ledger is not None else 1)
        for each in self._limits():
            each.set(share)
            self._alone[each].set(alone)
        self._total_rate = self._total_limits(rules, share)
        self._total_alone = self._total_limits(rules, alone)

    @staticmethod
    def _total_limits(rules: QuotaRules, share: float) -> tuple[int, tuple[int, ...], int]:
        """The refill time of one request, how far ahead each class may be, and the burst."""
        step, burst = _refill(rules.total_rate * share), max(1, int(rules.total_burst * share))
        reserves = rules.reserve or (0.0,)
        return step, tuple(max(0, int((burst - 1 - reserve * burst) * step)) for reserve in reserves), burst

    def __len__(self) -> int:
        return len(self._accounts)

    def key_of(self, account: bytes | None, head: Fields) -> bytes:
        """The account of a request: that of its proved identity (None: there are no access rules), or the header's
        value. Nothing in a message changes an identity's account."""
        if not self._by_header:
            if account is not None:
                return account
            if self._by_identity:
                return _ANONYMOUS
        value = head.get(self._header) or b""
        return _HEADER + value if value.startswith(TENANT) else value

    def take(self, key: bytes, priority: int, now: int, *, occupies: bool = True) -> QuotaRejection | None:
        """Take one request from the caller's quotas, or return the quota that is used up; then nothing is taken.

        After None, the caller must call ``ended``, or ``undo`` if another quota rejects the request. ``occupies``: it
        counts against the concurrency; a message of a stream does not, since its stream does already.
        """
        key = _short(key)
        account = self._accounts.get(key)
        if account is None:
            self._evict(now)
            account = self._accounts[key] = self._open(b"caller", key)
        else:
            self._accounts.move_to_end(key)
        limits = self._tenants.get(key, self._each)
        if not account.look(now):
            limits = self._alone[limits]
        rejection = self._over(account, key, limits, now, occupies) or self._over_total(key, priority, now)
        if rejection is not None:
            self._count(key, rejection.quota)
            return rejection
        if limits.step:
            account.charge(RATE, limits.step, now)
        account.enter()
        return None

    def _over(self, account: Account, key: bytes, limits: _Limits, now: int, occupies: bool) -> QuotaRejection | None:
        rules, full_at = limits.rules, account.full_at
        if limits.step and full_at[RATE] - now > limits.ahead:
            limit = limits.of(f"{rules.rate:g} requests per second with a burst of {rules.burst}")
            return QuotaRejection("rate", key, limit, full_at[RATE] - now - limits.ahead)
        if occupies and limits.concurrency and account.in_flight >= limits.concurrency:
            return QuotaRejection("concurrency", key, limits.of(f"{rules.concurrency} requests at once"), 0)
        if limits.compute_cost and full_at[COMPUTE] - now >= limits.compute_ahead:
            limit = f"{rules.compute_share:g} s of compute per second, {rules.compute_burst_ns / 1e9:g} s at once"
            retry = full_at[COMPUTE] - now - limits.compute_ahead + 1
            return QuotaRejection("compute_share", key, limits.of(limit), retry)
        if limits.token_cost and full_at[TOKENS] - now >= limits.token_ahead:
            limit = f"{rules.token_rate:g} tokens per second, {rules.token_burst} at once"
            retry = full_at[TOKENS] - now - limits.token_ahead + 1
            return QuotaRejection("token_rate", key, limits.of(limit), retry)
        return None

    def _over_total(self, key: bytes, priority: int, now: int) -> QuotaRejection | None:
        """Take one from the rate of all callers, or reject."""
        if not self._total_rate[0]:
            return None
        account = self._total
        step, aheads, _ = self._total_rate if account.look(now) else self._total_alone
        classes = len(aheads)
        ahead = aheads[priority - 1 if 0 < priority < classes else classes - 1]
        # A full bucket always grants: a small burst with a large reserve must not starve a class.
        if account.full_at[RATE] - now > ahead:
            rules = self.rules
            limit = f"{rules.total_rate:g} requests per second with a burst of {rules.total_burst}"
            return QuotaRejection("total_rate", key, self._each.of(limit), account.full_at[RATE] - now - ahead)
        account.charge(RATE, step, now)
        return None

    def ended(self, key: bytes, compute_ns: int, now: int) -> None:
        """End a granted request, and charge its compute time."""
        key = _short(key)
        account = self._accounts.get(key)
        if account is None:
            return
        account.leave()
        limits = self._tenants.get(key, self._each)
        if limits.compute_cost and compute_ns:
            account.look(now)
            account.charge(COMPUTE, int(compute_ns * limits.compute_cost), now)

    def spend(self, key: bytes, tokens: int, now: int) -> None:
        """Charge tokens of a granted request."""
        key = _short(key)
        account, limits = self._accounts.get(key), self._tenants.get(key, self._each)
        if account is not None and limits.token_cost:
            account.look(now)
            account.charge(TOKENS, int(tokens * limits.token_cost), now)

    def undo(self, key: bytes) -> None:
        """Return a granted request that was not sent."""
        key = _short(key)
        account = self._accounts.get(key)
        if account is None:
            return
        account.leave()
        account.undo(RATE, self._tenants.get(key, self._each).step)
        if self._total_rate[0]:
            self._total.undo(RATE, self._total_rate[0])

    def _open(self, kind: bytes, key: bytes) -> Account:
        return (
            LocalAccount()
            if self._ledger is None
            else self._ledger.account(b"%s/%s" % (kind, self._scope), key, self._buckets)
        )

    def _count(self, key: bytes, quota: str) -> None:
        tenant = self._tenant_names.get(key, "")
        self.rejections[tenant, quota] = self.rejections.get((tenant, quota), 0) + 1

    def _evict(self, now: int) -> None:
        """Evict old accounts: two idle ones for each new one; at the limit, also others without requests in flight."""
        accounts, most = self._accounts, self.rules.max_tracked
        removed = 0
        for _ in range(min(_CANDIDATES, len(accounts))):
            key, account = next(iter(accounts.items()))
            owes = account.owes(now)
            full = len(accounts) >= most
            if not account.is_used and (full or not (owes or account.full_at[RATE] > now)):
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


def _refill(rate: float) -> int:
    """Nanoseconds; 0: no limit."""
    return max(1, int(1e9 / rate)) if rate else 0


def _short(key: bytes) -> bytes:
    return key if len(key) <= _MAX_KEY else blake2b(key, digest_size=32).digest()
