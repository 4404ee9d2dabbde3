"""A real fleet whose pool follows its load: more workers, none at all, and back for requests that wait."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from real_fleets import Answered, ask, command, rewritten, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.load import Load, Stream
from bench.control.models import SOLO, Service, write_repository
from bench.control.running_fleet import WORKER

pytestmark = pytest.mark.long

AUTOSCALE = {
    "slo_ms": 400,
    "start_up_seconds": 3,
    "zero_after_seconds": 4,
    "trend_seconds": 4,
    "down_seconds": 6,
}


def autoscaled_fleet(directory: Path) -> SupervisedFleet:
    """One worker at first, which takes 20 requests per second; at most four."""
    write_repository(directory / "models", 1, Service(milliseconds=50.0, instances=1))
    pool = {"workers": 1, "max": 4, "autoscale": AUTOSCALE}
    fleet = SupervisedFleet(directory / "fleet", directory / "models", Shape(4, 1, 1, pool=pool))
    fleet.parts = {name: part for name, part in fleet.parts.items() if part.role != WORKER or name == "cpu-1"}
    return fleet


def workers(fleet: SupervisedFleet) -> set[str]:
    return {worker["name"] for worker in fleet.api.status()["workers"] if not worker["draining"]}


def sizings(fleet: SupervisedFleet) -> list[dict[str, Any]]:
    return [event for event in fleet.api.events() if event["what"] == "pool sized"]


def test_a_pool_grows_with_its_load_and_is_empty_without_one(tmp_path: Path) -> None:
    with autoscaled_fleet(tmp_path) as fleet:
        # One worker cannot take these: the pool grows, and no caller sees anything but answers.
        with Load(tmp_path / "history", fleet.gateways, [Stream("more", rate=40.0, models=(SOLO,))]) as load:
            until(lambda: len(workers(fleet)) >= 3, "more workers")
            grown = sizings(fleet)[0]
            assert grown["about"] == "cpu"
            assert "requests/s" in grown["detail"], "the figures that led to it"
            assert "requests/s for each worker" in grown["detail"]
        failed = [answer.error for answer in load.history() if answer.outcome != "ok"]
        assert not failed, failed[:5]

        # Without requests it has none, and its models stay committed.
        until(lambda: not workers(fleet), "an empty pool")
        assert sizings(fleet)[-1]["detail"].split(":")[0].endswith("to 0")
        assert {model["name"] for model in fleet.api.status()["models"] if model["version"]} >= {SOLO}
        said = command(fleet, "status").said
        assert "idle" in said

        # The first requests wait for the worker that they wake.
        answers: list[Answered] = []
        callers = [
            threading.Thread(target=lambda: answers.append(ask(fleet.gateways[0], SOLO)), daemon=True) for _ in range(5)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert [answer.version for answer in answers] == ["1"] * 5
        assert any("wake" in sizing["detail"] for sizing in sizings(fleet))


def test_the_size_is_the_autoscalers_until_the_file_says_otherwise(tmp_path: Path) -> None:
    with autoscaled_fleet(tmp_path) as fleet:
        until(lambda: not workers(fleet), "an empty pool")
        refused = command(fleet, "scale", "cpu", "2")
        assert refused.status != 0
        assert "autoscale" in refused.said

        # Bounds are taken over at once.
        def at_least_two(document: dict[str, Any]) -> None:
            document["pools"]["cpu"].update(min=2, workers=2)
            del document["pools"]["cpu"]["autoscale"]["zero_after_seconds"]

        file = rewritten(fleet, at_least_two)
        assert command(fleet, "apply", str(file), "--yes").status == 0
        until(lambda: len(workers(fleet)) == 2, "two workers")

        # Without the section, the number in the file counts.
        def fixed(document: dict[str, Any]) -> None:
            document["pools"]["cpu"].update(workers=3)
            del document["pools"]["cpu"]["autoscale"]

        file = rewritten(fleet, fixed)
        assert command(fleet, "apply", str(file), "--yes").status == 0
        until(lambda: len(workers(fleet)) == 3, "three workers")
