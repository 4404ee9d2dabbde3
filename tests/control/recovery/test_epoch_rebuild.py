"""An epoch whose record and copy are damaged: rebuilt from what gateways serve and from rollouts, when asked for."""

from __future__ import annotations

import msgspec
import pytest

from fleet_records import CONTEXT, KEYS, Records
from isochrone.control.desired.reconcile import FILE, REMOVED
from isochrone.control.recovery.offers import offer
from isochrone.control.recovery.rebuild import restore_epoch
from isochrone.control.requests.decisions import Conflict, RequestContext
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord, Split
from isochrone.control.state.rollout_records import ABORTED, ANNOUNCED, CANARY, DONE, DRAINING, Change, SwitchRecord
from isochrone.errors import NotFound
from isochrone.store.base import Put

SERVED = EpochRecord(
    7,
    {
        "detector": Assignment("2", "d2", "1", "d1", pools=("cpu",), memory=5, epoch=6),
        "pipeline": Assignment("1", "p1", stages=("detector",), pools=("cpu",), epoch=3),
    },
    "r6",
)


def damaged(*offers: tuple[str, EpochRecord]) -> Records:
    records = Records()
    records.put(KEYS.epoch, b"no JSON")
    records.put(KEYS.epoch_copy, b"\xff")
    for gateway, epoch in offers:
        records.put(KEYS.served_epoch(gateway), epoch)
        records.put(KEYS.gateway(gateway), GatewayRecord(gateway, "h", 1, epoch=epoch.epoch))
    return records


def restored(records: Records) -> EpochRecord:
    assert records.apply(restore_epoch(records.view, CONTEXT))
    view = records.view
    assert not {KEYS.epoch, KEYS.epoch_copy} & {fault.key for fault in view.faults()}
    found = view.epoch
    assert found is not None
    assert view.read(KEYS.epoch_copy, EpochRecord) == found
    return found


def test_it_is_what_a_gateway_serves_under_a_number_that_nobody_has_seen() -> None:
    records = damaged(("g1", SERVED))
    records.put(KEYS.seen_epoch("g9"), b"1 6")
    found = restored(records)
    assert (found.epoch, found.models, found.by) == (8, SERVED.models, "ada@desk")
    who, what, about, detail = records.last_event()
    assert (who, what, about) == ("ada@desk", "epoch restored", "epoch 8")
    assert detail == "from epoch 7 of gateway g1: detector 2, pipeline 1"


def test_of_several_gateways_the_newest_counts() -> None:
    older = EpochRecord(6, {"detector": Assignment("1", pools=("cpu",))})
    for offers in ((("g1", older), ("g2", SERVED)), (("g1", SERVED), ("g2", older))):
        assert restored(damaged(*offers)).models == SERVED.models


def test_a_rollout_that_was_committed_and_that_no_gateway_has_seen_counts() -> None:
    records = damaged(("g1", SERVED))
    change = Change("3", "2", "d3", ("cpu",), memory=5)
    records.rollout("r6", DONE, {"detector": Change("2", "1", "d2", ("cpu",))}, epoch=6)
    records.rollout("r7", DRAINING, {"detector": change}, epoch=8)
    found = restored(records)
    assert found.epoch == 9
    assert found.models["detector"] == Assignment("3", "d3", "2", "d2", 5, pools=("cpu",), memory=5, epoch=8)
    assert found.models["pipeline"] == SERVED.models["pipeline"]


def test_a_canary_stays_as_the_gateway_has_it_and_what_was_aborted_does_not_come() -> None:
    split = {"detector": Assignment("1", canary=Split("2", "d2", 0.1), pools=("cpu",), epoch=7)}
    records = damaged(("g1", EpochRecord(7, split)))
    records.rollout("r7", CANARY, {"detector": Change("2", "1", "d2", ("cpu",))}, epoch=7)
    records.rollout("r8", ABORTED, {"other": Change("9", "8", "d9", ("cpu",))}, epoch=9)
    found = restored(records)
    assert found.models == split
    assert found.epoch == 10


def test_without_a_gateway_the_rollouts_tell() -> None:
    records = damaged()
    both = {"detector": Change("1", "", "d1", ("cpu",)), "old": Change("1", "", "o1", ("cpu",))}
    records.rollout("r1", DONE, both, kind="first", epoch=1, since={DRAINING: 10.0})
    records.rollout("r2", DONE, {"detector": Change("2", "1", "d2", ("cpu",))}, epoch=2, since={DRAINING: 20.0})
    records.rollout("r3", ABORTED, {"detector": Change("3", "2", "d3", ("cpu",))})
    records.put(KEYS.event("1-a"), EventRecord(15.0, FILE, REMOVED, "old"))
    records.put(KEYS.seen_epoch("g1"), b"1 4")
    decision = restore_epoch(records.view, CONTEXT)
    assert decision.answer.source == "rollout r1, r2"
    assert any("gateway g1 has served epoch 4" in note for note in decision.answer.notes)
    assert any("not known to be served: embedder" in note for note in decision.answer.notes)
    found = restored(records)
    assert found.epoch == 5
    assert found.models == {"detector": Assignment("2", "d2", "1", "d1", pools=("cpu",), epoch=2)}


def test_where_nothing_is_known_nothing_is_written() -> None:
    with pytest.raises(Conflict, match="backup"):
        restore_epoch(damaged().view, CONTEXT)


def test_it_is_refused_where_nothing_is_lost() -> None:
    records = damaged(("g1", SERVED))
    records.put(KEYS.epoch_copy, SERVED)
    with pytest.raises(Conflict, match="the leading controller restores"):
        restore_epoch(records.view, CONTEXT)
    records.put(KEYS.epoch, SERVED)
    with pytest.raises(Conflict, match=r"can be read \(epoch 7\)"):
        restore_epoch(records.view, CONTEXT)
    del records.entries[KEYS.epoch]
    with pytest.raises(Conflict, match="nothing is committed yet"):
        restore_epoch(records.view, CONTEXT)


def test_what_is_written_is_what_was_shown() -> None:
    records = damaged(("g1", SERVED))
    preview = restore_epoch(records.view, RequestContext("bob@desk", 0.0, ""))
    seen = preview.answer.digest
    assert restore_epoch(records.view, CONTEXT, seen).operations
    detector = SERVED.models["detector"]
    for other in (
        msgspec.structs.replace(detector, version="1"),
        msgspec.structs.replace(detector, pools=("cpu", "gpu")),
        msgspec.structs.replace(detector, canary=Split("3", "d3", 0.1)),
    ):
        changed = damaged(("g1", EpochRecord(7, {**SERVED.models, "detector": other})))
        with pytest.raises(Conflict, match="since the preview"):
            restore_epoch(changed.view, CONTEXT, seen)
    records.put(KEYS.seen_epoch("g9"), b"1 9")
    with pytest.raises(Conflict, match="since the preview"):
        restore_epoch(records.view, CONTEXT, seen)


def test_a_switch_that_was_under_way_ends() -> None:
    records = damaged(("g1", SERVED))
    records.put(KEYS.switch, SwitchRecord("r9.1", ANNOUNCED, ("detector",), 9))
    assert restored(records).epoch == 10
    assert records.view.switch is None


def test_a_gateway_offers_what_it_serves_only_while_nobody_can_read_the_epoch() -> None:
    records = damaged()
    condition, put = offer(KEYS, records.entries, "g1", SERVED) or (None, Put("", b""))
    assert condition == records.view.unchanged(KEYS.epoch)
    assert put.key == KEYS.served_epoch("g1")
    records.put(put.key, put.value)
    assert records.view.served_epochs == {"g1": SERVED}
    assert offer(KEYS, records.entries, "g1", SERVED) is None, "it is written"
    assert offer(KEYS, records.entries, "g2", None) is None, "it serves by nothing"
    records.put(KEYS.epoch_copy, SERVED)
    assert offer(KEYS, records.entries, "g2", SERVED) is None, "the leader restores it"
    records.put(KEYS.epoch, SERVED)
    assert offer(KEYS, records.entries, "g2", SERVED) is None


def test_a_gateway_that_serves_and_has_not_offered_yet_is_waited_for() -> None:
    older = EpochRecord(6, {"detector": Assignment("1", pools=("cpu",))})
    for offers in ((), (("g1", older),), (("g2", older),)):
        records = damaged(*offers)
        records.put(KEYS.gateway("g1"), GatewayRecord("g1", "h", 1, epoch=7))
        records.rollout("r7", DONE, {"detector": Change("2", "1", "d2", ("cpu",))}, epoch=7)
        with pytest.raises(Conflict, match=r"gateway g1 has not yet offered the epoch that it serves; .* --without g1"):
            restore_epoch(records.view, CONTEXT)
        assert set(restore_epoch(records.view, CONTEXT, without=("g1",)).answer.epoch.models) == {"detector"}
        with pytest.raises(NotFound, match="gateway 'g7'"):
            restore_epoch(records.view, CONTEXT, without=("g7",))
        # It has restarted, and knows no epoch.
        records.put(KEYS.gateway("g1"), GatewayRecord("g1", "h", 1))
        assert restore_epoch(records.view, CONTEXT).operations
