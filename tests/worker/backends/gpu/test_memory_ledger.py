"""The ledger of a device's memory: what fits, what is refused, and with which figures."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from isochrone.errors import Unavailable
from isochrone.worker.backends.memory_ledger import Account, Holding, MemoryLedger, ledger_of, ledgers

MEBIBYTE = 1 << 20


def account(name: str = "m", instance: int = 0) -> Account:
    return Account(name, "1", instance)


class Ledger(RuleBasedStateMachine):
    """A device of 100 bytes that our models fill and leave."""

    accounts = Bundle("accounts")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger("cuda:0")
        self.held: dict[tuple[Account, Holding], int] = {}

    @rule(target=accounts, number=st.integers(0, 4))
    def name(self, number: int) -> Account:
        return account(f"m{number}")

    @rule(owner=accounts, needs=st.dictionaries(st.sampled_from(Holding), st.integers(0, 60)), spare=st.integers(0, 20))
    def reserve(self, owner: Account, needs: dict[Holding, int], spare: int) -> None:
        free = 100 - sum(self.held.values())
        if sum(needs.values()) + spare > free:
            with pytest.raises(Unavailable, match="does not fit on cuda:0"):
                self.ledger.reserve(owner, needs, free, 100, spare)
            return
        self.ledger.reserve(owner, needs, free, 100, spare)
        for holding, size in needs.items():
            self.held[owner, holding] = self.held.get((owner, holding), 0) + size

    @rule(owner=accounts)
    def release(self, owner: Account) -> None:
        self.ledger.release(owner)
        self.held = {key: size for key, size in self.held.items() if key[0] != owner}

    @rule(owner=accounts, holding=st.sampled_from(Holding), size=st.integers(0, 5))
    def record(self, owner: Account, holding: Holding, size: int) -> None:
        self.ledger.record(owner, holding, size)
        self.held[owner, holding] = size

    @invariant()
    def agrees(self) -> None:
        assert {(owner, holding): size for owner, holding, size in self.ledger} == self.held
        assert self.ledger.total_held == sum(self.held.values())


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=50, stateful_step_count=30)


def test_a_refusal_has_all_figures() -> None:
    ledger = MemoryLedger("cuda:0")
    ledger.reserve(account("large"), {Holding.WEIGHTS: 700 * MEBIBYTE}, 1000 * MEBIBYTE, 1000 * MEBIBYTE)
    needs = {Holding.WEIGHTS: 280 * MEBIBYTE, Holding.SLOTS: 20 * MEBIBYTE}
    with pytest.raises(Unavailable) as refused:
        ledger.reserve(account("new"), needs, 300 * MEBIBYTE, 1000 * MEBIBYTE, 10 * MEBIBYTE)
    assert refused.value.message == (
        "model 'new' version 1 instance 0 does not fit on cuda:0: it needs 300 MiB (weights 280 MiB, slots 20 MiB) and "
        "10 MiB to spare, 300 MiB of 1,000 MiB are free; model 'large' version 1 instance 0 holds 700 MiB"
    )
    assert ledger.held(account("new")) == {}


def test_a_share_of_the_device_may_not_be_used() -> None:
    ledger = MemoryLedger("cuda:0")
    ledger.reserve(account(), {Holding.WEIGHTS: 50}, 100, 100, share=0.5)
    with pytest.raises(Unavailable, match=r"50 bytes of 100 bytes are free, of which 50 bytes may not be used"):
        ledger.reserve(account("other"), {Holding.WEIGHTS: 1}, 50, 100, share=0.5)


def test_nobody_else_holds_memory() -> None:
    with pytest.raises(Unavailable, match="no model of this process holds any"):
        MemoryLedger("cuda:1").reserve(account(), {Holding.CACHE: 5}, 4, 8)


def test_there_is_one_ledger_for_each_device() -> None:
    assert ledger_of("test:7") is ledger_of("test:7")
    assert ledger_of("test:7") in ledgers()
    assert ledger_of("test:8") is not ledger_of("test:7")
