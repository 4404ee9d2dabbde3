"""The plan of faults is a function of its seed, and keeps its own rules."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.control.fault_plan import CUT, KILL, PHASES, plan

_ROLES = {"worker": 4, "gateway": 2, "controller": 2, "etcd": 3}


@given(st.integers(0, 2**32), st.booleans())
def test_the_same_seed_gives_the_same_plan_and_a_longer_one_begins_alike(seed: int, can_cut: bool) -> None:
    short = list(plan(seed, 10, _ROLES, can_cut=can_cut))
    assert short == list(plan(seed, 10, _ROLES, can_cut=can_cut))
    assert list(plan(seed, 40, _ROLES, can_cut=can_cut))[: len(short)] == short


@given(st.integers(0, 2**32), st.booleans())
def test_every_fault_can_happen(seed: int, can_cut: bool) -> None:
    roles = {"worker": 4, "gateway": 2, "controller": 1, "etcd": 0}
    planned = list(plan(seed, 50, roles, can_cut=can_cut))
    faults = [fault for one in planned for fault in one.faults]
    assert 50 <= len(faults) <= 51
    for fault in faults:
        assert 0 <= fault.index < roles[fault.role]
        assert fault.phase in PHASES
        assert (fault.lasts_seconds == 0) is (fault.kind == KILL)
        assert can_cut or fault.kind != CUT
    for one in planned:
        assert len({(fault.role, fault.index) for fault in one.faults}) == len(one.faults)
    assert all(before.version != after.version for before, after in pairwise(planned))


def test_all_kinds_roles_and_phases_come_up() -> None:
    faults = [fault for one in plan(1, 200, _ROLES, can_cut=True) for fault in one.faults]
    assert {(fault.kind, fault.role) for fault in faults} == {
        (kind, role) for kind in ("kill", "stop", "cut") for role in _ROLES
    }
    assert {fault.phase for fault in faults} == set(PHASES)
