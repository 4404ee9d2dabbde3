"""Ranges that can be pinned: which contains an address, and when each is pinned and unpinned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isochrone.devices.cuda.host_ranges import HostRange, HostRanges, State

SPANS = st.tuples(st.integers(0, 40), st.integers(1, 12))


class Places(RuleBasedStateMachine):
    """Against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = HostRanges()
        self.model: list[HostRange] = []

    @rule(span=st.tuples(st.integers(0, 40), st.integers(0, 12)))
    def add(self, span: tuple[int, int]) -> None:
        start, size = span
        added = HostRange(start, size)
        beside = all(start + size <= each.address or each.address + each.size <= start for each in self.model)
        if size and beside:
            self.ranges.add(added)
            self.model.append(added)
        else:
            with pytest.raises(ValueError, match="expected a range beside the others"):
                self.ranges.add(added)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        removed = data.draw(st.sampled_from(self.model))
        self.ranges.remove(removed)
        self.model.remove(removed)
        with pytest.raises(ValueError, match="no range begins at"):
            self.ranges.remove(removed)

    @rule(span=SPANS)
    def find(self, span: tuple[int, int]) -> None:
        start, size = span
        inside = [each for each in self.model if each.address <= start and start + size <= each.address + each.size]
        assert self.ranges.find(start, size) is (inside[0] if inside else None)

    @invariant()
    def counts(self) -> None:
        assert len(self.ranges) == len(self.model)


TestPlaces = Places.TestCase


@given(st.lists(st.sampled_from(["want", "pinned", "refused", "hold", "release", "withdraw"]), max_size=40))
def test_a_range_is_unpinned_once_when_nothing_reads_it(steps: list[str]) -> None:
    each = HostRange(0, 1)
    pinning = unpinned = withdrawn = False
    pinned = False
    holders = 0
    for step in steps:
        ends = False
        if step == "want":
            if each.want():
                assert not pinning
                assert not pinned
                assert not withdrawn
                pinning = True
        elif step in ("pinned", "refused"):
            if not pinning:
                continue
            pinning, pinned = False, step == "pinned"
            ends = each.settle(pinned)
        elif step == "hold":
            if each.hold():
                assert pinned
                assert not withdrawn
                assert not unpinned
                holders += 1
        elif step == "release":
            if not holders:
                continue
            holders -= 1
            ends = each.release()
        elif not withdrawn:
            withdrawn = True
            ends = each.withdraw()
        if ends:
            assert pinned
            assert withdrawn
            assert not unpinned
            assert holders == 0
            unpinned = True
    assert unpinned == (pinned and withdrawn and holders == 0)
    assert (each.state is State.ENDED) == unpinned
