"""Rollouts in pools whose workers have only some of the models: those that have the model take part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from observed_states import assignment, observed, rollout, settle, with_state, worker

from isochrone.control.rollout.desired_versions import desired_versions
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.memory import lack_of_memory, waits_for_memory
from isochrone.control.state.records import EpochRecord, PlacementRecord
from isochrone.control.state.rollout_records import (
    ABORTING,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    Change,
    RolloutRecord,
)

GIB = 2**30
HERE = {"cpu": PlacementRecord({"m": ("w1",)})}
ONE, BOTH = {"m": {"1": "d"}}, {"m": {"1": "d", "2": "e"}}


def test_only_workers_with_a_replica_prepare_it() -> None:
    going = with_state(rollout(), PREPARING)
    seen = observed(worker("w1", ONE), worker("w2", {}), placements=HERE)
    assert set(advance(going, seen).record.workers) == {"w1"}
    ready = observed(worker("w1", BOTH), worker("w2", {}), placements=HERE)
    assert advance(going, ready).record.state == SWITCHING
    assert settle(with_state(rollout(), SWITCHING), ready).state == DRAINING


def test_a_worker_that_gets_a_replica_in_the_middle_takes_part() -> None:
    both = {"cpu": PlacementRecord({"m": ("w1", "w2")})}
    seen = observed(worker("w1", BOTH), worker("w2", {}), placements=both)
    after = advance(with_state(rollout(), PREPARING), seen).record
    assert (after.state, after.workers["w2"].state) == (PREPARING, "loading")


def test_each_worker_should_have_what_it_was_given() -> None:
    epoch = EpochRecord(1, {"m": assignment(), "n": assignment()})
    placements = {"cpu": PlacementRecord({"m": ("w1",), "n": ("w1", "w2")})}
    preparing = [with_state(rollout(), PREPARING)]
    first, second = worker("w1", {}).record, worker("w2", {}).record
    assert desired_versions(first, epoch, preparing, placements) == {"m": {"1", "2"}, "n": {"1"}}
    assert desired_versions(second, epoch, preparing, placements) == {"n": {"1"}}
    assert desired_versions(worker("w3", {}, pool="other").record, epoch, preparing, placements) == {}


def test_reserved_memory_takes_the_place_of_previous_versions() -> None:
    epoch = EpochRecord(1, {"m": assignment("2", previous="1", memory=GIB)})
    one = worker("w1", {}, memory=2 * GIB).record
    assert desired_versions(one, epoch, (), HERE) == {"m": {"1", "2"}}
    reserved = {"cpu": PlacementRecord({"m": ("w1",)}, {"w1": GIB})}
    assert desired_versions(one, epoch, (), reserved) == {"m": {"2"}}


def test_memory_is_checked_where_the_model_is() -> None:
    epoch = EpochRecord(1, {"m": assignment(memory=GIB)})
    change = {"m": Change("2", "1", pools=("cpu",), memory=GIB)}
    small = worker("w2", ONE, memory=GIB)
    record = RolloutRecord("r1", change)
    assert lack_of_memory(small.record, epoch, (), record, HERE) == ""
    assert lack_of_memory(small.record, epoch, (), record)
    seen = observed(worker("w1", ONE, memory=2 * GIB), small, epoch=epoch, placements=HERE)
    assert advance(record, seen).record.state == PREPARING
    # A model that moves leaves first.
    moving = {"cpu": PlacementRecord({"m": ("w1",)}, {"w1": 1})}
    waits = advance(record, replace(seen, placements=moving)).record
    assert (waits.state, waits.note) == (
        PENDING,
        "waits until models that move have left worker w1, or are loaded there: 2.0 GiB with the new versions, "
        "and 0 MiB for models that move, on worker w1, which has 2.0 GiB",
    )
    # Not for ever.
    later = replace(seen, placements=moving, now=seen.now + record.prepare_seconds)
    assert advance(waits, later).record.state == PENDING
    late = advance(waits, replace(later, now=later.now + 1.0)).record
    assert late.state == ABORTING
    assert late.reason.startswith("models that move did not leave memory for it within 300 s: 2.0 GiB with the new")


class Unread(list[RolloutRecord]):
    """Rollouts that nothing may read."""

    def __iter__(self) -> Iterator[RolloutRecord]:
        raise AssertionError("the needs of a worker were counted")


def test_nothing_is_counted_where_no_memory_is_stated_or_reserved() -> None:
    epoch, record = EpochRecord(1, {"m": assignment(memory=GIB)}), rollout()
    unstated, stated = worker("w1", ONE).record, worker("w1", ONE, memory=GIB).record
    reserved = {"cpu": PlacementRecord({"m": ("w1",)}, {"w1": 1})}
    assert lack_of_memory(unstated, epoch, Unread(), record) == ""
    assert not waits_for_memory(unstated, epoch, Unread(), record, reserved)
    assert not waits_for_memory(stated, epoch, Unread(), record, HERE)


def test_other_models_make_room_for_a_rollout() -> None:
    epoch = EpochRecord(1, {"m": assignment(memory=GIB), "n": assignment(memory=GIB)})
    record = RolloutRecord("r1", {"m": Change("2", "1", pools=("cpu",), memory=GIB)}, prepare_seconds=10.0)
    full = {"cpu": PlacementRecord({"m": ("w1",), "n": ("w1",)})}
    seen = observed(worker("w1", ONE, memory=2 * GIB), epoch=epoch, placements=full)
    waiting = advance(record, seen).record
    assert waiting.state == PENDING
    assert waiting.note.startswith("waits until other models have left worker w1: m version 2 needs 1.0 GiB")
    assert advance(waiting, replace(seen, now=105.0)).record == waiting
    assert advance(waiting, replace(seen, placements=HERE)).record.state == PREPARING, "n has left"
    late = advance(waiting, replace(seen, now=120.0)).record
    assert late.state == ABORTING
    small = observed(worker("w1", ONE, memory=GIB), epoch=epoch, placements=full)
    assert advance(record, small).record.state == ABORTING, "no move would help"
    assert advance(record, replace(seen, placements={})).record.state == ABORTING, "nothing moves in other pools"


def test_a_new_model_waits_for_its_place_and_says_why_it_has_none() -> None:
    new = RolloutRecord("r1", {"n": Change("1", pools=("cpu",))}, prepare_seconds=10.0)
    seen = observed(worker("w1", ONE), placements=HERE)
    waiting = settle(new, seen)
    assert waiting.state == PREPARING
    full = {"cpu": PlacementRecord({"m": ("w1",)}, unplaced={"n": "no worker has 1 GiB free"})}
    said = advance(waiting, replace(seen, placements=full)).record
    assert (said.state, said.note) == (PREPARING, "no worker can take n: no worker has 1 GiB free")
    late = advance(said, replace(seen, placements=full, now=200.0)).record
    assert (late.state, late.reason) == (
        ABORTING,
        "no worker can take n: no worker has 1 GiB free; that did not change within 10 s",
    )
    placed = {"cpu": PlacementRecord({"m": ("w1",), "n": ("w1",)})}
    there = observed(worker("w1", {**ONE, "n": {"1": "x"}}), placements=placed)
    assert settle(waiting, there).state == DRAINING


def test_the_first_load_is_made_by_a_worker_that_has_the_model() -> None:
    placements = {"cpu": PlacementRecord({"m": ("w2", "w3")})}
    seen = observed(worker("w1", {}), worker("w2", ONE), worker("w3", ONE), placements=placements)
    begun = advance(rollout(), seen).record
    assert begun.first_loads == {"cpu": "w2"}
