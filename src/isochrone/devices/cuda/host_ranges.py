"""Ranges of the host's memory that can be pinned, and what may happen to each. Pure: no driver, no thread.

A range is offered, pinned when a device first wants it, held by every copy from it that is under way, and withdrawn by
its owner. It is unpinned once, when it is withdrawn and nobody holds it.
"""

from __future__ import annotations

import bisect
from enum import Enum, auto
from typing import Any


class State(Enum):
    OFFERED = auto()
    #: Being pinned, on another thread.
    PINNING = auto()
    PINNED = auto()
    #: Cannot be pinned: used as any other memory.
    REFUSED = auto()
    #: Unpinned, or about to be.
    ENDED = auto()


class HostRange:
    """``size`` bytes from ``address`` on. ``memory`` keeps them mapped."""

    __slots__ = ("address", "holders", "memory", "size", "state", "withdrawn")

    def __init__(self, address: int, size: int, memory: Any = None) -> None:
        self.address = address
        self.size = size
        self.memory = memory
        self.state = State.OFFERED
        #: Copies under way.
        self.holders = 0
        self.withdrawn = False

    @property
    def is_busy(self) -> bool:
        """Whether its memory is still needed after ``withdraw``."""
        return self.state in (State.PINNING, State.PINNED)

    def want(self) -> bool:
        """A device wants it; returns whether to pin it now."""
        if self.state is not State.OFFERED or self.withdrawn:
            return False
        self.state = State.PINNING
        return True

    def settle(self, pinned: bool) -> bool:
        """The attempt to pin it has ended; returns whether to unpin it now."""
        self.state = State.PINNED if pinned else State.REFUSED
        return self._ends()

    def hold(self) -> bool:
        """Whether a copy may begin; if so, it must be followed by ``release``."""
        if self.state is not State.PINNED or self.withdrawn:
            return False
        self.holders += 1
        return True

    def release(self) -> bool:
        """A copy has ended; returns whether to unpin it now."""
        self.holders -= 1
        return self._ends()

    def withdraw(self) -> bool:
        """Its owner gives it up; returns whether to unpin it now."""
        self.withdrawn = True
        return self._ends()

    def _ends(self) -> bool:
        if self.state is not State.PINNED or not self.withdrawn or self.holders:
            return False
        self.state = State.ENDED
        return True


class HostRanges:
    """Ranges that do not overlap, by their addresses."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[HostRange] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, added: HostRange) -> None:
        place = bisect.bisect_right(self._starts, added.address)
        before = self._ranges[place - 1] if place else None
        behind = self._ranges[place] if place < len(self._ranges) else None
        if (
            added.size < 1
            or (before is not None and before.address + before.size > added.address)
            or (behind is not None and added.address + added.size > behind.address)
        ):
            raise ValueError(f"expected a range beside the others, given {added.size} bytes at {added.address:#x}")
        self._starts.insert(place, added.address)
        self._ranges.insert(place, added)

    def remove(self, removed: HostRange) -> None:
        place = bisect.bisect_left(self._starts, removed.address)
        if place == len(self._ranges) or self._ranges[place] is not removed:
            raise ValueError(f"no range begins at {removed.address:#x}")
        del self._starts[place], self._ranges[place]

    def find(self, address: int, size: int) -> HostRange | None:
        """The range that contains all of these bytes."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        found = self._ranges[place]
        return found if address + size <= found.address + found.size else None
