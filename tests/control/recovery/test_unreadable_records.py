"""Records that cannot be read: skipped, named, mended where everything would stop, and never taken for absent."""

from __future__ import annotations

import pytest

from fleet_records import CONTEXT, FLEET, KEYS, Records, file_of, served
from isochrone.control.recovery.repair import LEADER, UNREADABLE, find_repair, unreported
from isochrone.control.requests.fleet import apply_fleet
from isochrone.control.requests.rollouts import next_identity
from isochrone.control.state.codec import Unreadable, decode
from isochrone.control.state.process_records import GatewayRecord, ProcessRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord, FleetRecord, ReconciledRecord
from isochrone.control.state.rollout_records import (
    ABORTED,
    ANNOUNCED,
    PREPARING,
    AcknowledgementRecord,
    Change,
    SwitchRecord,
)
from isochrone.store.base import Delete, Put

#: What a disk, a person or another program may leave in a record.
GARBAGE = (b"", b"no JSON", b"\xff\xfe\x00", b"[]", b'{"name": 3}', b'{"epoch": "x"}', b"[" * 5000, b"null")
EVERY_KEY = (
    KEYS.fleet,
    KEYS.epoch,
    KEYS.epoch_copy,
    KEYS.switch,
    KEYS.reconciled,
    KEYS.worker("w1"),
    KEYS.gateway("g1"),
    KEYS.rollout("r1"),
    KEYS.drain("w1"),
    KEYS.event("1-a"),
    KEYS.process("w1"),
    KEYS.acknowledgement("r1.1", "g1"),
    KEYS.served_epoch("g1"),
)


def whole() -> Records:
    """One good record of each kind."""
    records = Records(versions=served(detector="1"))
    records.put(KEYS.epoch_copy, EpochRecord(7, {"detector": Assignment("1")}))
    records.put(KEYS.switch, SwitchRecord("r2.1", ANNOUNCED, ("detector",), 7))
    records.put(KEYS.reconciled, ReconciledRecord(1, {"detector": "1"}))
    for name in ("w1", "w2"):
        records.put(KEYS.worker(name), WorkerRecord(name, "h", 1, 2, pool="cpu"))
        records.put(KEYS.drain(name), EventRecord(1.0, "ada", "drain", name))
        records.put(KEYS.process(name), ProcessRecord(name, "worker"))
    for name in ("g1", "g2"):
        records.put(KEYS.gateway(name), GatewayRecord(name, "h", 3))
        records.put(KEYS.served_epoch(name), EpochRecord(7))
        records.put(KEYS.acknowledgement("r1.1", name), AcknowledgementRecord(ANNOUNCED, "i"))
    for name in ("r1", "r2"):
        records.rollout(name, PREPARING, {"detector": Change("2", "1")})
    for stamp in ("1-a", "2-b"):
        records.put(KEYS.event(stamp), EventRecord(1.0, "ada", "what"))
    return records


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("key", EVERY_KEY)
def test_it_is_skipped_and_named_and_nothing_else_is(key: str, garbage: bytes) -> None:
    records = whole()
    assert records.view.faults() == []
    records.put(key, garbage)
    view = records.view
    assert [fault.key for fault in view.faults()] == [key]
    assert view.is_unreadable(key)
    with pytest.raises(Unreadable, match=key):
        view.require(KEYS.leader, key)
    # Every question can still be asked, and the others of its kind are there.
    assert len(view.workers) == 2 - (key == KEYS.worker("w1"))
    assert len(view.gateways) == 2 - (key == KEYS.gateway("g1"))
    assert len(view.rollouts) == 2 - (key == KEYS.rollout("r1"))
    assert len(view.drains) == 2 - (key == KEYS.drain("w1"))
    assert len(view.processes) == 2 - (key == KEYS.process("w1"))
    assert len(list(view.events())) == 2 - (key == KEYS.event("1-a"))
    assert (view.epoch is None) == (key == KEYS.epoch)
    assert (view.switch is None) == (key == KEYS.switch)
    assert (view.fleet is None) == (key == KEYS.fleet)


def test_each_is_reported_once_by_every_leader() -> None:
    records = whole()
    records.put(KEYS.worker("w1"), b"no JSON")
    (found,) = unreported(records.view, (), 5.0)
    fault, event = found
    assert (event.who, event.what, event.about) == (LEADER, UNREADABLE, KEYS.worker("w1"))
    assert unreported(records.view, {fault}, 6.0) == []
    # The next leader finds the event.
    records.put(KEYS.event("3-c"), event)
    assert unreported(records.view, (), 7.0) == []
    # Bad again is new.
    records.put(KEYS.worker("w1"), b"still no JSON")
    assert len(unreported(records.view, (), 8.0)) == 1


def test_the_epoch_is_restored_from_its_copy_under_a_new_number() -> None:
    records = whole()
    assert find_repair(records.view, {}, 1.0) is None
    records.put(KEYS.epoch, b"no JSON")
    repair = find_repair(records.view, {}, 1.0)
    assert repair is not None
    assert {operation.key for operation in repair.operations} == {KEYS.epoch, KEYS.epoch_copy}
    for operation in repair.operations:
        assert isinstance(operation, Put)
        restored = decode(operation.value, EpochRecord)
        assert (restored.epoch, restored.models["detector"].version) == (8, "1")
    assert {compare.key for compare in repair.compares} == {KEYS.epoch, KEYS.epoch_copy}


def test_without_a_copy_nothing_is_guessed_and_the_way_out_is_named() -> None:
    records = whole()
    records.put(KEYS.epoch, b"no JSON")
    assert "restore-epoch" not in records.view.faults()[0].reason, "the leader restores it"
    records.put(KEYS.epoch_copy, b"no JSON")
    assert find_repair(records.view, {}, 1.0) is None
    named = {fault.key: fault.reason for fault in records.view.faults()}
    assert named[KEYS.epoch].endswith("; restore it with 'isochrone restore-epoch'")
    assert any("isochrone restore-epoch" in event.detail for _, event in unreported(records.view, (), 5.0))
    with pytest.raises(Unreadable, match="isochrone restore-epoch"):
        records.view.require(KEYS.epoch)


def test_a_switch_that_cannot_be_read_ends_without_a_commit() -> None:
    records = whole()
    records.put(KEYS.switch, b"no JSON")
    repair = find_repair(records.view, {}, 1.0)
    assert repair is not None
    assert repair.operations == (Delete(KEYS.switch),)


@pytest.mark.parametrize("owner", ["unreadable", "over", "gone"])
def test_a_switch_that_no_rollout_ends_is_ended(owner: str) -> None:
    records = whole()
    if owner == "unreadable":
        records.put(KEYS.rollout("r2"), b"no JSON")
    elif owner == "over":
        records.rollout("r2", ABORTED, {"detector": Change("2", "1")})
    else:
        del records.entries[KEYS.rollout("r2")]
    repair = find_repair(records.view, {}, 1.0)
    assert repair is not None
    assert repair.operations == (Delete(KEYS.switch),)
    assert repair.event.about == "r2.1"


def test_what_was_followed_counts_as_followed() -> None:
    records = whole()
    records.put(KEYS.reconciled, b"no JSON")
    repair = find_repair(records.view, {"detector": "3"}, 1.0)
    assert repair is not None
    (operation,) = repair.operations
    assert isinstance(operation, Put)
    assert decode(operation.value, ReconciledRecord) == ReconciledRecord(1, {"detector": "3"})


def test_a_file_can_be_applied_over_a_fleet_record_that_cannot_be_read() -> None:
    records = whole()
    records.put(KEYS.reconciled, ReconciledRecord(9))
    records.put(KEYS.fleet, b"no JSON")
    decision = apply_fleet(records.view, file_of(FLEET), CONTEXT)
    assert records.apply(decision)
    written = records.view.fleet
    assert isinstance(written, FleetRecord)
    # Later than the reconciled generation, or it would not be reconciled.
    assert written.generation == 10


def test_rollouts_are_counted_by_their_names_when_the_counter_cannot_be_read() -> None:
    records = whole()
    records.put(KEYS.rollout_number, b"not a number")
    assert [fault.key for fault in records.view.faults()] == [KEYS.rollout_number]
    assert next_identity(records.view)[0] == "r3"
