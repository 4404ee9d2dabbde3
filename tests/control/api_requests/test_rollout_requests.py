"""Starting a rollout and going back: what is filled in, what is refused, and what happens when two ask at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_records import CONTEXT, FLEET, KEYS, Records, read_rollout, served
from isochrone.control.requests.decisions import Conflict
from isochrone.control.requests.rollouts import rollback, start_rollout
from isochrone.control.state.records import Assignment
from isochrone.control.state.rollout_records import (
    ABORTED,
    CANARY,
    DONE,
    DRAINING,
    FAST,
    PENDING,
    PREPARING,
    STRICT,
    SWITCHING,
    CanaryRule,
    Change,
    CompareRule,
)
from isochrone.errors import InvalidArgument, NotFound

ALL = served(detector="1", tracker="1", pipeline="1", embedder="1", reranker="1")


def test_a_rollout_is_filled_in_from_the_file() -> None:
    records = Records(versions=ALL)
    decision = start_rollout(records.view, {"detector": "2"}, CONTEXT)
    record = decision.answer
    assert record.identity == "r1"
    assert record.state == PENDING
    assert record.kind == "version"
    assert record.cutover == STRICT
    assert record.canary == CanaryRule(weights=(0.1, 0.5), min_samples=20)
    assert record.compare is None
    assert record.prepare_seconds == 30.0
    assert record.changes == {"detector": Change("2", "1", pools=("cpu",), memory=1 << 20)}
    assert (record.by, record.at, record.since) == ("ada@desk", 1000.0, {PENDING: 1000.0})
    assert records.apply(decision)
    assert read_rollout(records, "r1") == record
    who, what, about, detail = records.last_event()
    assert (who, what, about) == ("ada@desk", "rollout started", "r1")
    assert "detector 1 → 2" in detail


def test_an_ensemble_brings_its_stages_and_the_strictest_cutover_holds() -> None:
    record = start_rollout(Records(versions=ALL).view, {"pipeline": "2", "detector": "2"}, CONTEXT).answer
    assert record.changes["pipeline"].stages == ("detector", "tracker")
    assert record.cutover == STRICT
    assert start_rollout(Records(versions=ALL).view, {"tracker": "2"}, CONTEXT).answer.cutover == FAST


def test_what_the_request_says_goes_before_the_file() -> None:
    view = Records(versions=ALL).view
    record = start_rollout(view, {"detector": "2"}, CONTEXT, cutover=FAST, canary=False, compare=True).answer
    assert (record.cutover, record.canary, record.compare) == (FAST, None, CompareRule())
    over = start_rollout(view, {"detector": "2"}, CONTEXT, canary={"latency_ratio": 1.5}).answer.canary
    assert over == CanaryRule(weights=(0.1, 0.5), min_samples=20, latency_ratio=1.5)
    assert start_rollout(view, {"tracker": "2"}, CONTEXT, canary=True).answer.canary == CanaryRule()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({}, InvalidArgument, "at least one model"),
        ({"detectr": "2"}, NotFound, "did you mean 'detector'"),
        ({"detector": "1"}, Conflict, "detector serves version 1 already"),
        ({"detector": "two"}, InvalidArgument, "changes.detector: expected a version"),
        ({"detector": "02"}, InvalidArgument, "given '02'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        start_rollout(Records(versions=ALL).view, changes, CONTEXT)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cutover": "soft"}, "cutover: expected fast or strict, given 'soft'"),
        ({"canary": {"weight": 1}}, "canary.weight"),
        ({"canary": {"latency_ratio": 0.5}}, "canary.latency_ratio: expected a number of at least 1"),
        ({"compare": {"samples": "many"}}, "compare.samples: expected an integer, given 'many'"),
    ],
)
def test_rules_that_make_no_sense_are_refused_by_key(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        start_rollout(Records(versions=ALL).view, {"detector": "2"}, CONTEXT, **options)  # type: ignore[arg-type]


def test_nothing_is_tried_behind_a_gateway_that_tells_nothing() -> None:
    text = FLEET.replace("canary: {steps: [10%, 50%], min_samples: 20}, ", "") + "gateways: {gw: {metrics_port: -1}}"
    view = Records(text, ALL).view
    assert start_rollout(view, {"detector": "2"}, CONTEXT).answer.canary is None
    with pytest.raises(InvalidArgument, match=r"canary: expected none, since gateways.gw has no metrics page"):
        start_rollout(view, {"detector": "2"}, CONTEXT, canary=True)
    with pytest.raises(InvalidArgument, match=r"compare: expected none, since gateways.gw has no metrics page"):
        start_rollout(view, {"detector": "2"}, CONTEXT, compare=True)


def test_a_canary_of_a_stage_alone_is_refused_with_the_reason() -> None:
    outer = {"outer": Assignment("1", stages=("pipeline",), pools=("cpu",))}
    ensemble = {"pipeline": Assignment("1", stages=("detector", "tracker"), pools=("cpu",))}
    view = Records(versions={**ALL, **ensemble, **outer}).view
    with pytest.raises(InvalidArgument, match="canary: expected none, since detector is a stage of outer, pipeline"):
        start_rollout(view, {"detector": "2"}, CONTEXT)
    assert start_rollout(view, {"detector": "2"}, CONTEXT, canary=False).answer.canary is None
    assert start_rollout(view, {"detector": "2", "outer": "2"}, CONTEXT).answer.canary is not None
    assert start_rollout(view, {"outer": "2"}, CONTEXT, canary=True).answer.canary is not None


def test_a_rollout_tells_the_pools_that_it_leaves() -> None:
    records = Records(versions={**ALL, "detector": Assignment("1", pools=("cpu", "gpu"))})
    assert start_rollout(records.view, {"detector": "2"}, CONTEXT).answer.changes["detector"].left == ("gpu",)


def test_without_a_fleet_there_is_nothing_to_roll_out() -> None:
    with pytest.raises(Conflict, match="isochrone apply FILE"):
        start_rollout(Records(text=None).view, {"detector": "2"}, CONTEXT)


def test_a_model_that_was_never_served_has_no_canary() -> None:
    records = Records(versions=served(tracker="1"))
    record = start_rollout(records.view, {"detector": "1"}, CONTEXT).answer
    assert (record.kind, record.canary, record.changes["detector"].before) == ("first", None, "")
    with pytest.raises(InvalidArgument, match="canary: expected none for detector"):
        start_rollout(records.view, {"detector": "1"}, CONTEXT, canary=True)
    mixed = start_rollout(records.view, {"detector": "1", "tracker": "2"}, CONTEXT).answer
    assert (mixed.kind, mixed.canary) == ("version", None)


@pytest.mark.parametrize(
    ("busy", "asked"),
    [("detector", "detector"), ("embedder", "reranker"), ("reranker", "embedder"), ("tracker", "pipeline")],
)
def test_models_that_another_rollout_changes_are_taken_and_it_is_named(busy: str, asked: str) -> None:
    """The model itself, one that the file says changes with it, or a stage of the ensemble."""
    records = Records(versions=ALL)
    records.rollout("r4", PREPARING, {busy: Change("2", "1")})
    with pytest.raises(Conflict, match=rf"rollout r4 is changing {busy} \(preparing\).*rollout abort r4"):
        start_rollout(records.view, {asked: "3"}, CONTEXT)
    records.rollout("r4", ABORTED, {busy: Change("2", "1")})
    assert start_rollout(records.view, {asked: "3"}, CONTEXT).answer.identity == "r1"


@given(st.permutations(["fleet", "epoch", "rollout_number"]), st.integers(1, 3))
def test_a_record_that_changed_in_between_stops_the_transaction(keys: list[str], count: int) -> None:
    records = Records(versions=ALL)
    decision = start_rollout(records.view, {"detector": "2"}, CONTEXT)
    for name in keys[:count]:
        key = getattr(KEYS, name)
        value = records.entries[key].value if key in records.entries else b"1"
        records.put(key, value)
    assert not records.apply(decision)
    assert KEYS.rollout("r1") not in records.entries


def test_two_that_ask_at_once_get_two_numbers() -> None:
    records = Records(versions=ALL)
    one = start_rollout(records.view, {"detector": "2"}, CONTEXT)
    other = start_rollout(records.view, {"tracker": "2"}, CONTEXT)
    assert records.apply(one)
    assert not records.apply(other)
    again = start_rollout(records.view, {"tracker": "2"}, CONTEXT)
    assert again.answer.identity == "r2"
    assert records.apply(again)


# Back.


def rolled() -> Records:
    """Detector and tracker went from 1 to 2 as one; the embedder alone, before them."""
    versions = {name: Assignment("2", "new", "1", "old", pools=("cpu",)) for name in ("detector", "tracker")}
    records = Records(versions={**ALL, **versions, "embedder": Assignment("3", previous="2")})
    records.put(KEYS.rollout_number, b"2")
    records.rollout("r1", DONE, {"embedder": Change("3", "2")}, epoch=5)
    records.rollout("r2", DONE, {"detector": Change("2", "1"), "tracker": Change("2", "1")}, epoch=6)
    return records


def test_what_changed_as_one_goes_back_as_one() -> None:
    records = rolled()
    decision = rollback(records.view, "tracker", CONTEXT)
    record = decision.answer
    assert (record.identity, record.kind, record.canary, record.compare) == ("r3", "rollback", None, None)
    assert {name: (change.before, change.version) for name, change in record.changes.items()} == {
        "detector": ("2", "1"),
        "tracker": ("2", "1"),
    }
    assert record.cutover == STRICT
    assert records.apply(decision)
    assert records.last_event()[1] == "rollback started"
    assert set(rollback(rolled().view, "embedder", CONTEXT).answer.changes) == {"embedder"}


def test_a_move_to_other_pools_since_changes_nothing_of_that() -> None:
    records = rolled()
    records.rollout("r3", DONE, {"tracker": Change("2", "2", pools=("gpu",))}, epoch=7)
    assert set(rollback(records.view, "tracker", CONTEXT).answer.changes) == {"detector", "tracker"}


def test_one_that_moved_on_since_stays_where_it_is() -> None:
    records = rolled()
    records.rollout("r3", DONE, {"detector": Change("3", "2")}, epoch=7)
    versions = records.view.assignments
    records.put(KEYS.epoch, Records(versions={**versions, "detector": Assignment("3", previous="2")}).view.epoch or b"")
    assert set(rollback(records.view, "tracker", CONTEXT).answer.changes) == {"tracker"}


def test_without_a_record_of_how_it_came_the_model_goes_back_alone() -> None:
    records = Records(versions={"detector": Assignment("2", previous="1"), "tracker": Assignment("1")})
    assert set(rollback(records.view, "detector", CONTEXT).answer.changes) == {"detector"}
    with pytest.raises(NotFound, match="tracker has no previous version"):
        rollback(records.view, "tracker", CONTEXT)
    with pytest.raises(NotFound, match="did you mean 'tracker'"):
        rollback(records.view, "traker", CONTEXT)


def test_a_canary_is_aborted_since_the_way_back_is_the_same() -> None:
    records = rolled()
    records.rollout("r3", CANARY, {"detector": Change("3", "2")})
    decision = rollback(records.view, "detector", CONTEXT)
    assert decision.answer.identity == "r3"
    assert records.apply(decision)
    assert read_rollout(records, "r3").abort_asked == "rollback of detector (by ada@desk)"


def test_only_a_rollout_that_has_committed_does_not_stand_in_the_way() -> None:
    records = rolled()
    records.rollout("r2", DRAINING, {"detector": Change("2", "1"), "tracker": Change("2", "1")}, epoch=6)
    assert rollback(records.view, "detector", CONTEXT).answer.kind == "rollback"
    for state in (PREPARING, SWITCHING):
        records.rollout("r3", state, {"detector": Change("3", "2")})
        with pytest.raises(Conflict, match=f"rollout r3 is changing detector \\({state}\\)"):
            rollback(records.view, "detector", CONTEXT)
