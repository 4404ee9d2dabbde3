"""A planned pool with real processes under a load that rises: the hot model gets a second replica, no request fails."""

from __future__ import annotations

import json
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from planned_fleet_processes import PlannedFleet
from real_fleets import ask, command, served_by, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.load import Load, Stream
from bench.control.models import MODELS, SOLO, Service, write_model, write_repository
from bench.control.running_fleet import GATEWAY, WORKER

pytestmark = pytest.mark.long

COLD = ("cold_a", "cold_b")
#: Requests per second that are added one after the other, seconds apart: 80 in all, 0.83 of what one replica takes.
RATES, APART = (10.0, 20.0, 20.0, 20.0, 10.0), 6.0


def planned_fleet(directory: Path) -> SupervisedFleet:
    service = Service(milliseconds=10.0, instances=1)
    write_repository(directory / "models", 1, service)
    for name in COLD:
        write_model(directory / "models", name, service)
    models = {name: {"memory": "10MiB", "slo": {"deadline_ms": 3000}} for name in (*MODELS, *COLD)}
    shape = Shape(3, 1, 1, models=models, pool={"replicas": "planned", "memory": "100MiB"})
    return PlannedFleet(directory / "fleet", directory / "models", shape)


def homes(fleet: SupervisedFleet, model: str) -> set[str]:
    return {part.name for part in fleet.of(WORKER) if model in served_by(part.address)}


def answered(fleet: SupervisedFleet, worker: str) -> tuple[int, float]:
    """Requests for the hot model that a worker answered, and the mean time in its queue in ms."""
    address = next(part.address for part in fleet.of(WORKER) if part.name == worker)
    with urllib.request.urlopen(f"http://{address}/v2/models/{SOLO}/stats", timeout=10) as answer:
        (each,) = json.load(answer)["model_stats"]
    queue = each["inference_stats"]["queue"]
    return each["inference_stats"]["success"]["count"], queue["ns"] / max(1, queue["count"]) / 1e6


def test_a_model_that_gets_hot_is_replicated_and_no_request_fails(tmp_path: Path) -> None:
    with planned_fleet(tmp_path) as fleet:
        gateway = fleet.of(GATEWAY)[0].address
        until(lambda: all(ask(gateway, model).status == 200 for model in (*MODELS, *COLD)), "every model to answer")
        before = {model: homes(fleet, model) for model in (*MODELS, *COLD)}
        assert all(len(names) == 1 for names in before.values()), before
        loads = []
        with ExitStack() as running:
            for number, rate in enumerate(RATES):
                stream = Stream(f"callers-{number}", rate=rate, models=(SOLO,))
                loads.append(running.enter_context(Load(tmp_path / f"history-{number}", fleet.gateways, [stream])))
                time.sleep(APART)
            began = time.monotonic()
            until(lambda: len(homes(fleet, SOLO)) == 2, "the second replica")
            print(f"the second replica was ready {time.monotonic() - began:.1f} s after the last rise")
            (added,) = homes(fleet, SOLO) - before[SOLO]
            until(lambda: answered(fleet, added)[0] > 20, "requests at the second replica")
        failed = [answer.error for load in loads for answer in load.history() if answer.outcome != "ok"]
        total = sum(len(load.history()) for load in loads)
        for name in sorted(homes(fleet, SOLO)):
            count, queue_ms = answered(fleet, name)
            print(f"{name}: {count} answers, {queue_ms:.1f} ms in the queue on average")
        print(f"{total} requests, {len(failed)} failed")
        assert not failed, failed[:5]
        events = [event for event in fleet.api.events() if event["what"] == "replica loads" and event["about"] == SOLO]
        assert events[-1]["detail"] == f"worker {added}: the replicas of the model are busy"
        assert {model: homes(fleet, model) for model in COLD} == {model: before[model] for model in COLD}

        said = command(fleet, "placement", "plan", "--dry-run").said
        assert f"the rate of {SOLO}" not in said, "it is measured"
        explained = command(fleet, "placement", "explain", SOLO).said
        print(explained)
        assert "% of the time" in explained
