"""The store is lost under load, in two ways: requests go on, people are told, and once it is back all goes on.

A full disk is made with a limit on the size of files (RLIMIT_FSIZE) of every process: no more can be written, to the
store or to a log, and all that is there can be read. It needs no rights, and ends as a disk that has room again does.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from real_fleets import command, pids, small_fleet, until

from bench.control.checker import Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS
from bench.control.running_fleet import CONTROLLER
from fleet_load import FleetLoad

pytestmark = pytest.mark.long


@contextmanager
def _full_disk(fleet: SupervisedFleet) -> Iterator[None]:
    supervisor = psutil.Process(psutil.Process(fleet.pid("control-1")).ppid())
    processes = [supervisor, *supervisor.children(recursive=True)]
    before = [resource.prlimit(process.pid, resource.RLIMIT_FSIZE) for process in processes]
    for process, (_, hard) in zip(processes, before, strict=True):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for process, limits in zip(processes, before, strict=True):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


@contextmanager
def _moved_away(fleet: SupervisedFleet) -> Iterator[None]:
    """The files of the store are gone, and come back."""
    files = sorted(fleet.file.parent.glob("fleet.db*"))
    aside = fleet.file.parent / "aside"
    aside.mkdir()
    for file in files:
        file.rename(aside / file.name)
    try:
        yield
    finally:
        for file in files:
            (aside / file.name).rename(file)
        aside.rmdir()


def _store(fleet: SupervisedFleet) -> dict[str, object]:
    store: dict[str, object] = fleet.api.status()["store"]
    return store


def _refused(fleet: SupervisedFleet, model: str) -> str:
    """Why a rollout cannot be started; answered, and not after a long while of silence."""
    address = fleet.of(CONTROLLER)[0].address
    answer = httpx.post(f"http://{address}/v1/rollouts", json={"changes": {model: "3"}}, timeout=60, trust_env=False)
    assert answer.status_code == 503, answer.text
    return str(answer.json()["error"])


def test_a_lost_store_is_told_and_requests_go_on(tmp_path: Path) -> None:
    shape = Shape(workers=2, gateways=1, controllers=1, lease_seconds=2.0)
    with small_fleet(tmp_path, shape) as fleet:
        commits = [Commit(1, dict.fromkeys(MODELS, "1"))]
        before = pids(fleet)
        with FleetLoad(fleet.gateways) as load:
            for number, (away, words) in enumerate(((_full_disk, "the disk"), (_moved_away, "was removed")), 2):
                with away(fleet):
                    until(lambda: not _store(fleet)["connected"], "the loss to be told")
                    assert words in str(_store(fleet)["error"])
                    said = " ".join(command(fleet, "status").said.split())
                    assert "the store is unreachable" in said
                    assert words in said
                    assert words in _refused(fleet, "solo")
                    assert command(fleet, "rollout", "start", "solo=3").status == 1
                    # Longer than any lease: nobody is dropped for what the store cannot say.
                    ends = time.monotonic() + 5
                    while time.monotonic() < ends:
                        load.wait_answers()
                until(lambda: _store(fleet)["connected"] and fleet.api.status()["leader"], "the store to be back")
                asked = time.monotonic_ns()
                identity = fleet.api.start_rollout(dict.fromkeys(MODELS, str(number)), "strict")
                assert fleet.api.wait(identity)["state"] == "done"
                commits.append(Commit(number, dict.fromkeys(MODELS, str(number)), "strict", asked_ns=asked))
                load.wait_answers()
        assert not load.failed, load.failed[:5]
        load.check(commits)
        assert pids(fleet) == before

        def all_are_there() -> bool:
            status = fleet.api.status()
            return len(status["workers"]) == 2 and all(gateway["registered"] for gateway in status["gateways"])

        until(all_are_there, "all to be registered")
