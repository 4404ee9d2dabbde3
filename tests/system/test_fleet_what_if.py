"""What-if questions to a real fleet under load, through the API and the command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from real_fleets import command, small_fleet, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import SOLO
from bench.control.running_fleet import CONTROLLER, WORKER
from fleet_load import FleetLoad

pytestmark = pytest.mark.long

#: The models of the repository take 2 ms for a request.
RUN_MS = 2.0


def asked(fleet: SupervisedFleet, *questions: str) -> httpx.Response:
    url = f"http://{fleet.of(CONTROLLER)[0].address}/v1/what-if"
    return httpx.post(url, json={"questions": questions}, timeout=60)


def test_the_present_fleet_is_simulated_without_a_worker_and_with_more_load(tmp_path: Path) -> None:
    models = {SOLO: {"slo": {"deadline_ms": 1000}}}
    with small_fleet(tmp_path, Shape(2, 1, 1, models=models), versions=1) as fleet:
        silent = asked(fleet, "load=2")
        assert silent.status_code == 400, silent.text
        assert "no model of the fleet can be simulated" in silent.json()["error"]

        with FleetLoad(fleet.gateways, rate=40, models=(SOLO,)) as load:
            load.wait_answers(200)
            lost = fleet.of(WORKER)[0].name
            answer = until(lambda: answered(fleet, f"lose={lost}", "load=2"), "figures of the fleet")
            (model,) = answer["models"]
            assert model["name"] == SOLO
            assert model["then"]["rate"] == pytest.approx(2 * model["today"]["rate"], rel=0.2)
            assert (model["today"]["workers"], model["then"]["workers"]) == (2, 1)
            assert model["then"]["utilisation"] > 2 * model["today"]["utilisation"]
            # Each is at least one run; what was measured has the gateway's and the worker's own time on top.
            assert model["today"]["p50_ms"] > 0.9 * RUN_MS
            assert model["measured"]["p50_ms"] > 0.9 * RUN_MS
            states = {worker["name"]: worker["then"] is None for worker in answer["workers"]}
            assert states == {part.name: part.name == lost for part in fleet.of(WORKER)}

            gone = asked(fleet, "lose=" + ",".join(part.name for part in fleet.of(WORKER))).json()
            assert gone["verdict"] == "breaks"
            assert f"{SOLO}: no worker serves it any more" in gone["sentences"][0]

            wrong = asked(fleet, "lose=nobody")
            assert (wrong.status_code, "given 'nobody'" in wrong.json()["error"]) == (400, True)
            statuses = asyncio.run(at_once(fleet, 8))
            assert set(statuses) == {200, 429}, statuses
            assert statuses.count(200) == 4

            said = command(fleet, "what-if", "policy=p2c").said
            assert "measured" in said
            assert "policy=p2c: the fleet" in said
            saved = tmp_path / "today.json"
            assert command(fleet, "what-if", "--save-situation", str(saved)).status == 0
        assert {model["name"] for model in json.loads(saved.read_text())["models"]} == {SOLO}
    # The fleet is gone; its situation is not.
    offline = command(fleet, "what-if", f"lose={lost}", "--situation", str(saved), "--seconds", "2", "--json")
    assert offline.data["simulated_seconds"] == 2


def answered(fleet: SupervisedFleet, *questions: str) -> Any:
    """None: the controller has not collected figures yet."""
    response = asked(fleet, *questions)
    return response.json() if response.status_code == 200 else None


async def at_once(fleet: SupervisedFleet, number: int) -> list[int]:
    async with httpx.AsyncClient(timeout=120) as client:
        url = f"http://{fleet.of(CONTROLLER)[0].address}/v1/what-if"
        answers = await asyncio.gather(*(client.post(url, json={"questions": ["load=1.5"]}) for _ in range(number)))
    return [answer.status_code for answer in answers]
