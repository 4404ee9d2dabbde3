"""Error budgets of a real fleet: a model that is too slow spends its own, the other keeps its own, and both survive the
controllers."""

from __future__ import annotations

import json
import signal
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from real_fleets import LIMIT, Ended, ask, command, small_fleet, until
from typer.testing import CliRunner

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import SOLO, STAGES
from bench.control.running_fleet import CONTROLLER, GATEWAY
from isochrone.cli.main import app

pytestmark = pytest.mark.long

SLOW, FAST = SOLO, STAGES[0]
#: A run takes 2 ms: no answer of the one is in time, every one of the other is.
SHAPE = Shape(
    workers=1,
    gateways=1,
    controllers=2,
    models={SLOW: {"slo": {"deadline_ms": 1}}, FAST: {"slo": {"deadline_ms": 5000}}},
)
REQUESTS = 30


def budgets(fleet: SupervisedFleet, controller: str) -> dict[str, Any]:
    """By model, as ``isochrone slo --json`` against this controller says; empty: it does not answer."""
    said = CliRunner().invoke(app, ["slo", "--json", "--api", f"http://{fleet.parts[controller].address}"])
    return {each["model"]: each for each in json.loads(said.output)["models"]} if said.exit_code == 0 else {}


def counted(found: dict[str, Any], model: str) -> tuple[int, int]:
    """(good, bad) of 24 hours."""
    window = found[model]["windows"][-1]
    return window["good"], window["bad"]


def has_counted(fleet: SupervisedFleet, controller: str) -> bool:
    found = budgets(fleet, controller)
    return bool(found) and counted(found, SLOW) == (0, REQUESTS) and counted(found, FAST) == (REQUESTS, 0)


def recorded(fleet: SupervisedFleet) -> dict[str, Any]:
    """The totals that the leader has written, by model."""
    with closing(sqlite3.connect(f"file:{fleet.file.parent / 'fleet.db'}?mode=ro", uri=True, timeout=LIMIT)) as store:
        rows = store.execute("SELECT key, value FROM entries WHERE key LIKE '%/slo-totals/%'").fetchall()
    return {key.rpartition("/")[2]: json.loads(value) for key, value in rows}


def kill(fleet: SupervisedFleet, name: str) -> None:
    pid = fleet.signal(name, signal.SIGKILL)
    assert pid
    until(lambda: fleet.pid(name) not in (None, pid), f"{name} to be started again")


def test_a_slow_model_spends_its_budget_which_survives_the_controllers(tmp_path: Path) -> None:
    with small_fleet(tmp_path, SHAPE, versions=1) as fleet:
        one, other = (part.name for part in fleet.of(CONTROLLER))
        (gateway,) = fleet.gateways
        # Both controllers look at the fleet: what was before that would not count.
        until(lambda: all(budgets(fleet, each) for each in (one, other)), "both controllers")
        until(lambda: _is_reachable(fleet), "figures of the gateway")
        for _ in range(REQUESTS):
            assert ask(gateway, SLOW).status in (429, 503, 504)
            assert ask(gateway, FAST).status == 200
        until(lambda: has_counted(fleet, one) and has_counted(fleet, other), "figures of all requests")
        _says_so(command(fleet, "slo", "--check"), command(fleet, "slo", FAST, "--check"))

        # The leader is lost before it has recorded anything, or after: the other one has counted, too.
        leader = str(until(lambda: fleet.api.status()["leader"], "a leader"))
        follower = next(each for each in (one, other) if each != leader)
        kill(fleet, leader)
        assert has_counted(fleet, follower)
        until(lambda: {SLOW, FAST} <= recorded(fleet).keys(), "the totals of the first minute")

        # All controllers at once: what is recorded is what they begin with.
        for each in (one, other):
            assert fleet.signal(each, signal.SIGKILL)
        until(lambda: has_counted(fleet, one) and has_counted(fleet, other), "the budgets after all controllers died")
        assert len(json.dumps(recorded(fleet))) < 1000


def _is_reachable(fleet: SupervisedFleet) -> bool:
    """Whether each controller has heard of the gateway."""
    for part in fleet.of(CONTROLLER):
        with urllib.request.urlopen(f"http://{part.address}/v1/figures?seconds=1", timeout=LIMIT) as answer:
            latest = json.load(answer)["latest"]
        names = {each["name"] for each in latest["gateways"] if each["reachable"]} if latest else set()
        if names != {each.name for each in fleet.of(GATEWAY)} or not latest["workers"]:
            return False
    return True


def _says_so(both: Ended, kept: Ended) -> None:
    assert both.status == 1, both.said
    (slow,) = [line for line in both.said.splitlines() if line.startswith(SLOW)]
    assert "0.00 %" in slow
    assert slow.split()[-2:] == ["now", "spent"]
    assert "history since" in both.said
    assert kept.status == 0, kept.said
    (fast,) = [line for line in kept.said.splitlines() if line.startswith(FAST)]
    assert "100.00 %" in fast
    assert fast.split()[-1] == "kept"
    assert SLOW not in kept.said
