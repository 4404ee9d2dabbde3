"""Versions tried on real processes under load: by the rule, by an operator's word, and by their outputs.

The rule is coarse, so that few requests tell: at the median a version may be 1.5 times as slow, and is equal or three
times as slow. A median stands still on a busy machine.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from real_fleets import ask, command, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import write_repository
from bench.control.rollout_log import RolloutLog
from bench.control.trial_models import SCORE, Scoring, write_score, write_score_version
from fleet_load import FleetLoad

pytestmark = pytest.mark.long

USUAL = Scoring(median_ms=20.0, sigma=0.2)
#: What fleet.yaml says of the model's rollouts.
RULE = {
    "steps": [0.5],
    "min_samples": 40,
    "min_seconds": 1,
    "max_seconds": 60,
    "quantile": 0.5,
    "latency_ratio": 1.5,
    "error_margin": 0.05,
}
#: A step that ends by an operator's word alone.
LONG = {"steps": [0.5], "min_seconds": 600, "max_seconds": 900}


def _by_its_rule(fleet: SupervisedFleet, models: Path) -> None:
    write_score_version(models, 2, Scoring(3 * USUAL.median_ms, USUAL.sigma))
    slower = command(fleet, "rollout", "start", f"{SCORE}=2")
    assert slower.status == 1, slower.said
    record = fleet.api.rollouts()[-1]
    assert record["state"] == "aborted"
    assert record["reason"].startswith(f"the canary at 50% is worse: {SCORE}: p50 ")
    assert "allowed ×1.50), p < 0.001" in record["reason"]
    assert record["reason"] in " ".join(command(fleet, "rollout", "status", record["identity"]).said.split())
    assert fleet.api.versions()[SCORE] == "1"

    write_score_version(models, 3, USUAL)
    equal = command(fleet, "rollout", "start", f"{SCORE}=3")
    assert equal.status == 0, equal.said
    assert fleet.api.versions()[SCORE] == "3"
    passed = [event["what"] for event in fleet.api.events() if "passed its canary: " in event["what"]]
    assert len(passed) == 1
    assert "against" in passed[0]


def _in_canary(fleet: SupervisedFleet, models: Path, version: int) -> str:
    write_score_version(models, version, USUAL)
    identity = fleet.api.start_rollout({SCORE: str(version)}, canary=LONG)
    until(lambda: "requests in" in str(fleet.api.rollout(identity).get("note", "")), "the canary's figures")
    return identity


def _by_an_operator(fleet: SupervisedFleet, models: Path) -> None:
    assert command(fleet, "canary", "status").said.strip() == "No rollout is in canary."
    identity = _in_canary(fleet, models, 4)
    (shown,) = command(fleet, "canary", "status", "--json").data["rollouts"]
    assert (shown["identity"], shown["state"]) == (identity, "canary")
    assert "canary step 1 of 1 (50%)" in command(fleet, "canary", "status").said
    # A request may ask for either version while both are tried.
    (gateway,) = fleet.gateways
    assert ask(gateway, SCORE, x_canary="always").version == "4"
    assert ask(gateway, SCORE, x_canary="never").version == "3"
    promoted = command(fleet, "canary", "promote")
    assert (promoted.status, f"{identity} is promoted" in promoted.said) == (0, True), promoted.said
    assert fleet.api.wait(identity)["state"] == "done"
    assert fleet.api.versions()[SCORE] == "4"

    identity = _in_canary(fleet, models, 5)
    aborted = command(fleet, "canary", "abort", "--reason", "boxes are wrong")
    assert aborted.status == 0, aborted.said
    record = fleet.api.rollout(identity)
    assert (record["state"], "boxes are wrong" in record["reason"]) == ("aborted", True), record
    assert ask(gateway, SCORE, x_canary="always").version == "4"


def _by_its_outputs(fleet: SupervisedFleet, models: Path) -> None:
    write_score_version(models, 6, Scoring(USUAL.median_ms, USUAL.sigma, drift=0.01))
    beyond = fleet.api.wait(fleet.api.start_rollout({SCORE: "6"}, canary=LONG, compare={"samples": 20}))
    assert (beyond["state"], beyond["epoch"]) == ("aborted", 0)
    assert "20 of 20 requests answered differently" in beyond["reason"], beyond["reason"]
    assert "output 'SCORE'" in beyond["reason"]
    write_score_version(models, 7, Scoring(USUAL.median_ms, USUAL.sigma, drift=0.0001))
    within = fleet.api.wait(fleet.api.start_rollout({SCORE: "7"}, canary=False, compare={"samples": 20}))
    assert within["state"] == "done", within


def test_versions_are_tried_by_rule_by_hand_and_by_their_outputs(tmp_path: Path) -> None:
    models = write_repository(tmp_path / "models", 1)
    write_score(models, instances=4)
    write_score_version(models, 1, USUAL)
    shape = Shape(workers=2, gateways=1, controllers=1, models={SCORE: {"rollout": {"canary": RULE}}})
    with SupervisedFleet(tmp_path / "fleet", models, shape) as fleet:
        log = RolloutLog(fleet.api.status()["epoch"], fleet.api.versions())
        log.ask(time.monotonic_ns())
        with FleetLoad(fleet.gateways, 100.0, (SCORE,), agents=50) as load:
            _by_its_rule(fleet, models)
            _by_an_operator(fleet, models)
            _by_its_outputs(fleet, models)
            load.wait_answers()
        commits = log.commits(fleet.api.rollouts())
    assert not load.failed, load.failed[:5]
    load.check(commits)
    assert load.versions(SCORE) == {"1", "2", "3", "4", "5", "7"}
