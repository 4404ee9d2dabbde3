"""Memory in planned pools: no worker is given versions that do not fit beside what it has."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_states import assignment, observed, settle, with_state, worker

from isochrone.control.rollout.desired_versions import LACKS_ROOM, desired_versions, needed
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.memory import loadable_versions
from isochrone.control.rollout.observed_state import Loaded, ObservedWorker
from isochrone.control.state.records import EpochRecord, PlacementRecord, Split
from isochrone.control.state.rollout_records import (
    ABORTING,
    CANARY,
    DONE,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    Change,
    RolloutRecord,
)

#: Sizes are small numbers: a worker has 100.
BOTH = {"cpu": PlacementRecord({"a": ("w1", "w2"), "b": ("w1", "w2")})}
SERVED = EpochRecord(1, {"a": assignment(memory=40), "b": assignment(memory=40)})


def rolling(
    state: str, model: str = "a", version: str = "2", memory: int = 40, name: str = "r1", **fields: object
) -> RolloutRecord:
    change = Change(version, "1", pools=("cpu",), memory=memory)
    return msgspec.structs.replace(with_state(RolloutRecord(name, {model: change}), state), **fields)


@pytest.mark.parametrize("state", [PREPARING, CANARY, SWITCHING])
def test_a_worker_gets_a_new_version_only_where_it_fits(state: str) -> None:
    """A drained worker, and one that was away when the rollout began, were not asked for their memory."""
    full, roomy = worker("w1", {}, memory=100).record, worker("w2", {}, memory=120).record
    assert desired_versions(full, SERVED, [rolling(state)], BOTH) == {"a": {"1"}, "b": {"1"}}
    assert desired_versions(roomy, SERVED, [rolling(state)], BOTH) == {"a": {"1", "2"}, "b": {"1"}}
    assert desired_versions(full, SERVED, [rolling(state)]) == {"a": {"1", "2"}, "b": {"1"}}, "in other pools as before"


def test_neither_does_it_get_a_canary_that_does_not_fit() -> None:
    split = EpochRecord(2, {**SERVED.models, "a": assignment(memory=40, canary=Split("2", weight=0.1))})
    full = worker("w1", {}, memory=100).record
    assert desired_versions(full, split, [rolling(CANARY)], BOTH) == {"a": {"1"}, "b": {"1"}}
    small = rolling(CANARY, memory=20)
    assert desired_versions(full, split, [small], BOTH) == {"a": {"1", "2"}, "b": {"1"}}, "the canary's own size counts"


def test_after_the_commit_it_gets_the_new_version_instead_of_the_old_one() -> None:
    epoch = EpochRecord(2, {**SERVED.models, "a": assignment("2", previous="1", memory=40)})
    full = worker("w1", {}, memory=100).record
    assert desired_versions(full, epoch, [rolling(DRAINING)], BOTH) == {"a": {"2"}, "b": {"1"}}


def test_the_versions_of_a_rollout_are_left_out_together_and_those_of_the_latest_first() -> None:
    epoch = EpochRecord(1, {name: assignment(memory=20) for name in "abc"})
    placements = {"cpu": PlacementRecord(dict.fromkeys("abc", ("w1",)))}
    first = rolling(PREPARING, memory=20)
    changes = {name: Change("2", "1", pools=("cpu",), memory=15) for name in "bc"}
    second = RolloutRecord("r2", changes, PREPARING)
    one = worker("w1", {}, memory=100).record
    assert desired_versions(one, epoch, [first, second], placements) == {"a": {"1", "2"}, "b": {"1"}, "c": {"1"}}


def test_previous_versions_count_with_their_own_size() -> None:
    """From 60 to 20: the previous version takes 60 as long as it stands by."""
    seen = observed(
        worker("w1", {"a": {"1": "d", "2": "e"}}, memory=100),
        epoch=EpochRecord(1, {"a": assignment(memory=60)}),
        placements={"cpu": PlacementRecord({"a": ("w1",), "c": ("w1",)})},
        gateways=(),
    )
    begun = advance(rolling(PENDING, memory=20), seen).record
    assert begun.changes["a"].before_memory == 60
    decision = advance(with_state(begun, SWITCHING), seen)
    assert decision.commit is not None
    after = decision.commit.models["a"]
    assert (after.memory, after.previous, after.previous_memory) == (20, "1", 60)
    needs = needed(seen.workers["w1"].record, decision.commit, [decision.record], seen.placements)
    assert needs["a", "1"].memory == 60
    epoch = EpochRecord(3, {"a": after, "c": assignment(memory=60)})
    assert desired_versions(seen.workers["w1"].record, epoch, (), seen.placements) == {"a": {"2"}, "c": {"1"}}
    # Records of an earlier release do not have the size.
    old = EpochRecord(3, {"a": msgspec.structs.replace(after, previous_memory=0)})
    assert needed(seen.workers["w1"].record, old, (), seen.placements)["a", "1"].memory == 20
    unsized = rolling(DRAINING, memory=20)
    assert needed(seen.workers["w1"].record, decision.commit, [unsized], seen.placements)["a", "1"].memory == 60


def test_a_version_that_is_rolled_back_to_counts_with_its_own_size() -> None:
    epoch = EpochRecord(2, {"a": assignment("2", previous="1", memory=20, previous_memory=60)})
    back = RolloutRecord("r2", {"a": Change("1", "2", pools=("cpu",), memory=20)})
    here = {"cpu": PlacementRecord({"a": ("w1",)})}
    seen = observed(worker("w1", {"a": {"1": "d", "2": "e"}}, memory=100), epoch=epoch, placements=here)
    assert advance(back, seen).record.changes["a"].memory == 60
    assert advance(back, replace(seen, placements={})).record.changes["a"].memory == 20


def test_a_rollout_waits_until_what_leaves_is_unloaded() -> None:
    epoch = EpochRecord(2, {"a": assignment("2", previous="1", memory=30), "b": assignment(memory=30)})
    here = {"cpu": PlacementRecord({"a": ("w1",), "b": ("w1",)})}
    has = worker("w1", {"a": {"1": "d", "2": "e"}, "b": {"1": "f"}}, memory=100)
    record = rolling(PENDING, "b", memory=30)
    seen = observed(has, epoch=epoch, placements=here, rollouts=(record,))
    waits = advance(record, seen).record
    assert (waits.state, waits.note) == (
        PENDING,
        "waits until worker w1 has unloaded a 1: 0 MiB with the new versions on worker w1, which has 0 MiB",
    )
    assert desired_versions(has.record, epoch, [record], here)["a"] == {"1", "2"}
    assert desired_versions(has.record, epoch, [waits], here) == {"a": {"2"}, "b": {"1"}}, "it makes room"
    gone = replace(seen, workers={"w1": worker("w1", {"a": {"2": "e"}, "b": {"1": "f"}}, memory=100)})
    begun = advance(waits, gone).record
    assert (begun.state, begun.note) == (PREPARING, "")
    assert LACKS_ROOM not in begun.since
    late = advance(waits, replace(seen, now=seen.now + record.prepare_seconds + 1.0)).record
    assert (late.state, late.reason.partition(":")[0]) == (ABORTING, "worker w1 did not unload a 1 within 300 s")
    assert advance(record, replace(seen, placements={})).record.state == PREPARING, "in other pools as before"


def test_a_rollout_waits_for_the_report_of_a_worker_with_limited_memory() -> None:
    record = rolling(PENDING, memory=20)
    seen = observed(worker("w1", None, memory=100), epoch=SERVED, placements=BOTH)
    waits = advance(record, seen).record
    assert waits.note == "waits for a report: what worker w1 has in its memory is not known"
    unlimited = observed(worker("w1", None), epoch=SERVED, placements=BOTH)
    assert advance(record, unlimited).record.state == PREPARING


def test_of_two_rollouts_the_later_one_waits_and_the_earlier_one_goes_on() -> None:
    epoch = EpochRecord(1, {"a": assignment(memory=20), "b": assignment(memory=20)})
    placements = {"cpu": PlacementRecord({"a": ("w1", "w2"), "b": ("w2",)})}
    has = {"a": {"1": "d"}, "b": {"1": "f"}}
    workers = worker("w1", {"a": {"1": "d"}}, memory=100), worker("w2", has, memory=100)
    first = rolling(PREPARING, first_loads={"cpu": "w1"})
    second = rolling(PENDING, "b", memory=30, name="r2")
    seen = observed(*workers, epoch=epoch, placements=placements, rollouts=(first, second))
    assert advance(second, seen).record.state == PENDING, "w2 will load a 2"
    both = replace(seen, rollouts=(first, with_state(second, PREPARING)))
    assert advance(first, both).record.state == PREPARING
    assert LACKS_ROOM not in advance(first, replace(both, rollouts=(rolling(PREPARING), both.rollouts[1]))).record.since


def test_a_rollout_that_has_begun_waits_for_a_worker_that_came_without_room() -> None:
    workers = (
        worker("w1", {"a": {"1": "d", "2": "e"}, "b": {"1": "f"}}, memory=200),
        worker("w2", {"a": {"1": "d"}, "b": {"1": "f"}}, memory=100),
    )
    record = rolling(PREPARING, prepare_seconds=10.0)
    seen = observed(*workers, epoch=SERVED, placements=BOTH, rollouts=(record,))
    waits = advance(record, seen).record
    assert waits.state == PREPARING
    assert waits.note.startswith("waits until other models have left worker w2: a version 2 needs")
    moved = {"cpu": PlacementRecord({"a": ("w1", "w2"), "b": ("w1",)})}
    after = advance(waits, replace(seen, placements=moved)).record
    assert (after.state, after.note, LACKS_ROOM in after.since) == (PREPARING, "", False)
    assert advance(waits, replace(seen, now=seen.now + 11.0)).record.state == ABORTING
    assert advance(record, replace(seen, placements={})).record.state == ABORTING, "nothing moves in other pools"


def test_a_load_waits_for_the_memory_of_versions_that_leave() -> None:
    epoch = EpochRecord(2, {"a": assignment("2", memory=40), "b": assignment(memory=40)})
    placements = {"cpu": PlacementRecord({"a": ("w1",), "b": ("w1",)}, memory={"a": 40, "b": 40})}
    returned = worker("w1", {"a": {"1": "d"}, "b": {"1": "f"}}, memory=100)
    assert desired_versions(returned.record, epoch, (), placements) == {"a": {"2"}, "b": {"1"}}
    assert loadable_versions(returned, epoch, (), placements) == {"b": {"1"}}
    assert loadable_versions(returned, epoch, ()) == {"a": {"2"}, "b": {"1"}}, "in other pools as before"
    unloaded = worker("w1", {"b": {"1": "f"}}, memory=100)
    assert loadable_versions(unloaded, epoch, (), placements) == {"a": {"2"}, "b": {"1"}}
    states = {"a": {"1": Loaded("UNAVAILABLE")}, "b": {"1": Loaded("READY")}}
    assert loadable_versions(ObservedWorker(returned.record, states), epoch, (), placements)["a"] == {"2"}


def test_an_ensemble_waits_with_its_stages() -> None:
    epoch = EpochRecord(2, {"e": assignment(stages=("a",)), "a": assignment("2", memory=60)})
    placements = {"cpu": PlacementRecord({"a": ("w1",), "e": ("w1",)}, memory={"a": 60})}
    returned = worker("w1", {"a": {"1": "d"}}, memory=100)
    assert loadable_versions(returned, epoch, (), placements) == {}


SIZES = st.integers(0, 40)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(SIZES, SIZES), min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.frozensets(st.sampled_from("123"))),
    st.sampled_from((PENDING, PREPARING, CANARY, SWITCHING, ABORTING, DONE)),
)
def test_what_a_worker_has_and_gets_fits_if_what_it_has_does(
    models: dict[str, tuple[int, int]], held: dict[str, frozenset[str]], state: str
) -> None:
    epoch = EpochRecord(1, {name: assignment(memory=size) for name, (size, _) in models.items()})
    rollouts = [
        rolling(state, name, memory=size, name=f"r{place}") for place, (name, (_, size)) in enumerate(models.items())
    ]
    placements = {"cpu": PlacementRecord(dict.fromkeys(models, ("w1",)), memory=dict.fromkeys("abcd", 40))}
    has = worker("w1", {name: dict.fromkeys(each, "d") for name, each in held.items()}, memory=100)
    sizes = {(name, "1"): one for name, (one, _) in models.items()}
    if state in (PREPARING, CANARY, SWITCHING):
        sizes |= {(name, "2"): two for name, (_, two) in models.items()}
    told = loadable_versions(has, epoch, rollouts, placements)
    there = {(name, version) for name, each in held.items() for version in each}
    wanted = {(name, version) for name, each in told.items() for version in each}
    committed = sum(size for size, _ in models.values())
    if sum(sizes.get(each, 40) for each in there) <= 100 and committed <= 100:
        assert sum(sizes.get(each, 40) for each in there | wanted) <= 100


def test_a_rollout_in_a_crowded_pool_ends() -> None:
    here = {"cpu": PlacementRecord({"a": ("w1",)})}
    has = worker("w1", {"a": {"1": "d", "2": "e"}}, memory=100)
    seen = observed(has, epoch=EpochRecord(1, {"a": assignment(memory=40)}), placements=here)
    assert settle(rolling(PENDING), seen).state == DRAINING
