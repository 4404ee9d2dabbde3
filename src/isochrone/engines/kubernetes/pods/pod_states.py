"""What the objects of pods and nodes say of the processes in them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isochrone.engines.kubernetes.names import NUMBER_ANNOTATION, ROLE_LABEL

#: Reasons of a waiting container that end by themselves.
_STARTING = frozenset(("", "ContainerCreating", "PodInitializing"))
_LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod."""

    name: str
    uid: str
    node: str
    #: Its address in the cluster; "": it has none yet.
    address: str
    #: The number that its process registers in place of its pid; 0: no container runs.
    number: int
    #: How often its container was started again.
    restarts: int
    #: Seconds that its process may take to end.
    grace_seconds: float
    #: It is being deleted.
    is_ending: bool
    #: Its containers ended and will not be started again: evicted, or its node is gone.
    is_over: bool
    #: As in ``subprocess``: the status of the container that ended last.
    last_status: int
    #: The end of that container's log.
    last_words: str
    #: Why no container runs; "": one runs, or is about to.
    waits_for: str


def pod_state(pod: Mapping[str, Any]) -> PodState:
    metadata, status = pod["metadata"], pod.get("status") or {}
    container = _own_status(pod)
    is_running = bool((container.get("state") or {}).get("running"))
    ended = _last_end(container)
    return PodState(
        name=metadata["name"],
        uid=metadata["uid"],
        node=(pod.get("spec") or {}).get("nodeName") or "",
        address=status.get("podIP") or "",
        number=_number(metadata) if is_running else 0,
        restarts=int(container.get("restartCount") or 0),
        grace_seconds=float((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 30),
        is_ending="deletionTimestamp" in metadata,
        is_over=status.get("phase") in ("Failed", "Succeeded"),
        last_status=_exit_status(ended),
        last_words=str(ended.get("message") or ""),
        waits_for="" if is_running else _waits_for(status, container),
    )


def own_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container of the fleet's process. A service mesh adds others, also in front of it (Istio with
    holdApplicationUntilProxyStarts); rendered pods name theirs as the role of the process."""
    containers: list[Mapping[str, Any]] = (pod.get("spec") or {}).get("containers") or [{}]
    role = (pod["metadata"].get("labels") or {}).get(ROLE_LABEL, "")
    return next((each for each in containers if each.get("name") == role), containers[0])


def _own_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of that container. Statuses come in any order: kubelets sort them by name."""
    name = own_container(pod).get("name")
    statuses: list[Mapping[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == name), {})


def is_lost(node: Mapping[str, Any]) -> bool:
    """Whether the cluster has heard nothing of a node for a while (40 s by default). One that is not ready speaks."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "Unknown" for each in conditions)


def reduced_node(node: Mapping[str, Any]) -> dict[str, Any]:
    """What ``is_lost`` reads. A whole node has tens of kilobytes: images, annotations, managed fields."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    kept = [{key: each.get(key) for key in ("type", "status")} for each in conditions if each.get("type") == "Ready"]
    return {"metadata": {"name": node["metadata"]["name"]}, "status": {"conditions": kept}}


def reduced_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod without the record of who changed which field, which is about half of it."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return {**pod, "metadata": metadata}


def _number(metadata: Mapping[str, Any]) -> int:
    text = (metadata.get("annotations") or {}).get(NUMBER_ANNOTATION, "")
    # A pod of another release runs, whatever its number.
    return int(text) if text.isdecimal() else 1


def _last_end(container: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("state", "lastState"):
        ended: Mapping[str, Any] = (container.get(key) or {}).get("terminated") or {}
        if ended:
            return ended
    return {}


def _exit_status(ended: Mapping[str, Any]) -> int:
    signal, code = int(ended.get("signal") or 0), int(ended.get("exitCode") or 0)
    # Container runtimes follow the shells: 128 and the signal.
    return -signal if signal else (128 - code if 128 < code < 160 else code)


def _waits_for(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    if status.get("phase") == "Failed":
        return _sentence(status.get("reason"), status.get("message")) or "the pod failed"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _sentence(condition.get("reason"), condition.get("message"))
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated")
    if waiting.get("reason", "") not in _STARTING:
        return _sentence(waiting["reason"], waiting.get("message"))
    return _sentence(ended.get("reason"), ended.get("message")) if ended else ""


def _sentence(reason: str | None, message: str | None) -> str:
    return ": ".join(filter(None, (reason, message)))[:_LONGEST_MESSAGE]
