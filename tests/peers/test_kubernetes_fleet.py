"""A whole fleet on a real Kubernetes API server, under load: pods and nodes go, the engine and the API server die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from kubernetes_api import ApiServer
from loopback_kubelet import Kubelets
from typer.testing import CliRunner

from bench.control.checker import Commit
from bench.control.control_api import ControlApi
from bench.control.models import MODELS, PIPELINES, Service, write_repository
from bench.worker.peers.process import PeerUnavailable
from fleet_load import FleetLoad
from isochrone.cli.main import app

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1200)]

_LIMIT = 180.0
NODES = {"edge": {"role": "edge"}, **{f"node-{letter}": {"role": "core"} for letter in "abc"}}


def fleet_yaml(store: str, repository: Path) -> dict[str, Any]:
    core = {"node_labels": {"role": "core"}}
    return {
        "name": "plant",
        "repository": str(repository),
        "store": {"url": store, "lease_seconds": 2},
        "control": {"count": 2, **core},
        "gateways": {"gw": {"count": 2, "node_labels": {"role": "edge"}}},
        "pools": {"cpu": {"workers": 3, **core}},
        # The wait before a stop needs Kubernetes 1.30.
        "kubernetes": {"drain_seconds": 0, "require_secure": False},
        "models": {
            model: {"version": "1", **({"with": list(PIPELINES[model])} if model in PIPELINES else {})}
            for model in MODELS
        },
    }


class Cluster:
    """The fleet, and the engine that runs it."""

    def __init__(self, server: ApiServer, kubelets: Kubelets, directory: Path) -> None:
        self.server = server
        self.kubelets = kubelets
        self._directory = directory
        self._engine: subprocess.Popen[bytes] | None = None
        self.client = server.client()
        self.api = ControlApi([f"{kubelets.address('plant', f'control-{number}')}:8003" for number in (1, 2)])
        self.gateways = [f"{kubelets.address('plant', f'gw-{number}')}:8000" for number in (1, 2)]

    def start_engine(self) -> None:
        command = [sys.executable, "-m", "isochrone", "up", "--state", str(self._directory)]
        command += ["--engine", "kubernetes", "--kubeconfig", str(self.server.kubeconfig)]
        with (self._directory / "up.log").open("ab") as log:
            self._engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill_engine(self) -> None:
        assert self._engine is not None
        self._engine.kill()
        self._engine.wait()

    def end_engine(self) -> int:
        assert self._engine is not None
        self._engine.terminate()
        return self._engine.wait(60)

    def log(self) -> str:
        return (self._directory / "up.log").read_text(errors="replace")

    def serving(self) -> set[str]:
        """Workers that answer for every model."""
        found = set()
        for worker in self.api.status()["workers"]:
            address = f"{self.kubelets.address('plant', worker['name'])}:8000"
            with contextlib.suppress(httpx.TransportError):
                answers = [httpx.get(f"http://{address}/v2/models/{model}/ready", timeout=2) for model in MODELS]
                if all(answer.status_code == 200 for answer in answers):
                    found.add(worker["name"])
        return found

    def pods(self) -> dict[str, Any]:
        items = self.client.get("/api/v1/namespaces/plant/pods").raise_for_status().json()["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def evict(self, pod: str) -> None:
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "plant"}}
        self.client.post(f"/api/v1/namespaces/plant/pods/{pod}/eviction", json=eviction).raise_for_status()

    def scale(self, workers: int) -> None:
        api = f"http://{self.kubelets.address('plant', 'control-2')}:8003"
        ended = CliRunner().invoke(app, ["scale", "cpu", str(workers), "--api", api])
        assert ended.exit_code == 0, ended.output

    def restarts(self, pod: str) -> int:
        return int(self.pods()[pod]["status"]["containerStatuses"][0]["restartCount"])

    def uid(self, pod: str) -> str:
        """ "": there is none."""
        found = self.pods().get(pod)
        return str(found["metadata"]["uid"]) if found is not None else ""

    def wait(self, look: Callable[[], Any], what: str) -> None:
        ends = time.monotonic() + _LIMIT
        while not look():
            assert time.monotonic() < ends, f"waited {_LIMIT:g} s in vain for {what}:\n{self.log()[-3000:]}"
            time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        api_server = ApiServer(tmp_path / "cluster")
    except PeerUnavailable as error:
        pytest.skip(str(error))
    directory = tmp_path / "fleet"
    directory.mkdir()
    write_repository(tmp_path / "models", 2, Service(milliseconds=2.0))
    with api_server as server, Kubelets(server, tmp_path / "pods", NODES) as kubelets:
        with server.client() as client:
            client.post("/api/v1/namespaces", json={"metadata": {"name": "plant"}}).raise_for_status()
        (directory / "fleet.yaml").write_text(yaml.safe_dump(fleet_yaml(server.store_url, tmp_path / "models")))
        found = Cluster(server, kubelets, directory)
        found.start_engine()
        try:
            yield found
        finally:
            found.kill_engine()
            found.api.close()
            found.client.close()


WORKERS = {"cpu-1", "cpu-2", "cpu-3"}


def test_a_fleet_in_a_cluster_loses_no_request(cluster: Cluster) -> None:
    cluster.wait(lambda: "Fleet plant is up" in cluster.log(), "the fleet")
    with FleetLoad(cluster.gateways) as load:
        # Scaled up and down by the fleet's own command.
        cluster.scale(4)
        cluster.wait(lambda: cluster.serving() == {*WORKERS, "cpu-4"}, "a fourth worker")
        cluster.scale(3)
        cluster.wait(lambda: cluster.pods().keys() == {*WORKERS, "control-1", "control-2", "gw-1", "gw-2"}, "its end")
        load.wait_answers()

        # A process dies; a pod is deleted.
        os.kill(cluster.kubelets.pids()["cpu-1"], signal.SIGKILL)
        cluster.wait(
            lambda: cluster.pods()["cpu-1"]["status"]["containerStatuses"][0]["restartCount"] == 1, "its death"
        )
        cluster.wait(lambda: cluster.serving() == WORKERS, "cpu-1 again")
        before = cluster.uid("cpu-2")
        cluster.client.delete("/api/v1/namespaces/plant/pods/cpu-2").raise_for_status()
        cluster.wait(
            lambda: "cpu-2" in (pods := cluster.pods()) and pods["cpu-2"]["metadata"]["uid"] != before, "cpu-2"
        )
        cluster.wait(lambda: cluster.serving() == WORKERS, "cpu-2 again")

        # Node after node is drained.
        for node in ("node-a", "node-b", "node-c"):
            cluster.kubelets.cordon(node)
            for name in sorted(cluster.kubelets.pids(node)):
                uid = cluster.uid(name)
                cluster.evict(name)
                cluster.wait(
                    lambda name=name, uid=uid: cluster.uid(name) not in ("", uid),  # type: ignore[misc]
                    f"{name} elsewhere",
                )
                cluster.wait(lambda: cluster.serving() == WORKERS, f"all workers, after {name}")
            assert not cluster.kubelets.pids(node)
            cluster.kubelets.uncordon(node)
        load.wait_answers()

        # The engine dies, and a worker while there is none: the kubelet restarts it, and a new engine adopts all.
        cluster.kill_engine()
        uids = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
        os.kill(cluster.kubelets.pids()["cpu-3"], signal.SIGKILL)
        cluster.start_engine()
        cluster.wait(lambda: cluster.log().count("Fleet plant is up") == 2, "the fleet again")
        cluster.wait(lambda: cluster.serving() == WORKERS, "cpu-3 again")
        assert {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()} == uids

        # The API server dies, a controller with it; versions change meanwhile.
        cluster.server.kill()
        os.kill(cluster.kubelets.pids()["control-1"], signal.SIGKILL)
        rollout = cluster.api.start_rollout(dict.fromkeys(MODELS, "2"), "strict")
        cluster.wait(lambda: cluster.api.rollout(rollout)["state"] == "done", "the rollout")
        cluster.server.start()
        cluster.scale(4)
        cluster.wait(lambda: cluster.serving() == {*WORKERS, "cpu-4"}, "a fourth worker, by a watch that came back")

        # A node is lost.
        node = next(node for node in NODES if "cpu-1" in cluster.kubelets.pids(node))
        cluster.kubelets.cordon(node)
        cluster.kubelets.lose(node)
        load.wait_answers()
        cluster.kubelets.notice(node)
        cluster.wait(lambda: cluster.serving() == {*WORKERS, "cpu-4"}, "the workers of the lost node elsewhere")
        load.wait_answers()
    assert not load.failed, load.failed[:5]
    load.check([Commit(1, dict.fromkeys(MODELS, "1")), Commit(2, dict.fromkeys(MODELS, "2"))])

    # The end of the engine is not the end of the fleet.
    assert cluster.end_engine() == 0
    assert "the fleet goes on" in cluster.log()
    assert cluster.serving() == {*WORKERS, "cpu-4"}
