"""The Kubernetes engine and a real API server: pods that die, vanish or cannot start, an API server that is away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes_api import ApiServer
from loopback_kubelet import Kubelets

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.base import Exit
from isochrone.engines.kubernetes.names import FLEET_LABEL, PROCESS_LABEL, SPEC_ANNOTATION
from isochrone.engines.kubernetes.pods.cluster_api import PODS, ClusterApi, ClusterUnavailable, WatchExpired
from isochrone.engines.kubernetes.pods.engine import KubernetesEngine

pytestmark = pytest.mark.peers

SLEEP = ProcessSpec("cpu-1", "worker", ("1000",), "cpu")
NODES = {"node-a": {"zone": "a"}, "node-b": {"zone": "b"}}


@pytest.fixture
def server(api_server: ApiServer) -> ApiServer:
    return api_server


@pytest.fixture
def kubelets(server: ApiServer, tmp_path: Path) -> Iterator[Kubelets]:
    with Kubelets(server, tmp_path / "pods", NODES) as kubelets:
        yield kubelets


def pod_of(spec: ProcessSpec) -> dict[str, Any]:
    """A process that sleeps, on the node that its pool names."""
    zone = {"a": "a", "b": "b", "none": "none"}.get(spec.pool)
    container = {"name": "isochrone", "image": "none", "command": ["sleep", *spec.arguments]}
    selector = {"nodeSelector": {"zone": zone}} if zone else {}
    return {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container], **selector}}


class Fleet:
    """One engine, the exits that it reported, and waiting for what it should come to."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self._server = server
        self.name = name
        self.exits: list[Exit] = []

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[KubernetesEngine]:
        api = ClusterApi("default", self._server.kubeconfig)
        engine = KubernetesEngine(api, self.name, pod_of)
        engine.on_exit(self.exits.append)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 200))  # type: ignore[arg-type]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def pid_of(engine: KubernetesEngine, name: str = "cpu-1") -> int:
    running = engine.running().get(name)
    return running.pid if running is not None else 0


def waits(engine: KubernetesEngine, name: str) -> str:
    return engine.running()[name].waits


def test_a_process_runs_as_a_pod_until_it_is_stopped(server: ApiServer, kubelets: Kubelets) -> None:
    fleet = Fleet(server, "plain")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(SLEEP)
            with pytest.raises(ValueError, match="cpu-1 runs already"):
                await engine.start(SLEEP)
            await until(lambda: pid_of(engine))
            assert kubelets.pids().keys() == {"cpu-1"}
            await engine.stop("cpu-1", 10)
            assert engine.running() == {}
            await until(lambda: not kubelets.pids())
            await engine.stop("cpu-1", 10)
        assert [ended.again_in for ended in fleet.exits] == [None]

    run(scenario)


def test_a_process_that_dies_is_restarted_in_its_pod_and_the_engine_says_how_it_died(
    server: ApiServer, kubelets: Kubelets
) -> None:
    fleet = Fleet(server, "dies")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(SLEEP)
            await until(lambda: pid_of(engine))
            before = pid_of(engine)
            os.kill(kubelets.pids()["cpu-1"], signal.SIGKILL)
            await until(lambda: engine.running()["cpu-1"].restarts == 1 and pid_of(engine))
            assert pid_of(engine) == before, "the number of the pod"
            assert [ended.how for ended in fleet.exits] == ["was ended by signal 9 and is restarted in its pod"]
            assert engine.last_lines("cpu-1", 5) == ["killed"]
            assert "cpu-1" in engine.log_place("cpu-1")
            await engine.stop("cpu-1", 0)

    run(scenario)


def test_a_pod_that_somebody_deletes_is_created_again(server: ApiServer, kubelets: Kubelets) -> None:
    fleet = Fleet(server, "deleted")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(SLEEP)
            await until(lambda: pid_of(engine))
            before = pid_of(engine)
            with server.client() as client:
                client.delete("/api/v1/namespaces/default/pods/cpu-1").raise_for_status()
            await until(lambda: pid_of(engine) not in (0, before))
            assert [ended.pid for ended in fleet.exits] == [before]
            assert "lost its pod on node" in fleet.exits[0].how
            await engine.stop("cpu-1", 0)

    run(scenario)


def test_a_pod_that_its_node_evicts_runs_on_another_node(server: ApiServer, kubelets: Kubelets) -> None:
    fleet = Fleet(server, "evicted")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(SLEEP)
            await until(lambda: pid_of(engine))
            node = next(node for node in NODES if kubelets.pids(node))
            kubelets.cordon(node)
            with server.client() as client:
                metadata = {"name": "cpu-1", "namespace": "default"}
                eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
                path = "/api/v1/namespaces/default/pods/cpu-1/eviction"
                client.post(path, json=eviction).raise_for_status()
            await until(lambda: any(kubelets.pids(other) for other in NODES if other != node))
            await until(lambda: pid_of(engine))
            kubelets.uncordon(node)
            await engine.stop("cpu-1", 0)

    run(scenario)


def test_a_new_engine_adopts_the_pods_of_the_old_one(server: ApiServer, kubelets: Kubelets) -> None:
    fleet = Fleet(server, "adopted")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(SLEEP)
            await until(lambda: pid_of(engine))
            before = pid_of(engine)
        async with fleet.engine() as engine:
            assert engine.running()["cpu-1"].spec == SLEEP
            assert pid_of(engine) == before
            assert fleet.exits == []
            await engine.stop("cpu-1", 0)
        assert not kubelets.pids()

    run(scenario)


def test_a_pod_with_an_unreadable_spec_equals_no_desired_process(server: ApiServer, kubelets: Kubelets) -> None:
    fleet = Fleet(server, "foreign")

    async def scenario() -> None:
        labels = {FLEET_LABEL: "foreign", PROCESS_LABEL: "cpu-1"}
        pod = pod_of(SLEEP)
        for found in ({}, {SPEC_ANNOTATION: '{"name": 7}'}):
            api = ClusterApi("default", server.kubeconfig)
            await api.connect()
            metadata = {"name": "cpu-1", "labels": labels, "annotations": found}
            await api.create(PODS, {**pod, "metadata": metadata})
            await api.close()
            async with fleet.engine() as engine:
                assert engine.running()["cpu-1"].spec != SLEEP
                await engine.stop("cpu-1", 0)

    run(scenario)


def test_a_pod_that_no_node_can_take_waits_with_the_clusters_reason(server: ApiServer, kubelets: Kubelets) -> None:
    fleet = Fleet(server, "nowhere")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(ProcessSpec("gpu-1", "worker", ("1000",), "none"))
            await until(lambda: waits(engine, "gpu-1"))
            assert waits(engine, "gpu-1").startswith("Unschedulable: 0/2 nodes are available")
            assert pid_of(engine, "gpu-1") == 0
            await engine.stop("gpu-1", 0)
            assert engine.running() == {}

    run(scenario)


def test_a_pod_that_the_cluster_refuses_is_retried_and_the_reason_is_shown(
    server: ApiServer, kubelets: Kubelets
) -> None:
    fleet = Fleet(server, "quota")

    async def scenario() -> None:
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}, "status": {"hard": {"pods": "0"}}}
        path = "/api/v1/namespaces/default/resourcequotas"
        with server.client() as client:
            client.post(path, json=quota).raise_for_status()
            # Without a controller manager nobody else counts.
            client.put(
                f"{path}/none/status",
                json={**quota, "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}},
            ).raise_for_status()
            async with fleet.engine() as engine:
                try:
                    await engine.start(SLEEP)
                    await until(lambda: waits(engine, "cpu-1"))
                    assert "exceeded quota" in waits(engine, "cpu-1")
                finally:
                    client.delete(f"{path}/none").raise_for_status()
                await until(lambda: pid_of(engine))
                assert not waits(engine, "cpu-1")
                await engine.stop("cpu-1", 0)

    run(scenario)


def test_while_the_api_server_is_away_pods_stay_and_afterwards_nothing_is_missed(
    server: ApiServer, kubelets: Kubelets
) -> None:
    fleet = Fleet(server, "away")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(SLEEP)
            await until(lambda: pid_of(engine))
            before = pid_of(engine)
            server.kill()
            os.kill(kubelets.pids()["cpu-1"], signal.SIGKILL)
            with pytest.raises(ClusterUnavailable, match="name a kubeconfig file with --kubeconfig"):
                await ClusterApi("default", server.kubeconfig).connect()
            assert pid_of(engine) == before, "as last seen"
            # A start meanwhile is carried out later.
            await engine.start(ProcessSpec("cpu-2", "worker", ("1000",), "cpu"))
            await asyncio.to_thread(server.start)
            await until(lambda: fleet.exits and pid_of(engine) and pid_of(engine, "cpu-2"))
            assert len(fleet.exits) == 1
            assert engine.running()["cpu-1"].restarts == 1
            await asyncio.gather(engine.stop("cpu-1", 0), engine.stop("cpu-2", 0))

    run(scenario)


def test_a_stop_of_a_process_whose_node_is_lost_ends(server: ApiServer, tmp_path: Path) -> None:
    fleet = Fleet(server, "lost")

    async def scenario() -> None:
        with Kubelets(server, tmp_path / "pods", NODES) as kubelets:
            async with fleet.engine() as engine:
                await engine.start(ProcessSpec("a-1", "worker", ("1000",), "a"))
                await until(lambda: pid_of(engine, "a-1"))
                kubelets.lose("node-a")
                await engine.stop("a-1", 0.5)
                await until(lambda: not engine.running())

    run(scenario)


def test_the_process_of_a_lost_node_runs_on_another_one(server: ApiServer, kubelets: Kubelets) -> None:
    fleet = Fleet(server, "moved")

    async def scenario() -> None:
        async with fleet.engine() as engine:
            await engine.start(SLEEP)
            await until(lambda: pid_of(engine))
            before = pid_of(engine)
            node = next(node for node in NODES if kubelets.pids(node))
            kubelets.lose(node)
            assert pid_of(engine) == before, "nobody has noticed"
            assert engine.running()["cpu-1"].reachable
            kubelets.notice(node)
            await until(lambda: not engine.running()["cpu-1"].reachable)
            await engine.replace("cpu-1")
            await until(lambda: pid_of(engine) not in (0, before))
            assert kubelets.pids().keys() == {"cpu-1"}
            assert not kubelets.pids(node)
            await engine.stop("cpu-1", 0)

    run(scenario)


def test_a_watch_of_changes_that_the_server_has_forgotten_says_so(server: ApiServer) -> None:
    async def scenario() -> None:
        api = ClusterApi("default", server.kubeconfig)
        await api.connect()
        try:
            with pytest.raises(WatchExpired):
                async for _ in api.watch(PODS, "a=b", "1"):
                    pass
        finally:
            await api.close()

    run(scenario)
