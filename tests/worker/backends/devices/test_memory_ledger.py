"""The ledger of a device's memory: what fits, what is refused, and with which figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from isochrone.errors import Unavailable
from isochrone.worker.backends.devices.memory_ledger import (
    Account,
    Holding,
    MemoryLedger,
    Reservation,
    ledger_of,
    ledgers,
)

MEBIBYTE = 1 << 20


def account(name: str = "m", instance: int = 0) -> Account:
    return Account(name, "1", instance)


class Ledger(RuleBasedStateMachine):
    """A device of 100 bytes that our models fill and leave."""

    loads = Bundle("loads")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger("cuda:0")
        #: What is there, and what of it is allocated.
        self.held: dict[Reservation, dict[Holding, int]] = {}
        self.allocated: dict[Reservation, set[Holding]] = {}

    @rule(
        target=loads,
        number=st.integers(0, 3),
        needs=st.dictionaries(st.sampled_from(Holding), st.integers(0, 60)),
        spare=st.integers(0, 20),
    )
    def reserve(self, number: int, needs: dict[Holding, int], spare: int) -> Any:
        free = 100 - sum(self.held[each][holding] for each, done in self.allocated.items() for holding in done)
        # Allocated or not, what a load holds counts once.
        fits = sum(needs.values()) + spare <= 100 - sum(sum(held.values()) for held in self.held.values())
        try:
            made = self.ledger.reserve(account(f"m{number}"), needs, lambda: (free, 100), spare)
        except Unavailable:
            assert not fits
            return multiple()
        assert fits
        self.held[made] = dict(needs)
        self.allocated[made] = set()
        return made

    @rule(load=loads, holdings=st.sets(st.sampled_from(Holding)))
    def settle(self, load: Reservation, holdings: set[Holding]) -> None:
        """Some holdings, again or not, or all; also those that the load does not have."""
        load.settle(*holdings)
        self.allocated[load] |= (holdings or set(Holding)) & self.held[load].keys()

    @rule(load=consumes(loads))
    def release(self, load: Reservation) -> None:
        load.release()
        self.held.pop(load, None)
        self.allocated.pop(load, None)

    @invariant()
    def agrees(self) -> None:
        expected: dict[tuple[Account, Holding], int] = {}
        for load, held in self.held.items():
            for holding, size in held.items():
                expected[load.account, holding] = expected.get((load.account, holding), 0) + size
        found: dict[tuple[Account, Holding], int] = {}
        for owner, holding, size in self.ledger:
            found[owner, holding] = found.get((owner, holding), 0) + size
        assert found == expected


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=50, stateful_step_count=30)


def free_of(free: int, total: int) -> Callable[[], tuple[int, int]]:
    return lambda: (free * MEBIBYTE, total * MEBIBYTE)


def test_a_refusal_has_all_figures() -> None:
    ledger = MemoryLedger("cuda:0")
    ledger.reserve(account("large"), {Holding.WEIGHTS: 700 * MEBIBYTE}, free_of(1000, 1000)).settle()
    needs = {Holding.WEIGHTS: 280 * MEBIBYTE, Holding.SLOTS: 20 * MEBIBYTE}
    with pytest.raises(Unavailable) as refused:
        ledger.reserve(account("new"), needs, free_of(300, 1000), 10 * MEBIBYTE)
    assert refused.value.message == (
        "model 'new' version 1 instance 0 does not fit on cuda:0: it needs 300 MiB (weights 280 MiB, slots 20 MiB) and "
        "10 MiB to spare, 300 MiB of 1,000 MiB are free; model 'large' version 1 instance 0 holds 700 MiB"
    )
    assert ledger.held(account("new")) == {}


def test_what_another_load_is_about_to_allocate_is_not_free() -> None:
    ledger = MemoryLedger("cuda:0")
    first = ledger.reserve(account("first"), {Holding.WEIGHTS: 60}, lambda: (100, 100))
    with pytest.raises(Unavailable, match="40 bytes of 100 bytes are free"):
        ledger.reserve(account("second"), {Holding.WEIGHTS: 60}, lambda: (100, 100))
    first.release()
    ledger.reserve(account("second"), {Holding.WEIGHTS: 60}, lambda: (100, 100))


def test_what_is_allocated_counts_once_while_the_load_goes_on() -> None:
    ledger = MemoryLedger("cuda:0")
    first = ledger.reserve(account("first"), {Holding.WEIGHTS: 60, Holding.SLOTS: 10}, lambda: (100, 100))
    first.settle(Holding.WEIGHTS)
    # The device shows the weights as used; the slots are still to come.
    with pytest.raises(Unavailable, match="30 bytes of 100 bytes are free"):
        ledger.reserve(account("second"), {Holding.WEIGHTS: 31}, lambda: (40, 100))
    ledger.reserve(account("second"), {Holding.WEIGHTS: 30}, lambda: (40, 100))
    assert ledger.held(account("first")) == {Holding.WEIGHTS: 60, Holding.SLOTS: 10}


def test_an_old_load_that_ends_leaves_the_new_one_of_its_instance() -> None:
    ledger = MemoryLedger("cuda:0")
    old, new = (ledger.reserve(account(), {Holding.WEIGHTS: size}, lambda: (100, 100)) for size in (10, 20))
    new.record(Holding.GRAPHS, 5)
    old.release()
    old.release()
    assert ledger.held(account()) == {Holding.WEIGHTS: 20, Holding.GRAPHS: 5}


def test_a_share_of_the_device_may_not_be_used() -> None:
    ledger = MemoryLedger("cuda:0")
    ledger.reserve(account(), {Holding.WEIGHTS: 50}, lambda: (100, 100), share=0.5).settle()
    with pytest.raises(Unavailable, match=r"50 bytes of 100 bytes are free, of which 50 bytes may not be used"):
        ledger.reserve(account("other"), {Holding.WEIGHTS: 1}, lambda: (50, 100), share=0.5)


def test_nobody_else_holds_memory() -> None:
    with pytest.raises(Unavailable, match="no model of this process holds any"):
        MemoryLedger("cuda:1").reserve(account(), {Holding.CACHE: 5}, lambda: (4, 8))


def test_there_is_one_ledger_for_each_device() -> None:
    assert ledger_of("test:7") is ledger_of("test:7")
    assert ledger_of("test:7") in ledgers()
    assert ledger_of("test:8") is not ledger_of("test:7")
