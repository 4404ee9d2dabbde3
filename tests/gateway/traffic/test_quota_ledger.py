"""Accounts that processes keep together: the stated bound over any schedule, also where decisions interleave, where
processes end and where accounts get no place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.traffic.quota_ledger import RATE, TOKENS, QuotaLedger, SharedAccount, size
from isochrone.gateway.traffic.quota_rules import CallerLimits, QuotaRules
from isochrone.gateway.traffic.quotas import Quotas

MS = 1_000_000
SECOND = 1_000 * MS
KEY = b"tenant:plant-a"


@dataclass
class Memory:
    """Of some processes, and the lock that decides who gets a row."""

    count: int
    rows: int = 64
    is_locked: bool = False
    words: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.words = memoryview(bytearray(size(self.count, self.rows))).cast("q")

    def locked(self, do: Callable[[], None]) -> bool:
        if self.is_locked:
            return False
        do()
        return True

    def ledger(self, number: int) -> QuotaLedger:
        found = QuotaLedger(self.words, self.count, number, b"secret", self.locked)
        found.forget_in_flight()
        return found


def processes(memory: Memory, rules: QuotaRules) -> list[Quotas]:
    return [Quotas(rules, "m", memory.ledger(number)) for number in range(1, memory.count + 1)]


# One process at a time: exact.

#: What happens: to which process, after how long, and whether its requests end.
schedules = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.integers(1, 6)), max_size=60)


@given(schedules, st.integers(1, 8), st.sampled_from([0.5, 3.0, 10.0, 97.0]))
def test_several_processes_grant_what_one_would(schedule: list[tuple[int, int, int]], burst: int, rate: float) -> None:
    rules = QuotaRules(rate=rate, burst=burst)
    several, one = processes(Memory(4), rules), Quotas(rules)
    now = SECOND
    for number, pause, wishes in schedule:
        now += pause * MS
        for _ in range(wishes):
            mine, its = several[number].take(KEY, 0, now), one.take(KEY, 0, now)
            assert mine == its
            for quotas, refusal in ((several[number], mine), (one, its)):
                if refusal is None:
                    quotas.ended(KEY, 0, now)


@given(schedules, st.integers(1, 6))
def test_concurrency_counts_requests_of_all_processes(schedule: list[tuple[int, int, int]], most: int) -> None:
    several = processes(Memory(4), QuotaRules(concurrency=most))
    in_flight = [0] * 4
    for number, ending, wishes in schedule:
        quotas = several[number]
        if ending % 2 and in_flight[number]:
            quotas.ended(KEY, 0, SECOND)
            in_flight[number] -= 1
        for _ in range(wishes):
            granted = quotas.take(KEY, 0, SECOND) is None
            assert granted == (sum(in_flight) < most)
            in_flight[number] += granted


# Decisions that interleave: each process looks, then others look, then each grants by what it saw.


@given(
    st.lists(st.tuples(st.integers(0, 300), st.lists(st.integers(0, 3), min_size=1, max_size=8)), max_size=60),
    st.integers(1, 6),
    st.sampled_from([2.0, 10.0, 50.0]),
)
def test_the_bound_holds_where_processes_decide_at_once(
    rounds: list[tuple[int, list[int]]], burst: int, rate: float
) -> None:
    """At most rate × T + burst, and one request for each further process, in any time T."""
    count = 4
    memory, step = Memory(count), int(SECOND / rate)
    accounts: list[SharedAccount] = [memory.ledger(number).account(b"m", KEY) for number in range(1, count + 1)]
    now, granted = SECOND, list[int]()
    for pause, deciding in rounds:
        now += pause * MS
        # All of a round look before any of them grants.
        looked = [number for number in deciding if accounts[number].look(now)]
        for number in dict.fromkeys(looked):
            if accounts[number].full_at[RATE] - now <= (burst - 1) * step:
                accounts[number].charge(RATE, step, now)
                granted.append(now)
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            allowed = (granted[last] - granted[first]) / step + burst + count - 1
            assert last - first + 1 <= allowed + 1e-6


def test_a_race_is_repaid() -> None:
    memory, step, burst = Memory(2), SECOND, 5
    one, other = (memory.ledger(number).account(b"m", KEY) for number in (1, 2))
    now, granted = SECOND, 0
    while True:
        before = granted
        for account in (one, other):
            assert account.look(now)
        for account in (one, other):
            if account.full_at[RATE] - now <= (burst - 1) * step:
                account.charge(RATE, step, now)
                granted += 1
        if granted == before:
            break
    assert granted == burst + 1
    # The next ones come one refill later: not sooner for the one that was too many.
    now += step
    assert one.look(now)
    assert one.full_at[RATE] - now > (burst - 1) * step


# What goes wrong.


def test_what_a_process_charged_stays_charged_and_its_requests_end_with_it() -> None:
    memory, rules = Memory(2), QuotaRules(rate=1, burst=10, concurrency=4)
    one, other = processes(memory, rules)
    assert [other.take(KEY, 0, SECOND) for _ in range(4)] == [None] * 4
    assert one.take(KEY, 0, SECOND) is not None
    # It is killed, and started again.
    again = Quotas(rules, "m", memory.ledger(2))
    assert [again.take(KEY, 0, SECOND) for _ in range(4)] == [None] * 4
    for _ in range(4):
        again.ended(KEY, 0, SECOND)
    granted = sum(each.take(KEY, 0, SECOND) is None for each in (one, again, one, again))
    assert granted == 2, "ten in all, whoever was asked"


@pytest.mark.parametrize("why", ["no place", "no lock"])
def test_without_a_place_each_process_grants_its_part(why: str) -> None:
    memory = Memory(4, rows=1)
    if why == "no lock":
        memory.is_locked = True
    else:
        blocking = memory.ledger(1).account(b"m", b"another caller")
        assert blocking.look(SECOND)
        blocking.enter()
    several = processes(memory, QuotaRules(rate=0.1, burst=20, concurrency=12, total_rate=0.1, total_burst=16))
    granted = [sum(quotas.take(KEY, 1, SECOND) is None for _ in range(50)) for quotas in several]
    assert granted == [3] * 4, "a fourth of the concurrency each"
    refusal = several[0].take(KEY, 1, SECOND)
    assert refusal is not None
    assert refusal.limit == "12 requests at once, 25% of it here"


def test_an_account_gets_its_place_later_with_what_it_used() -> None:
    memory = Memory(2)
    memory.is_locked = True
    one, other = processes(memory, QuotaRules(concurrency=8))
    assert sum(one.take(KEY, 0, SECOND) is None for _ in range(9)) == 4
    memory.is_locked = False
    assert sum(other.take(KEY, 0, 2 * SECOND) is None for _ in range(9)) == 8, "it knows of no others yet"
    assert one.take(KEY, 0, 2 * SECOND) is not None
    for _ in range(5):
        other.ended(KEY, 0, 2 * SECOND)
    assert sum(one.take(KEY, 0, 2 * SECOND) is None for _ in range(9)) == 1


def test_rows_of_idle_accounts_are_used_again_and_of_busy_ones_are_not() -> None:
    memory = Memory(2, rows=1)
    one, other = memory.ledger(1), memory.ledger(2)
    first, second = one.account(b"m", b"first"), other.account(b"m", b"second")
    assert first.look(SECOND)
    first.enter()
    assert not second.look(2 * SECOND)
    first.leave()
    first.charge(TOKENS, 5 * SECOND, SECOND)
    assert not second.look(10 * SECOND), "it was full again at 6 s"
    assert second.look(20 * SECOND)
    assert second.full_at == [0, 0, 0]
    second.enter()
    assert not first.look(20 * SECOND), "it has lost its row"
    assert second.look(20 * SECOND)
    assert second.in_flight == 1


def test_tokens_and_compute_of_one_process_count_in_all() -> None:
    rules = QuotaRules(token_rate=10, token_burst=100, compute_share=0.5, compute_burst_ns=SECOND)
    one, other = processes(Memory(2), rules)
    assert one.take(KEY, 0, SECOND) is None
    one.spend(KEY, 150, SECOND)
    refusal = other.take(KEY, 0, SECOND)
    assert refusal is not None
    assert (refusal.quota, refusal.retry_after_ns) == ("token_rate", 5 * SECOND + 1)
    assert refusal.limit == "10 tokens per second, 100 at once"
    one.ended(KEY, 3 * SECOND, 6 * SECOND)
    refusal = other.take(KEY, 0, 7 * SECOND)
    assert refusal is not None
    assert refusal.quota == "compute_share"


def test_models_tenants_and_the_gateway_have_accounts_of_their_own() -> None:
    memory = Memory(2)
    rules = QuotaRules(rate=1, burst=2, tenants={"plant-b": CallerLimits(rate=1, burst=5)})
    models = [Quotas(rules, name, memory.ledger(1)) for name in ("", "a", "b")]
    for quotas in models:
        assert sum(quotas.take(KEY, 0, SECOND) is None for _ in range(9)) == 2
        assert sum(quotas.take(b"tenant:plant-b", 0, SECOND) is None for _ in range(9)) == 5
    assert models[0].rejections == {("", "rate"): 7, ("plant-b", "rate"): 4}


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 200))
def test_gateways_of_a_fleet_divide_the_limits(gateways: int, burst: int, most: int) -> None:
    """Together never more than the limit, or one of each where it is smaller than their number."""
    rules = QuotaRules(rate=1e-6, burst=burst, concurrency=most, total_rate=1e-6, total_burst=burst)
    each = [Quotas(rules) for _ in range(gateways)]
    for quotas in each:
        quotas.set_share(1 / gateways)
    granted = sum(quotas.take(KEY, 1, SECOND) is None for quotas in each for _ in range(50))
    assert granted <= max(gateways, min(burst, most))
