"""The Kubernetes engine where its API misbehaves: lost watches, late events, refusals, answers that make no sense.

The cluster here is five methods in memory, with faults that a real API server does not show on demand; tests/peers runs
the engine against a real one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from isochrone.control.agents.process_number import PROCESS_VARIABLE
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.base import Exit
from isochrone.engines.kubernetes.names import POOL_LABEL, ROLE_LABEL
from isochrone.engines.kubernetes.pods.cluster_api import (
    NODES,
    PODS,
    ClusterApi,
    ClusterUnavailable,
    Document,
    Refused,
    Resource,
)
from isochrone.engines.kubernetes.pods.engine import KubernetesEngine
from isochrone.engines.kubernetes.pods.pod_documents import marked, model_of, spec_of

SPEC = ProcessSpec("cpu-1", "worker", ("serve",), "cpu")
GATEWAY = ProcessSpec("gw", "gateway", ("gateway",))


class Cluster(ClusterApi):
    """Objects in memory."""

    def __init__(self) -> None:
        super().__init__("default")
        self.objects: dict[Resource, dict[str, Any]] = {PODS: {}, NODES: {}}
        self.events: asyncio.Queue[tuple[str, Any] | Exception | None] = asyncio.Queue()
        self.lists: list[Document | Exception] = []
        self.creations: list[Exception] = []
        self.deletions: list[tuple[str, float | None]] = []
        self.refuses_deletions = 0
        self.is_watched = True
        self.watches = 0
        self._uids = 0

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def list(
        self, resource: Resource, selector: str, reduce: Callable[[Document], Document] = lambda document: document
    ) -> tuple[list[Document], str]:
        if resource is PODS and self.lists:
            given = self.lists.pop(0)
            if isinstance(given, Exception):
                raise given
        return [reduce(copy.deepcopy(each)) for each in self.objects[resource].values()], "1"

    async def watch(self, resource: Resource, selector: str, since: str) -> AsyncIterator[tuple[str, Document]]:
        if resource is NODES:
            await asyncio.Event().wait()
        self.watches += 1
        while (event := await self.events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    async def create(self, resource: Resource, document: Document) -> Document:
        if self.creations:
            raise self.creations.pop(0)
        self._uids += 1
        made: Any = copy.deepcopy(document)
        made["metadata"] |= {"uid": f"u{self._uids}", "resourceVersion": "1"}
        self.objects[resource][made["metadata"]["name"]] = made
        self._event("ADDED", made)
        return copy.deepcopy(made)  # type: ignore[no-any-return]

    async def delete(self, resource: Resource, name: str, uid: str = "", grace: float | None = None) -> None:
        self.deletions.append((name, grace))
        if self.refuses_deletions:
            self.refuses_deletions -= 1
            raise Refused(403, "not today")
        self.vanish(name)

    def vanish(self, name: str) -> None:
        gone = self.objects[PODS].pop(name, None)
        if gone is not None:
            self._event("DELETED", gone)

    def report(self, name: str, number_of_restarts: int = 0, ended: int | None = None, **metadata: Any) -> None:
        """What the kubelet says: the container runs, or ended with a status."""
        pod = self.objects[PODS][name]
        state = (
            {"running": {"startedAt": "2026-03-01T10:00:00Z"}} if ended is None else {"terminated": {"exitCode": ended}}
        )
        name = pod["spec"]["containers"][0]["name"]
        pod["status"] = {"containerStatuses": [{"name": name, "restartCount": number_of_restarts, "state": state}]}
        pod["metadata"] |= metadata
        self._event("MODIFIED", pod)

    def _event(self, kind: str, pod: Any) -> None:
        if self.is_watched:
            self.events.put_nowait((kind, copy.deepcopy(pod)))


def pod_of(spec: ProcessSpec) -> dict[str, Any]:
    container = {"name": "isochrone", "image": "none"}
    labels = {ROLE_LABEL: spec.role, POOL_LABEL: spec.pool}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": {"containers": [container]}}


class Bench:
    def __init__(self, pod_of: Callable[[ProcessSpec], Any] = pod_of) -> None:
        self.cluster = Cluster()
        self.engine = KubernetesEngine(self.cluster, "plant", pod_of)
        self.exits: list[Exit] = []
        self.engine.on_exit(self.exits.append)

    async def started(self, spec: ProcessSpec = SPEC) -> None:
        await self.engine.open()
        await self.engine.start(spec)
        await until(lambda: spec.name in self.cluster.objects[PODS])
        self.cluster.report(spec.name)
        await until(lambda: self.pid(spec.name))

    def pid(self, name: str = "cpu-1") -> int:
        running = self.engine.running().get(name)
        return running.pid if running is not None else 0

    def waits(self, name: str = "cpu-1") -> str:
        return self.engine.running()[name].waits


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def run(scenario: Callable[[Bench], Awaitable[None]], bench: Callable[[], Bench] = Bench) -> None:
    async def play() -> None:
        made = bench()
        try:
            await scenario(made)
        finally:
            await made.engine.close()

    asyncio.run(asyncio.wait_for(play(), 100))


def test_a_container_that_restarts_in_its_pod_is_told_without_its_number() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.started(GATEWAY)
        number = bench.pid("gw")
        bench.cluster.report("gw", 1)
        await until(lambda: bench.exits)
        (ended,) = bench.exits
        assert ended.pid == 0, "the new process has the same number: nobody may take it for the dead one"
        assert "restarted in its pod" in ended.how
        assert bench.pid("gw") == number
        assert bench.engine.running()["gw"].restarts == 1

    run(scenario)


def test_a_pod_that_vanishes_unseen_is_created_again() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.started()
        bench.cluster.is_watched = False
        before = bench.cluster.objects[PODS]["cpu-1"]["metadata"]["uid"]
        bench.cluster.vanish("cpu-1")
        bench.cluster.events.put_nowait(ClusterUnavailable("the connection is lost"))
        await until(
            lambda: bench.cluster.objects[PODS].get("cpu-1", {"metadata": {"uid": before}})["metadata"]["uid"] != before
        )

    run(scenario)


def test_a_pod_that_was_created_while_nobody_watched_and_vanished_is_created_again() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.engine.open()
        bench.cluster.is_watched = False
        await bench.engine.start(SPEC)
        await until(lambda: "cpu-1" in bench.cluster.objects[PODS])
        await asyncio.sleep(0)
        bench.cluster.vanish("cpu-1")
        bench.cluster.events.put_nowait(ClusterUnavailable("the connection is lost"))
        await until(lambda: "cpu-1" in bench.cluster.objects[PODS])

    run(scenario)


def test_an_answer_that_makes_no_sense_does_not_end_the_watch() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.started()
        bench.cluster.events.put_nowait(("MODIFIED", {"metadata": {}}))
        bench.cluster.events.put_nowait(KeyError("metadata"))
        await until(lambda: bench.cluster.watches >= 3)
        bench.cluster.vanish("cpu-1")
        await until(lambda: bench.exits)

    run(scenario)


def test_a_watch_that_ends_at_once_is_not_repeated_without_a_pause() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.engine.open()
        for _ in range(100):
            bench.cluster.events.put_nowait(None)
        await asyncio.sleep(0.5)
        assert bench.cluster.watches < 10

    run(scenario)


def test_a_fleet_that_cannot_be_read_delays_a_pod_and_does_not_lose_it() -> None:
    failures = [ValueError("this release cannot read the fleet")]

    def unreadable_at_first(spec: ProcessSpec) -> Any:
        if failures:
            raise failures.pop()
        return pod_of(spec)

    async def scenario(bench: Bench) -> None:
        await bench.engine.open()
        await bench.engine.start(SPEC)
        await until(lambda: bench.waits() == "this release cannot read the fleet")
        await until(lambda: "cpu-1" in bench.cluster.objects[PODS])
        await until(lambda: not bench.waits())

    run(scenario, lambda: Bench(unreadable_at_first))


def test_an_end_that_no_kubelet_has_seen_is_told_without_a_number_and_one_that_it_has_with_it() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.started(GATEWAY)
        bench.cluster.vanish("gw")
        await until(lambda: bench.exits)
        assert bench.exits[0].pid == 0, "its node may be cut off, and it may answer requests"
        await until(lambda: "gw" in bench.cluster.objects[PODS])
        bench.cluster.report("gw")
        await until(lambda: bench.pid("gw"))
        number = bench.pid("gw")
        bench.cluster.report("gw", ended=0, deletionTimestamp="2026-03-01T10:00:00Z")
        bench.cluster.vanish("gw")
        await until(lambda: len(bench.exits) == 2)
        assert bench.exits[1].pid == number

    run(scenario)


def test_a_stop_leaves_a_pod_its_own_time_and_a_hurry_does_not() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.started()
        await bench.engine.stop("cpu-1", 35.0)
        await bench.engine.start(SPEC)
        await until(lambda: "cpu-1" in bench.cluster.objects[PODS])
        await bench.engine.stop("cpu-1", 0.0)
        assert bench.cluster.deletions == [("cpu-1", None), ("cpu-1", 1.0)]

    run(scenario)


def test_a_deletion_that_is_refused_is_repeated_and_shown() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.started()
        bench.cluster.refuses_deletions = 2
        stopping = asyncio.create_task(bench.engine.stop("cpu-1", 0.0))
        await until(lambda: "not today" in bench.waits())
        await stopping
        assert bench.engine.running() == {}

    run(scenario)


def test_a_pod_that_is_being_deleted_on_a_lost_node_is_replaced_once() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.started()
        bench.cluster.objects[PODS]["cpu-1"]["spec"]["nodeName"] = "a"
        bench.cluster.report("cpu-1", deletionTimestamp="2026-03-01T10:00:00Z")
        lost = {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        bench.engine._nodes.objects["a"] = lost
        await until(lambda: not bench.engine.running()["cpu-1"].reachable)
        assert not bench.engine.running()["cpu-1"].stopping, "nobody asked the engine to stop it"
        assert bench.waits() == "node a is lost"
        bench.cluster.refuses_deletions = 1
        await bench.engine.replace("cpu-1")
        await bench.engine.replace("cpu-1")
        await until(lambda: bench.exits)
        assert bench.cluster.deletions == [("cpu-1", 0.0)] * 2, "one that is refused, and one that is not"

    run(scenario)


def test_a_name_that_another_pod_has_is_shown_after_a_while() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster.creations = [Refused(409, "already exists")] * 5
        await bench.engine.open()
        await bench.engine.start(SPEC)
        await until(lambda: "delete it" in bench.waits())
        await until(lambda: "cpu-1" in bench.cluster.objects[PODS])

    run(scenario)


def test_a_pod_of_this_name_with_another_spec_is_taken_for_what_it_is() -> None:
    async def scenario(bench: Bench) -> None:
        other = ProcessSpec("cpu-1", "worker", ("serve", "old"), "cpu")
        bench.cluster.creations = [Refused(409, "already exists")]
        await bench.engine.open()
        await bench.engine.start(SPEC)
        await until(lambda: not bench.cluster.creations)
        await bench.cluster.create(PODS, marked(pod_of(other), other, "plant"))
        await until(lambda: bench.engine.running()["cpu-1"].spec == other)

    run(scenario)


def test_a_pod_that_an_earlier_engine_was_stopping_ends() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster.is_watched = False
        await bench.cluster.create(PODS, marked(pod_of(SPEC), SPEC, "plant"))
        bench.cluster.report("cpu-1", deletionTimestamp="2026-03-01T10:00:00Z")
        bench.cluster.is_watched = True
        await bench.engine.open()
        assert bench.engine.running()["cpu-1"].stopping
        bench.cluster.vanish("cpu-1")
        await until(lambda: bench.engine.running() == {})
        assert [ended.again_in for ended in bench.exits] == [None]

    run(scenario)


def test_a_pod_of_another_release_keeps_its_role_and_pool() -> None:
    for spec in (SPEC, GATEWAY):
        pod: Any = marked(pod_of(spec), spec, "plant")
        pod["metadata"]["annotations"] = {}
        found = spec_of(pod, spec.name)
        assert (found.name, found.role, found.pool) == (spec.name, spec.role, spec.pool)
        assert found != spec


def test_of_nodes_and_pods_only_what_is_read_is_kept() -> None:
    async def scenario(bench: Bench) -> None:
        managed = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
        ready = {"type": "Ready", "status": "Unknown", "message": "the kubelet is silent"}
        bench.cluster.objects[NODES]["a"] = {
            "metadata": {"name": "a", "resourceVersion": "1", "managedFields": managed, "annotations": {"a": "b"}},
            "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {
                "images": [{"names": ["x"]}],
                "conditions": [{"type": "DiskPressure", "status": "False"}, ready],
            },
        }
        await bench.started()
        bench.cluster.report(
            "cpu-1", managedFields=managed, labels=bench.cluster.objects[PODS]["cpu-1"]["metadata"]["labels"]
        )
        await until(lambda: bench.engine._watch.objects["cpu-1"].get("status"))
        assert bench.engine._nodes.objects["a"] == {
            "metadata": {"name": "a"},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        }
        bench.cluster.objects[PODS]["cpu-1"]["spec"]["nodeName"] = "a"
        bench.cluster.report("cpu-1")
        await until(lambda: bench.waits() == "node a is lost")
        assert "managedFields" not in bench.engine._watch.objects["cpu-1"]["metadata"]

    run(scenario)


def test_a_pod_like_another_has_one_number_of_its_process() -> None:
    pod: Any = marked(pod_of(SPEC), SPEC, "plant")
    for _ in range(3):
        pod = marked(model_of(pod), SPEC, "plant")
    (container,) = pod["spec"]["containers"]
    assert [each["name"] for each in container["env"]] == [PROCESS_VARIABLE]


def test_a_pod_like_another_has_nothing_that_a_service_mesh_added() -> None:
    pod: Any = marked(pod_of(SPEC), SPEC, "plant")
    (own,) = pod["spec"]["containers"]
    own |= {"name": "worker", "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}]}
    mesh = {"name": "istio-proxy", "image": "mesh", "env": [{"name": "ISTIO", "value": "1"}]}
    pod["spec"] |= {
        "containers": [mesh, own],
        "initContainers": [{"name": "istio-init", "image": "mesh"}],
        "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "istio-token", "emptyDir": {}}],
        "nodeName": "a",
    }
    found = model_of(pod)["spec"]
    assert [each["name"] for each in found["containers"]] == ["worker"]
    assert found["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert not {"initContainers", "nodeName"} & found.keys()


def test_a_creation_whose_answer_was_lost_leaves_no_complaint() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster.creations = [ClusterUnavailable("no answer in time")]
        await bench.engine.open()
        await bench.engine.start(SPEC)
        await until(lambda: bench.waits())
        await bench.cluster.create(PODS, marked(pod_of(SPEC), SPEC, "plant"))
        bench.cluster.report("cpu-1")
        await until(lambda: bench.pid())
        assert bench.waits() == ""

    run(scenario)
