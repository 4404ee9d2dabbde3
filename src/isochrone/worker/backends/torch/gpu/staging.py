"""The ring of staging slots: which slot a batch goes through. Pure.

A slot is filled with the inputs of a batch, is in flight while the device copies and computes, and is drained when its
answers are copied out. Three slots let one batch be in each of these states. Slots are used in turn and drained in the
order in which they were launched, as the device works in that order.
"""

from __future__ import annotations

from collections import deque
from enum import Enum


class SlotState(Enum):
    FREE = "free"
    FILLING = "filling"
    IN_FLIGHT = "in flight"
    DRAINING = "draining"


class StagingRing:
    """The states of the slots of one instance."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"expected at least one slot, given {slots}")
        self._states = [SlotState.FREE] * slots
        self._next = 0
        self._launched: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._states)

    def state(self, slot: int) -> SlotState:
        return self._states[slot]

    @property
    def in_flight(self) -> int:
        return len(self._launched)

    def acquire(self) -> int | None:
        """The next slot, to be filled; None: it is not free yet."""
        slot = self._next
        if self._states[slot] is not SlotState.FREE:
            return None
        self._states[slot] = SlotState.FILLING
        self._next = (slot + 1) % len(self._states)
        return slot

    def launch(self, slot: int) -> None:
        """Its batch is with the device."""
        self._move(slot, SlotState.FILLING, SlotState.IN_FLIGHT)
        self._launched.append(slot)

    def drain(self, slot: int) -> None:
        """Its batch has been computed and its results are being read."""
        if not self._launched or self._launched[0] != slot:
            raise ValueError(f"slot {slot}: expected to be the first that was launched")
        self._move(slot, SlotState.IN_FLIGHT, SlotState.DRAINING)
        self._launched.popleft()

    def release(self, slot: int) -> None:
        """Frees a slot: after its results were read, or when its batch was not launched."""
        if self._states[slot] in (SlotState.FREE, SlotState.IN_FLIGHT):
            raise ValueError(f"slot {slot} is {self._states[slot].value}: expected filling or draining")
        self._states[slot] = SlotState.FREE

    def _move(self, slot: int, before: SlotState, after: SlotState) -> None:
        if self._states[slot] is not before:
            raise ValueError(f"slot {slot} is {self._states[slot].value}: expected {before.value}")
        self._states[slot] = after
