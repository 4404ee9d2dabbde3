"""A worker that joins late, started by hand: it is given what is committed, and requests only if it has just that."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_fleets import LIMIT, ask, command, requests_had, served_by, small_fleet, until

from bench.control.checker import Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS, copy_with_another_config
from bench.ports import ports_in_a_row
from fleet_load import FleetLoad

pytestmark = pytest.mark.long


class LateWorker:
    """``isochrone serve`` of a fleet, by hand."""

    def __init__(self, fleet: SupervisedFleet, repository: Path, name: str) -> None:
        first = ports_in_a_row(3)
        self.address, self.metrics = f"127.0.0.1:{first}", first + 2
        words = ["serve", str(repository), "--host", "127.0.0.1", "--http-port", str(first)]
        words += ["--grpc-port", str(first + 1), "--metrics-port", str(first + 2), "--model-control-mode", "explicit"]
        words += ["--store", f"sqlite:{fleet.file.parent}/fleet.db", "--fleet", "proof", "--name", name]
        words += ["--pool", "cpu", "--lease-seconds", "5"]
        with (fleet.file.parent / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "isochrone", *words], stdout=log, stderr=log)

    @property
    def requests(self) -> int:
        return requests_had(self.metrics)


@contextmanager
def _late(fleet: SupervisedFleet, repository: Path, name: str) -> Iterator[LateWorker]:
    worker = LateWorker(fleet, repository, name)
    try:
        until(lambda: name in {each["name"] for each in fleet.api.status()["workers"]}, f"{name} to register")
        yield worker
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(LIMIT) == 0
    finally:
        worker.process.kill()
        worker.process.wait()


def test_only_the_committed_digest_is_routable(tmp_path: Path) -> None:
    shape = Shape(workers=1, gateways=1, controllers=1, lease_seconds=5.0)
    with small_fleet(tmp_path, shape, versions=2) as fleet:
        gateway = fleet.gateways[0]
        other = copy_with_another_config(tmp_path / "models", tmp_path / "other", "solo", instances=3)
        with FleetLoad(fleet.gateways, models=["solo"]) as load, _late(fleet, other, "odd") as odd:
            # It loads what is committed, with another configuration: nobody is sent there.
            until(lambda: served_by(odd.address).get("solo") == {"1"}, "odd to load")
            with _late(fleet, tmp_path / "models", "even") as even:
                # The right copy, which came later, is found good.
                until(lambda: even.requests > 20, "requests for even")
                load.wait_answers(50)
                assert _solo(odd) == 0
                differs = "gets no requests: other files or another config.pbtxt of solo 1 (digest "
                until(lambda: differs in " ".join(command(fleet, "status").said.split()), "the status to say so")
                # Nor may a rollout go on with it: said before anything is visible.
                aborted = command(fleet, "rollout", "start", "solo=2")
                assert aborted.status == 1
                assert "worker odd has" in " ".join(aborted.said.split())
                assert ask(gateway, "solo").version == "1"
            until(lambda: "even" not in {each["name"] for each in fleet.api.status()["workers"]}, "even to leave")
            load.wait_answers()
            assert _solo(odd) == 0
        assert not load.failed, load.failed[:5]
        load.check([Commit(1, dict.fromkeys(MODELS, "1"))])
        # Without it, nothing is in the way.
        assert command(fleet, "rollout", "start", "solo=2").status == 0


def _solo(worker: LateWorker) -> int:
    """Its warm-up is no request."""
    return worker.requests
