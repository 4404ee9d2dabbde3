"""An earlier epoch that somebody put back, with a genuine seal: nothing follows it, and it is restored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_records import CONTEXT, KEYS, Records, served
from isochrone.control.recovery.offers import offer
from isochrone.control.recovery.rebuild import restore_epoch
from isochrone.control.recovery.repair import find_repair, unreported
from isochrone.control.requests.decisions import Conflict
from isochrone.control.state.codec import Unreadable
from isochrone.control.state.process_records import GatewayRecord, XdsServerRecord
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import DONE, Change
from isochrone.control.state.view import View

EARLIER = EpochRecord(5, served(detector="1"))
LATER = EpochRecord(7, served(detector="2"))


def fleet(record: EpochRecord, copy: EpochRecord | None, gateway: int = 7) -> Records:
    records = Records()
    records.put(KEYS.epoch, record)
    if copy is not None:
        records.put(KEYS.epoch_copy, copy)
    if gateway:
        records.put(KEYS.gateway("g1"), GatewayRecord("g1", "h", 1, epoch=gateway))
    return records


def test_the_epoch_that_is_served_is_no_fault() -> None:
    for gateway in (0, 5, 7):
        records = fleet(LATER, LATER, gateway)
        assert records.view.faults() == []
        assert records.view.epoch == LATER
        assert records.view.newest_put_back is None


@pytest.mark.parametrize("witness", ["gateway", "seen", "xds", "copy"])
def test_an_earlier_one_counts_as_one_that_cannot_be_read(witness: str) -> None:
    records = fleet(EARLIER, LATER if witness == "copy" else None, gateway=0)
    if witness == "gateway":
        records.put(KEYS.gateway("g1"), GatewayRecord("g1", "h", 1, epoch=7))
    if witness == "seen":
        records.put(KEYS.seen_epoch("g1"), b"incarnation 7")
    if witness == "xds":
        records.put(KEYS.xds_server("c1"), XdsServerRecord("c1", "h", 1, epoch=7))
    view = records.view
    assert view.epoch is None
    assert not view.assignments
    assert view.is_unreadable(KEYS.epoch)
    with pytest.raises(Unreadable):
        view.require(KEYS.epoch)
    by = {"xds": "the xDS server of c1", "copy": "the copy of the record"}.get(witness, "gateway g1")
    [fault] = view.faults()
    assert fault.key == KEYS.epoch
    assert f"epoch 5 was put back: {by} has epoch 7" in fault.reason
    [(_, event)] = unreported(view, (), 5.0)
    assert "epoch 5 was put back" in event.detail


def test_the_leader_restores_it_from_a_copy_that_was_not_put_back() -> None:
    records = fleet(EARLIER, LATER)
    repair = find_repair(records.view, {}, 9.0)
    assert repair is not None
    for put in repair.operations:
        records.put(put.key, put.value)  # type: ignore[union-attr]
    view = records.view
    assert view.faults() == []
    assert view.epoch is not None
    assert (view.epoch.epoch, view.epoch.models) == (8, LATER.models)


def test_a_copy_that_was_put_back_alone_keeps_nobody_from_the_epoch() -> None:
    records = fleet(LATER, EARLIER)
    assert records.view.epoch == LATER
    assert find_repair(records.view, {}, 9.0) is None
    assert records.view.read(KEYS.epoch_copy, EpochRecord) is None


def test_with_its_copy_it_waits_for_a_user_who_gets_what_is_served() -> None:
    records = fleet(EARLIER, EARLIER)
    assert find_repair(records.view, {}, 9.0) is None
    assert records.view.is_epoch_lost
    assert "isochrone restore-epoch" in str(next(iter(records.view.faults())).reason)
    with pytest.raises(Conflict, match="has not yet offered"):
        restore_epoch(records.view, CONTEXT)
    _, put = offer(KEYS, records.entries, "g1", LATER) or (None, None)
    assert put is not None
    records.put(put.key, put.value)
    assert records.apply(restore_epoch(records.view, CONTEXT))
    view = records.view
    assert view.epoch is not None
    assert (view.epoch.epoch, view.epoch.models) == (8, LATER.models)
    assert view.faults() == []


def test_a_gateway_that_follows_nothing_newer_than_an_offer_need_not_offer() -> None:
    records = fleet(EARLIER, EARLIER)
    records.put(KEYS.served_epoch("g1"), LATER)
    records.put(KEYS.gateway("late"), GatewayRecord("late", "h", 1, epoch=5))
    assert restore_epoch(records.view, CONTEXT).answer.epoch.models == LATER.models


def test_where_no_gateway_serves_any_more_the_rollouts_since_are_added_to_it() -> None:
    records = fleet(EARLIER, EARLIER, gateway=0)
    records.put(KEYS.seen_epoch("g1"), b"incarnation 7")
    records.rollout("r6", DONE, {"tracker": Change("3", "", "t3", ("cpu",))}, epoch=6)
    rebuilt = restore_epoch(records.view, CONTEXT).answer
    assert rebuilt.source == "epoch 5, which was put back and rollout r6"
    assert rebuilt.epoch.epoch == 8
    assert {name: each.version for name, each in rebuilt.epoch.models.items()} == {"detector": "1", "tracker": "3"}
    assert any("gateway g1 has served epoch 7" in note for note in rebuilt.notes)


def test_what_is_rebuilt_follows_what_xds_clients_have() -> None:
    records = fleet(EARLIER, EARLIER, gateway=0)
    records.put(KEYS.xds_server("c1"), XdsServerRecord("c1", "h", 1, epoch=7))
    records.rollout("r1", DONE, {"detector": Change("1", "", "d1", ("cpu",))}, epoch=1)
    assert restore_epoch(records.view, CONTEXT).answer.epoch.epoch == 8


def test_it_starts_from_the_record_that_was_put_back_where_gateways_offer_less() -> None:
    records = fleet(EARLIER, EARLIER, gateway=0)
    records.put(KEYS.seen_epoch("gone"), b"incarnation 7")
    records.put(KEYS.gateway("late"), GatewayRecord("late", "h", 1, epoch=4))
    records.put(KEYS.served_epoch("late"), EpochRecord(4, served(detector="0")))
    rebuilt = restore_epoch(records.view, CONTEXT).answer
    assert rebuilt.source == "epoch 5, which was put back"
    assert (rebuilt.epoch.epoch, rebuilt.epoch.models) == (8, EARLIER.models)


@pytest.mark.parametrize("value", [b"i \xc2\xb2", b"i " + b"9" * 5000, b"i -3", b"", b"i 9 ", b"\xff"])
def test_a_report_that_makes_no_sense_is_named_and_counts_for_nothing(value: bytes) -> None:
    records = fleet(LATER, LATER)
    records.put(KEYS.seen_epoch("g1"), value)
    view = records.view
    assert view.epoch == LATER
    assert [fault.key for fault in view.faults()] == [KEYS.seen_epoch("g1")]
    assert set(view.epochs_seen.values()) <= {("", 0)}


def test_other_records_that_cannot_be_read_count_for_nothing() -> None:
    records = fleet(LATER, LATER)
    for key in (KEYS.gateway("g1"), KEYS.xds_server("c1"), KEYS.epoch_copy):
        for value in (b"", b"no JSON", b"[" * 5000, b'{"epoch": "x"}', b'{"epoch": 99999999999999999999999}', b"\xff"):
            records.put(key, value)
            assert records.view.epoch == LATER


def test_a_view_that_lasts_follows_the_records() -> None:
    records = fleet(EARLIER, EARLIER, gateway=0)
    view = View(KEYS, records.entries, is_lasting=True)
    assert view.epoch == EARLIER
    records.put(KEYS.gateway("g1"), GatewayRecord("g1", "h", 1, epoch=7))
    assert view.epoch is None
    assert view.is_epoch_lost


@given(
    record=st.integers(0, 9),
    copy=st.none() | st.integers(0, 9),
    gateways=st.lists(st.integers(0, 9), max_size=3),
    seen=st.lists(st.integers(0, 9), max_size=3),
    xds=st.lists(st.integers(0, 9), max_size=2),
)
def test_an_epoch_is_readable_exactly_if_nothing_has_a_newer_one(
    record: int, copy: int | None, gateways: list[int], seen: list[int], xds: list[int]
) -> None:
    models = served(detector="1")
    records = fleet(EpochRecord(record, models), None if copy is None else EpochRecord(copy, models), gateway=0)
    for number, epoch in enumerate(gateways):
        records.put(KEYS.gateway(f"g{number}"), GatewayRecord(f"g{number}", "h", 1, epoch=epoch))
    for number, epoch in enumerate(seen):
        records.put(KEYS.seen_epoch(f"s{number}"), f"i {epoch}".encode())
    for number, epoch in enumerate(xds):
        records.put(KEYS.xds_server(f"c{number}"), XdsServerRecord(f"c{number}", "h", 1, epoch=epoch))
    newest = max([*gateways, *seen, *xds, copy or 0])
    view = records.view
    assert (view.epoch is not None) == (record >= newest)
    assert view.is_unreadable(KEYS.epoch) == (record < newest)
    # What is rebuilt, everybody follows.
    if view.is_epoch_lost:
        for number, epoch in enumerate(gateways):
            records.put(KEYS.served_epoch(f"g{number}"), EpochRecord(epoch, models))
        assert records.apply(restore_epoch(records.view, CONTEXT))
        assert records.view.epoch is not None
        assert records.view.epoch.epoch > max(newest, record)
