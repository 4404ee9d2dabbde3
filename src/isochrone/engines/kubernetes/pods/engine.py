"""Runs the processes of a fleet as pods of a Kubernetes cluster.

The kubelet restarts a container that ends. A pod that vanishes (its node was drained, somebody deleted it) is created
again by the engine, after a pause that grows. Pods outlive the engine: a new one adopts them. Each pod carries its
process's spec, so that the engine needs no memory of its own.

A process counts as ended only if its kubelet has said so. The end of a pod without that proves nothing: its node may be
cut off, and the process may answer requests. A container that is started again in its pod registers itself under the
same number: its death is told without one, so that nobody takes the new process for the dead one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.records import KUBERNETES
from isochrone.engines.base import Engine, Exit, Running
from isochrone.engines.kubernetes.names import FLEET_LABEL, PROCESS_LABEL
from isochrone.engines.kubernetes.pods.cluster_api import NODES, PODS, ClusterApi, Document, Refused
from isochrone.engines.kubernetes.pods.object_watch import ObjectWatch
from isochrone.engines.kubernetes.pods.pod_documents import marked, model_of, spec_of
from isochrone.engines.kubernetes.pods.pod_states import PodState, is_lost, pod_state, reduced_node, reduced_pod
from isochrone.engines.local.backoff import Backoff
from isochrone.errors import Unavailable

log = structlog.get_logger(__name__)

#: Seconds for a pod to vanish after its grace, before it is removed without its node's consent.
_REMOVED_SECONDS = 5.0
#: Seconds; Kubernetes knows no shorter grace that waits for the process to end.
_LEAST_GRACE = 1.0
#: Refusals of a name that is taken, until they are shown: an old pod of that name may be about to vanish.
_CONFLICTS = 3
_TAKEN = "a pod of this name is there that is not the fleet's; delete it"


class _Kept:
    """One process that runs until it is asked to stop."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.backoff = Backoff()
        #: Its pod as seen last; None: there is none.
        self.pod: PodState | None = None
        #: The document of its pod, also when that has vanished.
        self.last_pod: Document | None = None
        self.since = monotonic()
        self.restarts = 0
        self.stop_asked = False
        self.gone = asyncio.Event()
        #: Why no pod can be created, or deleted.
        self.refused = ""
        #: When its pod was created, and the uid of the pod whose node is lost and that is removed by force.
        self.created = 0.0
        self.removed_uid = ""
        #: The number of the process that the kubelet has seen to end; 0: none.
        self.ended_number = 0
        #: The end of the log of the process that ended last.
        self.last_words = ""
        self.is_creating = False


class KubernetesEngine(Engine):
    """The pods of one fleet in one namespace. ``pod_of``: the document of a process's pod; None: the fleet has no such
    process any more, and its last pod is the model of the next."""

    name = KUBERNETES
    adoptable = True

    def __init__(self, api: ClusterApi, fleet: str, pod_of: Callable[[ProcessSpec], Document | None]) -> None:
        super().__init__()
        self._api = api
        self._fleet = fleet
        self._pod_of = pod_of
        self._kept: dict[str, _Kept] = {}
        self._watch = ObjectWatch(api, PODS, f"{FLEET_LABEL}={fleet}", self._changed, self._listed, reduced_pod)
        self._nodes = ObjectWatch(api, NODES, "", lambda name: None, reduce=reduced_node)
        self._tasks = BackgroundTasks()

    async def open(self) -> None:
        """Adopt the pods of an earlier engine. Raises ``Unavailable``."""
        await self._api.connect()
        await self._watch.start()
        try:
            await self._nodes.start()
        except Refused as error:
            log.warning("lost nodes are noticed only when the cluster deletes their pods", error=str(error))

    async def start(self, spec: ProcessSpec) -> None:
        if spec.name in self._kept:
            raise ValueError(f"{spec.name} runs already")
        kept = self._kept[spec.name] = _Kept(spec)
        self._tasks.start(self._create(kept, 0.0))

    async def stop(self, name: str, grace: float) -> None:
        kept = self._kept.get(name)
        if kept is None:
            return
        kept.stop_asked = True
        if kept.pod is None and not kept.is_creating:
            del self._kept[name]
            return
        patience = grace
        if kept.pod is not None:
            # In a hurry: with 0 the object would vanish before the process. Otherwise the pod's own time.
            await self._delete(kept, kept.pod, None if grace else _LEAST_GRACE)
            patience = kept.pod.grace_seconds if grace else _LEAST_GRACE
        try:
            async with asyncio.timeout(patience + _REMOVED_SECONDS):
                await kept.gone.wait()
        except TimeoutError:
            # Its node does not answer. Only the object is removed: a process that still runs there loses its lease.
            if kept.pod is not None:
                await self._delete(kept, kept.pod, 0.0)

    def running(self) -> dict[str, Running]:
        return {
            name: Running(
                kept.pod.number if kept.pod is not None else 0,
                kept.spec,
                kept.since,
                kept.restarts,
                kept.stop_asked,
                host=kept.pod.address if kept.pod is not None else "",
                reachable=kept.pod is None or not self._is_on_a_lost_node(kept.pod),
                waits=self._waits(kept),
            )
            for name, kept in self._kept.items()
        }

    def _waits(self, kept: _Kept) -> str:
        if kept.refused or kept.pod is None:
            return kept.refused
        if self._is_on_a_lost_node(kept.pod):
            return f"node {kept.pod.node} is lost"
        return kept.pod.waits_for

    def last_lines(self, name: str, count: int) -> Sequence[str]:
        kept = self._kept.get(name)
        lines = kept.last_words.splitlines() if kept is not None else []
        return [line for line in lines if line.strip()][-count:]

    def log_place(self, name: str) -> str:
        return f"kubectl logs {name} --namespace {self._api.namespace}"

    def may_run(self, name: str, pid: int) -> bool:
        return name in self._kept

    async def replace(self, name: str) -> None:
        """Nobody on its node can confirm that it ended: if it still runs, it has lost its lease."""
        kept = self._kept.get(name)
        if kept is not None and kept.pod is not None and kept.removed_uid != kept.pod.uid:
            log.warning("a node is lost; its pod is replaced", node=kept.pod.node, process=name)
            kept.removed_uid = kept.pod.uid
            self._tasks.start(self._delete(kept, kept.pod, 0.0))

    async def close(self) -> None:
        await self._tasks.end()
        await self._watch.stop()
        await self._nodes.stop()
        await self._api.close()

    # What the cluster does.

    def _is_on_a_lost_node(self, pod: PodState) -> bool:
        node = self._nodes.objects.get(pod.node)
        return node is not None and is_lost(node)

    def _changed(self, name: str) -> None:
        """A pod appeared, changed or vanished."""
        document = self._watch.objects.get(name)
        if document is None:
            for kept in self._kept.values():
                if kept.pod is not None and kept.pod.name == name:
                    self._vanished(kept)
                    return
            return
        process = str((document["metadata"].get("labels") or {}).get(PROCESS_LABEL, ""))
        pod = pod_state(document)
        known = self._kept.get(process)
        if known is None:
            known = self._kept[process] = _Kept(spec_of(document, process))
            # An earlier engine was stopping it: what is desired is started anew.
            known.stop_asked = pod.is_ending
        elif known.pod is None or known.pod.uid != pod.uid:
            known.spec = spec_of(document, process)
        known.last_pod = model_of(document)
        self._seen(known, pod)

    def _listed(self, since: float) -> None:
        """After a list, which began at ``since``: pods that are not in it have vanished unseen."""
        for kept in list(self._kept.values()):
            if kept.pod is not None and kept.pod.name not in self._watch.objects and kept.created < since:
                self._vanished(kept)

    def _seen(self, kept: _Kept, pod: PodState) -> None:
        before, kept.pod, kept.refused = kept.pod, pod, ""
        if before is None or before.uid != pod.uid:
            kept.ended_number = 0
            kept.since = monotonic()
            before = None
        restarts = pod.restarts - before.restarts if before is not None else 0
        has_ended = before is not None and (restarts > 0 or (before.number and not pod.number))
        if before is not None and has_ended:
            kept.restarts += restarts
            kept.last_words = pod.last_words or kept.last_words
            kept.ended_number = before.number or kept.ended_number
            if before.number and not pod.is_over and not pod.is_ending:
                how = Exit(kept.spec, 0, pod.last_status, 0.0).how
                self._notify(Exit(kept.spec, 0, max(1, pod.last_status), 0.0, f"{how} and is restarted in its pod"))
        if pod.number and (has_ended or (before is not None and not before.number)):
            kept.since = monotonic()
            kept.ended_number = 0
        if pod.is_over and not pod.is_ending:
            # Its name is free for the next pod once this one is removed.
            self._tasks.start(self._delete(kept, pod, 0.0))

    def _vanished(self, kept: _Kept) -> None:
        pod, kept.pod = kept.pod, None
        assert pod is not None
        if kept.stop_asked:
            del self._kept[kept.spec.name]
            kept.gone.set()
            self._notify(Exit(kept.spec, kept.ended_number, 0, None))
            return
        pause = kept.backoff.pause(monotonic() - kept.since)
        kept.restarts += 1
        self._tasks.start(self._create(kept, pause))
        reason = f"lost its pod on node {pod.node}" if pod.node else "lost its pod"
        self._notify(Exit(kept.spec, kept.ended_number, max(1, pod.last_status), pause, reason))

    # What the engine does.

    async def _create(self, kept: _Kept, pause: float) -> None:
        """Create the pod of a process, until the cluster accepts it or the process is not wanted any more."""
        kept.is_creating = True
        conflicts = 0
        try:
            while True:
                await asyncio.sleep(pause)
                if kept.stop_asked or kept.pod is not None:
                    break
                try:
                    await self._create_once(kept)
                    break
                except Exception as error:
                    said = str(error) or type(error).__name__
                    if isinstance(error, Refused) and error.api_status == 409:
                        conflicts += 1
                        said = _TAKEN if conflicts > _CONFLICTS else ""
                    if said and said != kept.refused:
                        log.warning("a pod cannot be created; retried", process=kept.spec.name, error=said)
                    kept.refused = said
                    pause = kept.backoff.pause(0.0)
        finally:
            kept.is_creating = False
        if kept.stop_asked:
            if kept.pod is None:
                if self._kept.get(kept.spec.name) is kept:
                    del self._kept[kept.spec.name]
                kept.gone.set()
            else:
                await self._delete(kept, kept.pod, _LEAST_GRACE)  # the stop was requested during the start

    async def _create_once(self, kept: _Kept) -> None:
        pod = self._pod_of(kept.spec) or kept.last_pod
        if pod is None:
            raise Unavailable("the fleet has no such process any more")
        kept.created = monotonic()
        document = await self._api.create(PODS, marked(pod, kept.spec, self._fleet))
        kept.created = monotonic()
        if kept.pod is None and self._kept.get(kept.spec.name) is kept:
            self._watch.add(document)
            kept.last_pod = model_of(document)
            self._seen(kept, pod_state(document))

    async def _delete(self, kept: _Kept, pod: PodState, grace: float | None) -> None:
        """Until it is deleted. ``grace`` None: the pod's own."""
        backoff = Backoff()
        while kept.pod is None or kept.pod.uid == pod.uid:
            try:
                await self._api.delete(PODS, pod.name, pod.uid, grace)
                return
            except Unavailable as error:
                if kept.refused != str(error):
                    log.warning("a pod cannot be deleted; retried", pod=pod.name, error=str(error))
                kept.refused = str(error)
                await asyncio.sleep(backoff.pause(0.0))
