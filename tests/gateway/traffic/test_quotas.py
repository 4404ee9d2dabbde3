"""Quotas: never above the limits over any schedule, refusals that tell the truth, memory that stays bounded."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isochrone.gateway.traffic.quota_rules import CallerLimits, QuotaRules
from isochrone.gateway.traffic.quotas import TENANT, QuotaRejection, Quotas

MS = 1_000_000
SECOND = 1_000 * MS


def granted(quotas: Quotas, key: bytes, wishes: int, now: int, priority: int = 0) -> int:
    return sum(quotas.take(key, priority, now) is None for _ in range(wishes))


def burst_left(quotas: Quotas, key: bytes, now: int) -> int:
    """Requests that the caller could send one after the other at this instant."""
    copy = deepcopy(quotas)
    left = 0
    while copy.take(key, 1, now) is None:
        copy.ended(key, 0, now)
        left += 1
    return left


def refused(quotas: Quotas, key: bytes, now: int, priority: int = 0) -> QuotaRejection:
    refusal = quotas.take(key, priority, now)
    assert refusal is not None
    return refusal


def test_rate_and_burst_of_each_caller_on_its_own() -> None:
    quotas = Quotas(QuotaRules(rate=10, burst=5))
    assert granted(quotas, b"robot-1", 20, SECOND) == 5
    assert granted(quotas, b"robot-2", 20, SECOND) == 5
    assert granted(quotas, b"robot-1", 20, SECOND + 300 * MS) == 3
    assert granted(quotas, b"robot-1", 20, 60 * SECOND) == 5


def test_a_refusal_says_which_quota_its_limits_and_when_to_retry() -> None:
    quotas = Quotas(QuotaRules(rate=10, burst=5))
    granted(quotas, b"robot-1", 5, SECOND)
    refusal = refused(quotas, b"robot-1", SECOND)
    assert refusal.quota == "rate"
    assert refusal.limit == "10 requests per second with a burst of 5"
    assert refusal.retry_after_ns == 100 * MS
    assert refusal.retry_after == 1
    assert refusal.message == (
        "quota rate of 'robot-1' is used up: 10 requests per second with a burst of 5; try again in 100.0 ms"
    )
    # The time is exact: 1 ns before it is too early.
    refused(quotas, b"robot-1", SECOND + refusal.retry_after_ns - 1)
    assert granted(quotas, b"robot-1", 1, SECOND + refusal.retry_after_ns) == 1


def test_a_slow_rate_gives_whole_seconds() -> None:
    quotas = Quotas(QuotaRules(rate=0.1, burst=1))
    granted(quotas, b"robot-1", 1, SECOND)
    assert refused(quotas, b"robot-1", 3 * SECOND + 1).retry_after == 8


def test_concurrency_comes_back_when_a_request_ends() -> None:
    quotas = Quotas(QuotaRules(concurrency=2))
    assert granted(quotas, b"robot-1", 5, SECOND) == 2
    refusal = refused(quotas, b"robot-1", SECOND)
    assert (refusal.quota, refusal.limit, refusal.retry_after) == ("concurrency", "2 requests at once", 1)
    assert refusal.message.endswith("try again when a request has ended")
    quotas.ended(b"robot-1", 0, SECOND)
    assert granted(quotas, b"robot-1", 5, SECOND) == 1


def test_compute_is_paid_after_the_answer() -> None:
    quotas = Quotas(QuotaRules(compute_share=0.5, compute_burst_ns=SECOND))
    assert granted(quotas, b"robot-1", 1, SECOND) == 1
    quotas.ended(b"robot-1", 3 * SECOND, SECOND)
    # 3 s used, 1 s of burst: the other 2 s come back in 4 s at half a second per second.
    refusal = refused(quotas, b"robot-1", SECOND)
    assert refusal.quota == "compute_share"
    assert refusal.retry_after_ns == 4 * SECOND + 1
    refused(quotas, b"robot-1", 5 * SECOND)
    assert granted(quotas, b"robot-1", 1, 5 * SECOND + 1) == 1


def test_compute_over_a_long_time_is_the_share() -> None:
    quotas = Quotas(QuotaRules(compute_share=0.25, compute_burst_ns=100 * MS))
    used = 0
    for step in range(20_000):
        if quotas.take(b"robot-1", 0, SECOND + step * MS) is None:
            quotas.ended(b"robot-1", 7 * MS, SECOND + step * MS)
            used += 7
    assert abs(used - (20_000 * 0.25 + 100)) <= 7


def test_the_rate_of_all_leaves_something_for_higher_classes() -> None:
    quotas = Quotas(QuotaRules(total_rate=100, total_burst=100, reserve=(0, 0.1, 0.3)))
    assert granted(quotas, b"batch", 200, SECOND, priority=3) == 70
    assert granted(quotas, b"unnamed", 200, SECOND, priority=0) == 0
    assert granted(quotas, b"beyond", 200, SECOND, priority=9) == 0
    assert granted(quotas, b"normal", 200, SECOND, priority=2) == 20
    assert granted(quotas, b"urgent", 200, SECOND, priority=1) == 10
    refusal = refused(quotas, b"urgent", SECOND, priority=1)
    assert refusal.quota == "total_rate"
    assert "of all callers" in refusal.message


def test_a_small_burst_starves_no_class() -> None:
    quotas = Quotas(QuotaRules(total_rate=1, total_burst=1, reserve=(0, 0.9)))
    for second in range(1, 10):
        assert granted(quotas, b"batch", 3, second * SECOND, priority=2) == 1


def test_a_refusal_takes_nothing() -> None:
    quotas = Quotas(QuotaRules(rate=10, burst=5, concurrency=1, total_rate=10, total_burst=5))
    assert granted(quotas, b"robot-1", 50, SECOND) == 1
    quotas.ended(b"robot-1", 0, SECOND)
    assert burst_left(quotas, b"robot-1", SECOND) == 4


def test_undone_is_as_if_it_had_not_been() -> None:
    quotas = Quotas(QuotaRules(rate=10, burst=5, concurrency=5, total_rate=10, total_burst=5))
    for _ in range(100):
        assert quotas.take(b"robot-1", 1, SECOND) is None
        quotas.undo(b"robot-1")
    assert granted(quotas, b"robot-1", 20, SECOND, priority=1) == 5


def test_requests_without_a_caller_share_one_account() -> None:
    quotas = Quotas(QuotaRules(rate=10, burst=5))
    assert granted(quotas, b"", 20, SECOND) == 5
    assert "'no caller'" in refused(quotas, b"", SECOND).message


def test_rules_without_limits_are_off() -> None:
    assert not QuotaRules().enabled
    assert QuotaRules(concurrency=1).enabled
    quotas = Quotas(QuotaRules())
    assert granted(quotas, b"robot-1", 1_000, SECOND) == 1_000


def test_idle_callers_are_forgotten_and_busy_ones_are_not() -> None:
    quotas = Quotas(QuotaRules(rate=10, burst=5, concurrency=3, max_tracked=1_000))
    assert granted(quotas, b"under way", 1, SECOND) == 1
    for number in range(50_000):
        now = SECOND + number * MS
        if number % 10 == 0 and granted(quotas, b"busy", 1, now):
            quotas.ended(b"busy", 0, now)
        key = f"robot-{number}".encode()
        assert quotas.take(key, 0, now) is None
        quotas.ended(key, 0, now)
        assert len(quotas) <= 1_000
    # 100 ms after a request its bucket is full: no more than those of 100 ms need to be known.
    assert len(quotas) < 250
    assert burst_left(quotas, b"busy", now) < 5
    assert granted(quotas, b"under way", 5, now) == 2


def test_with_more_busy_callers_than_accounts_the_oldest_is_reset() -> None:
    quotas = Quotas(QuotaRules(rate=0.001, burst=1, max_tracked=100))
    for number in range(1_000):
        key = f"robot-{number}".encode()
        assert quotas.take(key, 0, SECOND) is None
        quotas.ended(key, 0, SECOND)
        assert len(quotas) <= 100
    refused(quotas, b"robot-999", SECOND)
    assert granted(quotas, b"robot-0", 1, SECOND) == 1


def test_a_long_name_is_not_kept() -> None:
    quotas = Quotas(QuotaRules(rate=10, burst=1))
    long = b"x" * 100_000
    assert granted(quotas, long, 5, SECOND) == 1
    assert len(refused(quotas, long, SECOND).key) <= 64
    assert granted(quotas, long + b"y", 5, SECOND) == 1


@given(
    rate=st.sampled_from([1, 10, 250]),
    burst=st.integers(1, 20),
    steps=st.lists(st.tuples(st.sampled_from([0, 1, 3, 40, 999, 20_000]), st.integers(0, 30)), max_size=60),
)
def test_a_bucket_is_never_negative_never_above_the_burst_and_exact(
    rate: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    """Against a plain bucket in exact numbers."""
    quotas = Quotas(QuotaRules(rate=rate, burst=burst))
    now, level = SECOND, Fraction(burst)
    for passed_ms, wishes in steps:
        now += passed_ms * MS
        level = min(Fraction(burst), level + Fraction(rate * passed_ms, 1_000))
        got = granted(quotas, b"robot-1", wishes, now)
        assert got == min(wishes, int(level))
        level -= got


class QuotaMachine(RuleBasedStateMachine):
    """Many callers in any order, with forgetting: no caller is above its concurrency, no bucket out of its bounds."""

    @initialize(tracked=st.integers(1, 6), concurrency=st.integers(0, 3))
    def start(self, tracked: int, concurrency: int) -> None:
        self.limits = QuotaRules(
            rate=20,
            burst=4,
            concurrency=concurrency,
            compute_share=0.5,
            compute_burst_ns=200 * MS,
            total_rate=100,
            total_burst=12,
            max_tracked=tracked,
        )
        self.quotas = Quotas(self.limits)
        self.now = SECOND
        self.under_way: list[bytes] = []
        #: The most callers with requests in flight at once so far.
        self.most_under_way = 0

    @rule(ms=st.sampled_from([1, 30, 500]))
    def wait(self, ms: int) -> None:
        self.now += ms * MS

    @rule(who=st.integers(0, 9), priority=st.integers(0, 4))
    def send(self, who: int, priority: int) -> None:
        key = b"robot-%d" % who
        refusal = self.quotas.take(key, priority, self.now)
        if refusal is None:
            self.under_way.append(key)
            self.most_under_way = max(self.most_under_way, len(set(self.under_way)))
        else:
            assert refusal.retry_after >= 1
            assert refusal.retry_after_ns > 0 or refusal.quota == "concurrency"

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), compute_ms=st.sampled_from([0, 5, 300]), sent=st.booleans())
    def end(self, data: st.DataObject, compute_ms: int, sent: bool) -> None:
        key = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if sent:
            self.quotas.ended(key, compute_ms * MS, self.now)
        else:
            self.quotas.undo(key)

    @invariant()
    def bounds_hold(self) -> None:
        limits = self.limits
        for key in {b"robot-%d" % who for who in range(10)}:
            assert burst_left(self.quotas, key, self.now) <= limits.burst
            assert not limits.concurrency or self.under_way.count(key) <= limits.concurrency
        # Only callers with requests in flight can take it above its bound. They are evicted as others come.
        assert len(self.quotas) <= limits.max_tracked + self.most_under_way


TestQuotaMachine = QuotaMachine.TestCase


def test_a_tenant_with_a_long_name_has_its_limits() -> None:
    name = "t" * 100
    quotas = Quotas(QuotaRules(rate=1000.0, burst=1000, tenants={name: CallerLimits(rate=1.0, burst=2)}))
    key = TENANT + name.encode()
    assert [quotas.take(key, 0, 0) is None for _ in range(4)] == [True, True, False, False]
    assert quotas.rejections == {(name, "rate"): 2}
