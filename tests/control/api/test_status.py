"""What status says of models and workers: what would be answered now, by the gateways' own view."""

from __future__ import annotations

import pytest

from fleet_records import KEYS, Records, served
from isochrone.control.api.answers.status import fleet_status
from isochrone.control.api.messages import ModelStatus, Status, StoreState, WorkerStatus
from isochrone.control.leader.worker_reports import changes, load_failures, worker_faults
from isochrone.control.rollout.observed_state import Failure
from isochrone.control.state.process_records import GatewayRecord, ProcessRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, LoadFailuresRecord, SignersRecord
from isochrone.control.state.rollout_records import PREPARING, Change

REASON = "no worker can take a request for model 'detector' now (h:1: Connection refused)"


def status(records: Records) -> Status:
    return fleet_status(records.view, StoreState("sqlite:x", True, "", 1))


def detector(records: Records) -> ModelStatus:
    return next(model for model in status(records).models if model.name == "detector")


def test_what_the_fleet_should_have_and_nobody_has_heard_of_is_starting() -> None:
    records = fleet(gateway("a"))
    records.put(KEYS.worker("cpu-1"), WorkerRecord("cpu-1", "h", 1, 2, pool="cpu"))
    (starting,) = [each for each in status(records).processes if each.role == "worker"]
    assert (starting.name, starting.pool, starting.deaths, starting.how) == ("cpu-2", "cpu", 0, "starting")
    died = ProcessRecord("cpu-2", "worker", "cpu", 2, "ended with status 1")
    records.put(KEYS.process("cpu-2"), died)
    assert [each for each in status(records).processes if each.role == "worker"] == [died]


def test_a_reason_does_not_refer_to_where_it_is_shown() -> None:
    records = fleet(
        gateway("a", unserved="no worker of the fleet is registered, or all are drained; see isochrone status")
    )
    assert detector(records).fault == "no worker of the fleet is registered, or all are drained"


def test_who_signed_the_served_version_is_shown_with_it() -> None:
    records = fleet(gateway("a"))
    assert detector(records).signed_by == ""
    version = detector(records).version
    records.put(KEYS.signers, SignersRecord({"detector": {version: "release@example.com", "9": "somebody"}}))
    assert detector(records).signed_by == "release@example.com"
    records.put(KEYS.signers, b"no JSON")
    assert detector(records).signed_by == ""


def test_what_a_worker_cannot_load_is_shown_with_it() -> None:
    records = fleet(gateway("a"))
    assert only_worker(records).load_failures == {}
    failed = {"w1": {"detector": Failure(frozenset(("2",)), "the store is away")}, "w2": {}}
    records.put(KEYS.load_failures, LoadFailuresRecord(load_failures(failed)))
    assert only_worker(records).load_failures == {"detector": "version 2: the store is away"}
    records.put(KEYS.load_failures, b"no JSON")
    assert only_worker(records).load_failures == {}
    assert [fault.key for fault in status(records).faults] == [KEYS.load_failures]


def only_worker(records: Records) -> WorkerStatus:
    (worker,) = status(records).workers
    return worker


def fleet(*gateways: GatewayRecord) -> Records:
    records = Records(versions=served(detector="1"))
    records.put(KEYS.worker("w1"), WorkerRecord("w1", "h", 1, 2, pool="cpu"))
    for gateway in gateways:
        records.put(KEYS.gateway(gateway.name), gateway)
    return records


def gateway(name: str, epoch: int = 7, unserved: str = "", worker: str = "") -> GatewayRecord:
    return GatewayRecord(
        name,
        "h",
        3,
        epoch=epoch,
        unserved={"detector": unserved} if unserved else {},
        workers={"h:1": worker} if worker else {},
    )


@pytest.mark.parametrize(
    ("gateways", "state", "fault"),
    [
        ((), "unserved", "no gateway is registered"),
        ((gateway("a"), gateway("b")), "serving", ""),
        ((gateway("a", unserved=REASON), gateway("b", unserved=REASON)), "unserved", REASON),
        ((gateway("a", unserved=REASON), gateway("b")), "degraded", f"not by gateway a: {REASON}"),
        ((gateway("a", epoch=0),), "unserved", "it has not read the epoch yet"),
    ],
)
def test_a_model_serves_when_gateways_say_so(gateways: tuple[GatewayRecord, ...], state: str, fault: str) -> None:
    model = detector(fleet(*gateways))
    assert (model.state, model.fault) == (state, fault)


def test_a_rollout_under_way_hides_no_fault() -> None:
    records = fleet(gateway("a", unserved=REASON))
    records.rollout("r1", PREPARING, {"detector": Change("2", "1")})
    model = detector(records)
    assert (model.state, model.rollout, model.fault) == (PREPARING, "r1", REASON)


def test_a_worker_that_gateways_send_nothing_to_is_shown() -> None:
    assert only_worker(fleet(gateway("a"), gateway("b"))).fault == ""
    refused = "Connection refused"
    assert only_worker(fleet(gateway("a", worker=refused), gateway("b", worker=refused))).fault == refused
    assert only_worker(fleet(gateway("a", worker=refused), gateway("b"))).fault == "by gateway a: Connection refused"


def test_dead_processes_and_unreadable_records_are_shown() -> None:
    records = fleet(gateway("a"))
    dead = ProcessRecord("w2", "worker", "cpu", 3, "ended with status 1", "ModuleNotFoundError: x")
    records.put(KEYS.process("w2"), dead)
    records.put(KEYS.rollout("r1"), b"no JSON")
    seen = status(records)
    assert [each for each in seen.processes if each.deaths] == [dead]
    assert [fault.key for fault in seen.faults] == [KEYS.rollout("r1")]


def test_events_of_workers_come_once_however_many_gateways_see_it() -> None:
    records = fleet(gateway("a"), gateway("b"))
    assert worker_faults(records.view) == {}
    for name in ("a", "b"):
        records.put(KEYS.gateway(name), gateway(name, worker="its repository index is not the protocol's"))
    faults = worker_faults(records.view)
    (event,), reported = changes({}, faults, records.view, 5.0)
    assert (event.what, event.about) == ("worker gets no requests", "w1")
    assert "not the protocol's" in event.detail
    assert changes(reported, faults, records.view, 6.0) == ([], reported)
    (again,), reported_again = changes(reported, {}, records.view, 7.0)
    assert (again.what, reported_again) == ("worker gets requests again", {})
    # One that has left does not come back, and one that drains is to get nothing.
    del records.entries[KEYS.worker("w1")]
    assert changes(reported, {}, records.view, 8.0) == ([], {})
    records.put(KEYS.worker("w1"), WorkerRecord("w1", "h", 1, 2))
    records.put(KEYS.drain("w1"), b"{}")
    assert worker_faults(records.view) == {}


def test_a_further_reason_is_a_further_event_and_reasons_that_vary_are_not_without_end() -> None:
    records = fleet(gateway("a"))
    reported: dict[str, list[str]] = {}
    told = []
    for reason in ("its process is gone", "another server's index", "its process is gone", *map(str, range(100))):
        events, reported = changes(reported, {"w1": reason}, records.view, 5.0)
        told += [event.detail for event in events]
    assert told == ["its process is gone", "another server's index", "0", "1"]


def test_where_the_epoch_is_lost_gateways_say_what_they_serve() -> None:
    records = fleet(gateway("a"), gateway("b"))
    for key in (KEYS.epoch, KEYS.epoch_copy):
        records.put(key, b"no JSON")
    assert detector(records).state == "not served"
    offered = {"detector": Assignment("2", "d2", pools=("cpu",)), "extra": Assignment("1")}
    records.put(KEYS.served_epoch("a"), EpochRecord(7, offered))
    # Of a process that has ended since.
    records.put(KEYS.served_epoch("gone"), EpochRecord(9, {"detector": Assignment("9")}))
    records.put(KEYS.gateway("b"), gateway("b", epoch=0))
    found = status(records)
    assert (found.epoch, {"detector", "extra"} <= {model.name for model in found.models}) == (0, True)
    model = detector(records)
    assert (model.version, model.pools, model.state, model.according_to) == ("2", ("cpu",), "degraded", "a")
    assert model.fault == "not by gateway b: it has not read the epoch yet"
    others = [each for each in found.models if each.name not in offered]
    assert {(each.state, each.according_to) for each in others} == {("not served", "")}
    # It can be read again, before the offers are deleted.
    records.put(KEYS.epoch, EpochRecord(8, served(detector="1")))
    assert (detector(records).version, detector(records).according_to) == ("1", "")
