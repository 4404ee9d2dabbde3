"""The states of staging slots: no batch gets a slot that another one uses."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isochrone.worker.backends.torch.gpu.staging import SlotState, StagingRing


class Ring(RuleBasedStateMachine):
    """Batches go through the ring in any order that the worker may choose; the model is one list for each state."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = StagingRing(3)
        self.filling: list[int] = []
        self.launched: list[int] = []
        self.draining: list[int] = []

    @rule()
    def acquire(self) -> None:
        slot = self.ring.acquire()
        if slot is None:
            assert self.filling or self.launched or self.draining
        else:
            assert slot not in self.filling + self.launched + self.draining
            self.filling.append(slot)

    @precondition(lambda self: self.filling)
    @rule()
    def launch(self) -> None:
        slot = self.filling.pop(0)
        self.ring.launch(slot)
        self.launched.append(slot)

    @precondition(lambda self: self.filling)
    @rule()
    def give_up(self) -> None:
        self.ring.release(self.filling.pop(0))

    @precondition(lambda self: self.launched)
    @rule()
    def drain(self) -> None:
        slot = self.launched.pop(0)
        self.ring.drain(slot)
        self.draining.append(slot)

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.draining))
        self.draining.remove(slot)
        self.ring.release(slot)

    @precondition(lambda self: len(self.launched) > 1)
    @rule()
    def drain_out_of_order(self) -> None:
        with pytest.raises(ValueError, match="first that was launched"):
            self.ring.drain(self.launched[-1])

    @invariant()
    def states_agree(self) -> None:
        expected = {
            **dict.fromkeys(self.filling, SlotState.FILLING),
            **dict.fromkeys(self.launched, SlotState.IN_FLIGHT),
            **dict.fromkeys(self.draining, SlotState.DRAINING),
        }
        for slot in range(len(self.ring)):
            assert self.ring.state(slot) is expected.get(slot, SlotState.FREE)
        assert self.ring.in_flight == len(self.launched)


TestRing = Ring.TestCase
TestRing.settings = settings(max_examples=50, stateful_step_count=40)


def test_three_batches_are_in_three_states() -> None:
    ring = StagingRing(3)
    first, second, third = (ring.acquire() for _ in range(3))
    assert (first, second, third) == (0, 1, 2)
    assert ring.acquire() is None
    ring.launch(0)
    ring.launch(1)
    ring.drain(0)
    assert [ring.state(slot) for slot in range(3)] == [SlotState.DRAINING, SlotState.IN_FLIGHT, SlotState.FILLING]
    ring.release(0)
    assert ring.acquire() == 0


def test_a_slot_is_released_once() -> None:
    ring = StagingRing(1)
    with pytest.raises(ValueError, match="free: expected filling or draining"):
        ring.release(0)
    ring.acquire()
    ring.launch(0)
    with pytest.raises(ValueError, match="in flight: expected filling or draining"):
        ring.release(0)


def test_a_ring_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        StagingRing(0)
