"""Nodes for the tests' API server: schedules pods, runs each as a process with a loopback address of its own, and
reports their states. It stands in for the scheduler, the kubelets and the network of pods, and for nothing else.

Every address in 127.0.0.0/8 is this machine's, so that pods can listen on equal ports: 0.0.0.0 in a command line is
replaced by the pod's address. A pod of the same name has the same address again, as if a Service were in front of it.
Images are not used: a container's command must be a program of this machine; without one, it is this isochrone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from kubernetes_api import ApiServer

_POLL_SECONDS = 0.1
_RESTART_SECONDS = 0.5

Document = Mapping[str, Any]


@dataclass
class _Pod:
    """A pod of one of the nodes."""

    document: Document
    node: str
    address: str
    process: subprocess.Popen[bytes] | None = None
    started: str = ""
    restarts: int = 0
    last: Document | None = None
    #: When it may start, or was asked to end, on the monotonic clock.
    start_at: float = 0.0
    ending_since: float | None = None
    reported: Document | None = field(default=None, repr=False)


class Kubelets:
    """``with Kubelets(server, directory, {"node-a": {"zone": "a"}, …})``. Nodes by name, with their labels."""

    def __init__(self, server: ApiServer, directory: Path, nodes: Mapping[str, Mapping[str, str]]) -> None:
        self._client = server.client()
        self._directory = directory
        self._nodes = dict(nodes)
        self._pods: dict[str, _Pod] = {}
        self._cordoned: set[str] = set()
        #: Nodes whose kubelet says nothing any more.
        self._lost: set[str] = set()
        #: By namespace and name.
        self._addresses: dict[tuple[str, str], str] = {}
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Kubelets:
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, labels in self._nodes.items():
            self._client.delete(f"/api/v1/nodes/{name}")
            node = {"metadata": {"name": name, "labels": dict(labels)}}
            self._client.post("/api/v1/nodes", json=node).raise_for_status()
            self._report_node(name, "True")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        for pod in self._pods.values():
            _kill(pod)
        self._client.close()

    # Faults.

    def cordon(self, node: str) -> None:
        """No further pod is scheduled there."""
        with self._lock:
            self._cordoned.add(node)

    def uncordon(self, node: str) -> None:
        with self._lock:
            self._cordoned.discard(node)

    def lose(self, node: str) -> None:
        """The node's processes die, and nobody tells the API server."""
        with self._lock:
            self._lost.add(node)
            for pod in self._pods.values():
                if pod.node == node:
                    _kill(pod)

    def notice(self, node: str) -> None:
        """What the cluster's node controller does, 40 s after a node was lost."""
        self._report_node(node, "Unknown")

    def address(self, namespace: str, name: str) -> str:
        """Of a pod, also before it runs."""
        used = len(self._addresses)
        return self._addresses.setdefault((namespace, name), f"127.88.{used // 250}.{used % 250 + 1}")

    def pids(self, node: str | None = None) -> dict[str, int]:
        """The processes of pods by name."""
        with self._lock:
            return {
                str(pod.document["metadata"]["name"]): pod.process.pid
                for pod in self._pods.values()
                if pod.process is not None and pod.process.poll() is None and node in (None, pod.node)
            }

    # One turn of all nodes.

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            try:
                answer = self._client.get("/api/v1/pods").raise_for_status().json()
            except httpx.HTTPError:
                continue  # the API server is away: nodes keep their pods
            with self._lock:
                present = {pod["metadata"]["uid"]: pod for pod in answer["items"]}
                for uid in [uid for uid in self._pods if uid not in present]:
                    _kill(self._pods.pop(uid))  # removed by force
                for uid, document in present.items():
                    try:
                        self._tend(uid, document)
                    except httpx.HTTPError:
                        pass  # it changed meanwhile; the next turn sees it

    def _tend(self, uid: str, document: Document) -> None:
        pod = self._pods.get(uid)
        node = document["spec"].get("nodeName")
        if node is None:
            if "deletionTimestamp" not in document["metadata"]:
                self._schedule(document)
            return
        if node in self._lost or node not in self._nodes:
            return
        if pod is None:
            pod = self._pods[uid] = _Pod(document, node, self.address(**_key(document)))
        pod.document = document
        if "deletionTimestamp" in document["metadata"]:
            self._end(uid, pod)
        else:
            self._keep(pod)
            self._report(pod)

    def _schedule(self, document: Document) -> None:
        wanted = (document["spec"].get("nodeSelector") or {}).items()
        there = [name for name, labels in self._nodes.items() if name not in self._cordoned | self._lost]
        fitting = [name for name in there if wanted <= self._nodes[name].items()]
        path = _path(document)
        if not fitting:
            message = f"0/{len(self._nodes)} nodes are available: {len(there)} node(s) didn't match node selector."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            if document["status"].get("conditions") != [condition]:
                self._patch(path, {"phase": "Pending", "conditions": [condition]})
            return
        held = [pod.node for pod in self._pods.values()]
        chosen = min(fitting, key=held.count)
        name = document["metadata"]["name"]
        binding = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": chosen}}
        self._client.post(f"{path}/binding", json=binding).raise_for_status()

    def _keep(self, pod: _Pod) -> None:
        if pod.process is not None and (code := pod.process.poll()) is not None:
            pod.process = None
            ended = {"signal": -code} if code < 0 else {}
            exit_code = 128 - code if code < 0 else code
            pod.last = {"terminated": {"exitCode": exit_code, "reason": "Error", "message": self._words(pod), **ended}}
            pod.restarts += 1
            pod.start_at = time.monotonic() + _RESTART_SECONDS
        if pod.process is None and time.monotonic() >= pod.start_at:
            self._start(pod)

    def _words(self, pod: _Pod) -> str:
        """The end of its log; of a process that was killed silently, that."""
        log = self._directory / f"{pod.document['metadata']['name']}.log"
        return log.read_text(errors="replace")[-2048:] or "killed"

    def _start(self, pod: _Pod) -> None:
        container = pod.document["spec"]["containers"][0]
        environment = {"POD_IP": pod.address}
        for variable in container.get("env") or ():
            environment[variable["name"]] = _value(variable, pod)
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        words = [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word) for word in words]
        words = [word.replace("0.0.0.0", pod.address).replace("$$(", "$(") for word in words]
        if not container.get("command"):
            words[:0] = [sys.executable, "-m", "isochrone"]  # the image's entry point
        with (self._directory / f"{pod.document['metadata']['name']}.log").open("ab") as log:
            pod.process = subprocess.Popen(
                words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        pod.started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _report(self, pod: _Pod, state: Document | None = None) -> None:
        name = pod.document["spec"]["containers"][0]["name"]
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        state = state or ({"running": {"startedAt": pod.started}} if pod.process is not None else waiting)
        status = {
            "phase": "Running",
            "podIP": pod.address,
            "podIPs": [{"ip": pod.address}],
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [
                {
                    "name": name,
                    "image": "none",
                    "imageID": "none",
                    "containerID": f"process://{pod.process.pid if pod.process is not None else 0}",
                    "ready": pod.process is not None,
                    "restartCount": pod.restarts,
                    "state": state,
                    "lastState": pod.last or {},
                }
            ],
        }
        if status != pod.reported:
            self._patch(_path(pod.document), status)
            pod.reported = status

    def _end(self, uid: str, pod: _Pod) -> None:
        now = time.monotonic()
        if pod.ending_since is None:
            pod.ending_since = now
            if pod.process is not None:
                pod.process.send_signal(signal.SIGTERM)
        if pod.process is not None and pod.process.poll() is None:
            if now - pod.ending_since > (pod.document["metadata"].get("deletionGracePeriodSeconds") or 0):
                pod.process.kill()
            return
        if pod.process is not None:
            code = pod.process.returncode
            pod.process, ended = None, {"exitCode": 128 - code if code < 0 else code}
            self._report(pod, {"terminated": ended})
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self._client.request("DELETE", _path(pod.document), json=options)

    def _report_node(self, name: str, ready: str) -> None:
        self._patch(f"/api/v1/nodes/{name}", {"conditions": [{"type": "Ready", "status": ready}]})

    def _patch(self, path: str, status: Document) -> None:
        headers = {"content-type": "application/merge-patch+json"}
        self._client.patch(f"{path}/status", json={"status": status}, headers=headers).raise_for_status()


def _key(document: Document) -> dict[str, str]:
    return {key: str(document["metadata"][key]) for key in ("namespace", "name")}


def _path(document: Document) -> str:
    return "/api/v1/namespaces/{namespace}/pods/{name}".format(**_key(document))


def _value(variable: Document, pod: _Pod) -> str:
    path = (variable.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath", "")
    known = {"status.podIP": pod.address, "metadata.name": str(pod.document["metadata"]["name"])}
    return known[path] if path else str(variable.get("value", ""))


def _kill(pod: _Pod) -> None:
    if pod.process is not None:
        pod.process.kill()
        pod.process.wait()
