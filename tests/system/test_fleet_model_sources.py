"""A whole fleet whose models are in an object store: rollouts, and the store away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from real_fleets import ask, command, rewritten, served_by, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import Service, write_repository
from bench.control.running_fleet import GATEWAY, WORKER
from bench.models.object_store import S3, s3_server

# A store that is away is waited for: twice a minute and more.
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with s3_server(tmp_path / "store") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("ISOCHRONE_MODEL_CACHE", str(tmp_path / "cache"))
        write_repository(store.repository, 3, Service(milliseconds=2.0))
        for version in (store.repository / "chain").glob("[0-9]"):
            # An object store has no empty folders.
            (version / ".keep").touch()
        yield store


def fetched(s3: S3, model: str) -> dict[str, int]:
    """Version → how often its model.py was sent."""
    sent: dict[str, int] = {}
    for path, count in s3.proxy.record.bytes.items():
        if path.endswith("/model.py") and path.split("/")[-3] == model:
            version = path.split("/")[-2]
            sent[version] = count // (s3.repository / model / version / "model.py").stat().st_size
    return sent


def test_a_fleet_of_an_object_store_and_the_store_away(s3: S3, tmp_path: Path) -> None:
    shape = Shape(workers=2, gateways=1, controllers=1)
    with SupervisedFleet(tmp_path / "fleet", s3.url, shape) as fleet:
        gateway = fleet.of(GATEWAY)[0].address
        assert ask(gateway, "solo").version == "1"
        assert s3.url in fleet.command_line(fleet.of(WORKER)[0].name)
        identity = fleet.api.start_rollout({"solo": "2"}, "strict")
        assert fleet.api.wait(identity, 60)["state"] == "done"
        assert ask(gateway, "solo").version == "2"
        assert fetched(s3, "solo") == {"1": 1, "2": 1}, "once for both workers, and no version that nobody serves"

        s3.proxy.plan = lambda served: "slow down"
        rewritten(fleet, lambda document: document["models"]["solo"].update(version="3"))
        ended = command(fleet, "apply", str(fleet.file), "--yes")
        assert ended.status != 0
        said = " ".join(ended.said.split())
        assert "repository" in said
        assert s3.url in said
        assert ask(gateway, "solo").version == "2"

        # A version that is in no cache: the rollout is aborted with the reason, and nothing changes.
        identity = fleet.api.start_rollout({"solo": "3"}, "strict")
        record = fleet.api.wait(identity, 200)
        assert record["state"] == "aborted"
        assert f"{s3.url}" in record["reason"]
        assert ask(gateway, "solo").version == "2"

        # A worker that dies starts again from the cache.
        worker = fleet.of(WORKER)[0]
        pid = fleet.pid(worker.name)
        assert pid is not None
        psutil.Process(pid).send_signal(signal.SIGKILL)
        until(lambda: fleet.pid(worker.name) not in (pid, None) and fleet.responds(worker.name), "another process")
        until(lambda: served_by(worker.address).get("solo") is not None, "its models")
        assert "2" in served_by(worker.address)["solo"]

        s3.proxy.plan = lambda served: ""
        identity = fleet.api.start_rollout({"solo": "3"}, "strict")
        assert fleet.api.wait(identity, 60)["state"] == "done"
        assert ask(gateway, "solo").version == "3"


def test_status_says_why_a_worker_cannot_load_until_the_store_is_back(s3: S3, tmp_path: Path) -> None:
    shape = Shape(workers=2, gateways=1, controllers=1)
    with SupervisedFleet(tmp_path / "fleet", s3.url, shape) as fleet:
        gateway, worker = fleet.of(GATEWAY)[0].address, fleet.of(WORKER)[0]
        s3.proxy.plan = lambda served: "slow down"
        # As a machine that has fetched nothing yet.
        (tmp_path / "cache").rename(tmp_path / "elsewhere")
        pid = fleet.pid(worker.name)
        assert pid is not None
        psutil.Process(pid).send_signal(signal.SIGKILL)

        def failures() -> dict[str, str]:
            workers = fleet.api.status()["workers"]
            return next((each["load_failures"] for each in workers if each["name"] == worker.name), {})

        def names_the_store() -> bool:
            found = failures()
            return bool(found) and all(s3.url in reason for reason in found.values())

        # Until the new process has registered, calls that were meant for the killed one may fail for another reason.
        until(names_the_store, "the reason")
        assert "cannot load" in " ".join(command(fleet, "status").said.split())
        assert ask(gateway, "solo").version == "1"
        s3.proxy.plan = lambda served: ""
        until(lambda: served_by(worker.address).get("solo") == {"1"}, "the worker's models")
        until(lambda: not failures(), "a status without failures")
