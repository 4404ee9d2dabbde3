"""What the leader sees, put together from the store's records; and in which order models are loaded."""

from __future__ import annotations

from isochrone.control.leader.observation import loading_order, observe
from isochrone.control.rollout.observed_state import ObservedWorker, Verdict
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord
from isochrone.control.state.rollout_records import HOLDING, AcknowledgementRecord, Change, RolloutRecord, SwitchRecord
from isochrone.control.state.view import View
from isochrone.store.base import Entry

KEYS = Keys("f")


class Verdicts:
    def __init__(self) -> None:
        self.compared: dict[str, Verdict] = {}
        self.judged = {"r1": Verdict("go", "well")}


def view(**records: bytes) -> View:
    entries = {key: Entry(key, value, number) for number, (key, value) in enumerate(records.items(), 1)}
    return View(KEYS, entries)


def test_everything_is_where_it_belongs() -> None:
    records = {
        KEYS.epoch: encode(EpochRecord(3, {"m": Assignment("2")})),
        KEYS.switch: encode(SwitchRecord("r1.2", HOLDING, ("m",), 3)),
        KEYS.acknowledgement("r1.2", "a"): encode(AcknowledgementRecord(HOLDING, "a1")),
        KEYS.acknowledgement("r1.1", "b"): encode(AcknowledgementRecord(HOLDING, "b1")),
        KEYS.gateway("a"): encode(GatewayRecord("a", "h", 1, epoch=3)),
        KEYS.known_gateway("a"): b"a1",
        KEYS.known_gateway("b"): b"b1",
        KEYS.rollout("r1"): encode(RolloutRecord("r1", {"m": Change("3", "2")})),
        KEYS.rollout("r0"): encode(RolloutRecord("r0", {"m": Change("2", "1")}, "done")),
        KEYS.seen_epoch("b"): b"b1 2",
        KEYS.drain("w2"): encode(EventRecord(1.0, "me", "drain")),
    }
    workers = {name: ObservedWorker(WorkerRecord(name, "h", 1, 1)) for name in ("w1", "w2")}
    observed = observe(view(**records), workers, Verdicts(), {"m": ("s",)}, 42.0, 50.0)
    assert observed.epoch.epoch == 3
    assert observed.known_gateways == {"a": "a1", "b": "b1"}
    assert set(observed.gateways) == {"a"}
    assert set(observed.acknowledgements) == {"a"}, "another switch's do not count"
    assert [record.identity for record in observed.rollouts] == ["r1"]
    assert set(observed.workers) == {"w1"}, "one that is drained need not be prepared"
    assert observed.lagging(3) == ["b"]
    assert observed.lagging(2) == [], "its last report stands after its lease expired"
    assert observed.judged["r1"].kind == "go"
    assert (observed.switch_since, observed.now) == (42.0, 50.0)


def test_an_empty_store_is_epoch_0() -> None:
    observed = observe(view(), {}, Verdicts(), {}, 0.0, 0.0)
    assert observed.epoch == EpochRecord(0)
    assert observed.switch is None


def test_stages_come_before_what_runs_them() -> None:
    epoch = EpochRecord(1, {"a": Assignment("1", stages=("z", "y")), "y": Assignment("1", stages=("x",))})
    rollouts = [RolloutRecord("r1", {"b": Change("1", stages=("a",)), "x": Change("2")})]
    order = loading_order(epoch, rollouts)
    assert order.index("z") < order.index("a")
    assert order.index("x") < order.index("y") < order.index("a") < order.index("b")
    assert len(order) == len(set(order))


def test_a_circle_does_not_hang() -> None:
    epoch = EpochRecord(1, {"a": Assignment("1", stages=("b",)), "b": Assignment("1", stages=("a",))})
    assert set(loading_order(epoch, [])) == {"a", "b"}
