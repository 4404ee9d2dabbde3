"""Processes killed in the middle of rollouts under load: each rollout ends, no promise is broken, the next one works.

The middle is made to last: a version's ``load`` waits for a file, or a gateway is stopped so that a switch or a drain
waits for it. Then the kill comes, and the way is cleared.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_fleets import LIMIT, small_fleet, until

from bench.control.control_api import OVER
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.rollout_log import Asked, RolloutLog
from fleet_load import FleetLoad

pytestmark = pytest.mark.long

GATE = """
    def load(self, context):
        while not os.path.exists({path!r}):
            time.sleep(0.02)
"""


class Run:
    """Rollouts on one fleet, each on record for the checker."""

    def __init__(self, fleet: SupervisedFleet, directory: Path) -> None:
        self.fleet = fleet
        self.directory = directory
        status = fleet.api.status()
        self.log = RolloutLog(status["epoch"], fleet.api.versions())

    def ask(self, version: str, cutover: str, *models: str) -> Asked:
        asked = self.log.ask(time.monotonic_ns())
        asked.identity = self.fleet.api.start_rollout(dict.fromkeys(models, version), cutover)
        return asked

    def reach(self, asked: Asked, there: Callable[[dict[str, Any]], bool]) -> None:
        """Until the rollout has come to a point where it waits."""

        def look(record: dict[str, Any]) -> bool:
            assert record["state"] not in OVER, record
            return there(record)

        self.fleet.api.wait(asked.identity, LIMIT, asked.see, look)

    def end(self, asked: Asked) -> str:
        self.fleet.api.wait(asked.identity, 90, asked.see)
        return asked.state

    def gated(self, model: str, version: int) -> Path:
        """Makes a version's load wait for a file; which one."""
        gate = self.directory / f"{model}-{version}.gate"
        source = self.directory / "models" / model / str(version) / "model.py"
        text = source.read_text().replace("import random\n", "import os\nimport random\n")
        before, found, after = text.partition("\n    def load(self, context):\n")
        assert found
        source.write_text(before + GATE.format(path=str(gate)) + after)
        return gate

    def kill(self, name: str) -> None:
        pid = self.fleet.signal(name, signal.SIGKILL)
        assert pid
        until(lambda: self.fleet.pid(name) not in (None, pid), f"{name} to be started again")

    def back(self, name: str) -> None:
        until(lambda: self.fleet.responds(name), f"{name} to serve again")

    def leader(self) -> str:
        return str(until(lambda: self.fleet.api.status()["leader"], "a leader"))

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """What the process is asked meanwhile, it does not answer. It may be killed inside.

        The test has the store's lock at that moment: a process that is stopped while it writes would hold up all.
        """
        with closing(sqlite3.connect(self.fleet.file.parent / "fleet.db", timeout=LIMIT)) as store:
            store.execute("BEGIN IMMEDIATE")
            pid = self.fleet.signal(name, signal.SIGSTOP)
            assert pid
            until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"{name} to stop")
        try:
            yield
        finally:
            if self.fleet.pid(name) == pid:
                self.fleet.signal(name, signal.SIGCONT)


def _loads(record: dict[str, Any]) -> bool:
    """The worker that loads it first is at it."""
    return "cpu-1" in record["workers"] and record["workers"]["cpu-1"]["state"] == "loading"


def _waits(record: dict[str, Any]) -> bool:
    """The commit is due or done, and gw-2 has yet to say something: to the switch, or that it has seen an epoch."""
    return record["state"] in ("switching", "draining") and bool(record["attempts"] or "gw-2" in record["note"])


def test_kills_in_the_middle_of_rollouts(tmp_path: Path) -> None:
    shape = Shape(workers=2, gateways=2, controllers=2, lease_seconds=2.0)
    pipeline = ("chain", "stage_a", "stage_b")
    with small_fleet(tmp_path, shape, versions=6) as fleet:
        run = Run(fleet, tmp_path)
        gates = {version: run.gated("solo", version) for version in (2, 3)}
        with FleetLoad(fleet.gateways) as load:
            # A worker, while it loads.
            asked = run.ask("2", "strict", "solo")
            run.reach(asked, _loads)
            run.kill("cpu-1")
            gates[2].touch()
            assert run.end(asked) == "done"
            run.back("cpu-1")
            # The leader, while a worker loads.
            asked = run.ask("3", "strict", "solo")
            run.reach(asked, _loads)
            run.kill(run.leader())
            gates[3].touch()
            assert run.end(asked) == "done"
            # The leader, while a strict switch waits for a gateway.
            with run.stopped("gw-2"):
                asked = run.ask("2", "strict", *pipeline)
                run.reach(asked, _waits)
                run.kill(run.leader())
            assert run.end(asked) == "done"
            # That gateway itself: its supervisor says that it is dead, so nobody waits for it.
            with run.stopped("gw-2"):
                asked = run.ask("3", "strict", *pipeline)
                run.reach(asked, _waits)
                run.kill("gw-2")
            assert run.end(asked) == "done"
            run.back("gw-2")
            # The leader, around the commit.
            with run.stopped("gw-2"):
                asked = run.ask("4", "fast", "solo", *pipeline)
                run.reach(asked, _waits)
                run.kill(run.leader())
            assert run.end(asked) == "done"
            # Nothing of all that stands in the way of the next ones.
            for version, cutover in (("5", "strict"), ("6", "fast")):
                asked = run.ask(version, cutover, "solo", *pipeline)
                assert run.end(asked) == "done"
            load.wait_answers()
        assert fleet.api.versions() == dict.fromkeys(("solo", *pipeline), "6")
        load.check(run.log.commits(fleet.api.rollouts()))
        assert "Traceback" not in "".join(path.read_text() for path in (fleet.file.parent / "state").rglob("*.log"))
