"""A real Prometheus scrapes a real fleet under load: it finds every process by itself, evaluates every rule without an
error, and alerts fire by conditions that are really there."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from monitored_fleet import SECONDS, load, stopped, until
from prometheus_server import Prometheus, start_rendered

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import (
    SOLO,
    Service,
    write_model,
    write_repository,
    write_slower_version,
    write_version,
)

pytestmark = pytest.mark.peers

#: The model takes 10 ms, and promises 4.
MODEL_MS, DEADLINE_MS = 10.0, 4
#: A model whose queue holds one request.
TIGHT = "tight"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedFleet]:
    directory = tmp_path_factory.mktemp("monitored")
    models = directory / "models"
    write_repository(models, 1, Service(milliseconds=MODEL_MS))
    write_slower_version(models, SOLO, 2, Service(milliseconds=MODEL_MS), factor=4)
    write_model(models, TIGHT, Service(milliseconds=MODEL_MS))
    config = models / TIGHT / "config.pbtxt"
    one = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    config.write_text(config.read_text().replace("dynamic_batching { }", one))
    shape = Shape(workers=2, gateways=1, controllers=1, models={SOLO: {"slo": {"deadline_ms": DEADLINE_MS}}, TIGHT: {}})
    with SupervisedFleet(directory / "fleet", directory / "models", shape) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def prometheus(fleet: SupervisedFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with start_rendered(tmp_path_factory.mktemp("prometheus"), str(fleet.file)) as server:
        yield server


def test_it_finds_every_process(prometheus: Prometheus) -> None:
    def pages() -> dict[str, str]:
        return {each["labels"]["name"]: each["health"] for each in prometheus.ask("targets")["activeTargets"]}

    expected = dict.fromkeys(("control-1", "gw", "cpu-1", "cpu-2"), "up")
    until(lambda: pages() == expected, "the pages", pages)
    labels = {each["labels"]["name"]: each["labels"] for each in prometheus.ask("targets")["activeTargets"]}
    assert {each["fleet"] for each in labels.values()} == {"proof"}
    assert (labels["cpu-1"]["role"], labels["cpu-1"]["pool"]) == ("worker", "cpu")
    assert (labels["gw"]["role"], labels["control-1"]["role"]) == ("gateway", "controller")


def test_a_fleet_at_rest_has_no_alert_and_every_rule_is_evaluated(prometheus: Prometheus) -> None:
    def unwell() -> list[tuple[str, str, str]]:
        return [
            (each["name"], each["health"], each.get("lastError", ""))
            for each in prometheus.rules()
            if each["health"] != "ok"
        ]

    until(lambda: not unwell(), "all rules", unwell)
    assert len(prometheus.rules()) > 40

    def firing() -> set[str]:
        return {each["labels"]["alertname"] for each in prometheus.ask("alerts")["alerts"] if each["state"] == "firing"}

    # Before the first page was read there was no leader. A machine that runs other tests may stall at times.
    until(lambda: firing() <= {"IsochroneEventLoopStalls"}, "silence", firing)


def test_late_answers_and_queues_fire_under_load(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    with load(fleet.gateways[0]) as statuses:
        for name in ("LatencyOverSlo", "BackPressure", "ErrorBudgetBurnsFast", "ErrorBudgetBurnsSlowly"):
            (found,) = until(lambda name=name: prometheus.firing(name, model=SOLO), name, lambda: statuses[-3:])  # type: ignore[misc]
            assert "<error" not in json.dumps(found["annotations"])
            assert SOLO in found["annotations"]["summary"]
            assert "no value" not in json.dumps(found["annotations"])
        # Other models are not called, and no rule has failed on what load brings.
        assert {each["labels"]["model"] for each in prometheus.firing("LatencyOverSlo")} == {SOLO}
        assert [each for each in prometheus.rules() if each["health"] != "ok"] == []
    assert statuses.count(200) > 100
    (slow,) = prometheus.ask("query", query=f'isochrone:request_seconds:p99_5m{{model="{SOLO}"}}')["result"]
    assert float(slow["value"][1]) > MODEL_MS / 1000


def test_the_first_timeouts_at_a_gateway_burn_the_budget(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    """Of a model without an answer so far. What fails at a gateway while workers hang is in no counter of theirs, and
    the series begins with all of it."""
    ratio = 'isochrone:bad_requests:ratio_rate5m{model="stage_b"}'
    assert prometheus.ask("query", query=ratio)["result"] == []
    hurry = {"x-request-timeout-ms": "200"}
    with stopped(fleet, "cpu-1"), stopped(fleet, "cpu-2"), load(fleet.gateways[0], "stage_b", hurry, 4) as statuses:
        until(lambda: len(statuses) >= 4, "the timeouts")
    assert 200 not in statuses[:4]

    def bad() -> float:
        return max((float(each["value"][1]) for each in prometheus.ask("query", query=ratio)["result"]), default=0.0)

    until(lambda: bad() > 0.5, "bad requests", lambda: (bad(), statuses))


def test_full_queues_fire_while_they_are(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    with load(fleet.gateways[0], TIGHT, callers=16) as statuses:
        until(lambda: prometheus.firing("QueueFull", model=TIGHT), "QueueFull", lambda: statuses[-3:])
    assert {each["labels"]["model"] for each in prometheus.firing("QueueFull")} <= {TIGHT}


def test_an_event_loop_that_stalls(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    """A process that gets no time, again and again."""

    def stalls() -> bool:
        with stopped(fleet, "cpu-2"):
            time.sleep(0.2)
        return bool(prometheus.firing("EventLoopStalls", name="cpu-2"))

    until(stalls, "EventLoopStalls")


def test_a_slower_canary(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    """Its rollout allows more than the file, so that it is not aborted."""
    lenient = {"steps": [0.5], "sticky": False, "min_samples": 10_000_000, "max_seconds": 600.0, "latency_ratio": 100.0}
    with load(fleet.gateways[0]) as statuses:
        identity = fleet.api.start_rollout({SOLO: "2"}, canary=lenient)
        until(
            lambda: prometheus.firing("CanaryRegression", model=SOLO, version="2"),
            "CanaryRegression",
            lambda: (statuses[-3:], fleet.api.rollout(identity)),
        )
        fleet.api.abort(identity)
        until(lambda: prometheus.firing("RolloutAborted", rollout=identity, cause="user"), "RolloutAborted")
    until(lambda: not prometheus.firing("CanaryRegression"), "the end of CanaryRegression")


def test_a_rollout_that_does_not_advance(prometheus: Prometheus, fleet: SupervisedFleet, tmp_path: Path) -> None:
    """Its version is not loaded while a file is there."""
    held = tmp_path / "held"
    held.touch()
    try:
        write_version(fleet.file.parents[1] / "models", SOLO, 3, Service(milliseconds=MODEL_MS), held_by=held)
        identity = fleet.api.start_rollout({SOLO: "3"}, canary=False)
        until(lambda: prometheus.firing("RolloutStuck", rollout=identity, state="preparing"), "RolloutStuck")
    finally:
        held.unlink()
    assert fleet.api.wait(identity)["state"] == "done"
    until(lambda: not prometheus.firing("RolloutStuck"), "the end of RolloutStuck")


def test_a_worker_that_hangs_is_down_and_comes_back(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    until(lambda: not prometheus.firing("WorkerDown"), "the workers")
    with stopped(fleet, "cpu-2"):
        (found,) = until(lambda: prometheus.firing("WorkerDown", worker="cpu-2", pool="cpu"), "WorkerDown")
        assert "Worker cpu-2 is down" in found["annotations"]["summary"]
        assert found["annotations"]["runbook_url"].endswith("/docs/runbooks/worker-down.md")
        assert not prometheus.firing("WorkerDown", worker="cpu-1")
    until(lambda: not prometheus.firing("WorkerDown"), "cpu-2 to come back")


def test_a_gateway_that_hangs_is_down_and_its_models_are_not_served(
    prometheus: Prometheus, fleet: SupervisedFleet
) -> None:
    with stopped(fleet, "gw"):
        until(lambda: prometheus.firing("GatewayDown", gateway="gw"), "GatewayDown")
        until(lambda: prometheus.firing("ModelUnserved", model=SOLO), "ModelUnserved")
    for name in ("GatewayDown", "ModelUnserved"):
        until(lambda name=name: not prometheus.firing(name), f"the end of {name}")  # type: ignore[misc]


def test_a_controller_that_hangs_leaves_no_leader(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    with stopped(fleet, "control-1"):
        until(lambda: prometheus.firing("ControllerDown", name="control-1"), "ControllerDown")
        until(lambda: prometheus.firing("NoLeader", fleet="proof"), "NoLeader")
    for name in ("ControllerDown", "NoLeader"):
        until(lambda name=name: not prometheus.firing(name), f"the end of {name}")  # type: ignore[misc]


def test_a_store_that_takes_no_writes(prometheus: Prometheus, fleet: SupervisedFleet) -> None:
    """Another program holds the store's file."""
    with closing(sqlite3.connect(fleet.file.parent / "fleet.db", isolation_level=None, timeout=SECONDS)) as other:
        other.execute("BEGIN IMMEDIATE")
        until(lambda: prometheus.firing("StoreUnreachable", name="control-1"), "StoreUnreachable")
        until(lambda: prometheus.firing("NoLeader", fleet="proof"), "NoLeader")
        # Nobody knows now which workers are lost.
        until(lambda: not prometheus.firing("WorkerDown"), "silence about workers")
        other.execute("ROLLBACK")
    for name in ("StoreUnreachable", "NoLeader"):
        until(lambda name=name: not prometheus.firing(name), f"the end of {name}")  # type: ignore[misc]
