"""What pods say of their processes, from the objects that kubelets write."""

from __future__ import annotations

from typing import Any

import pytest

from isochrone.engines.kubernetes.pods.pod_states import is_lost, pod_state

STARTED = "2026-03-01T10:00:00Z"


def pod(status: dict[str, Any] | None = None, uid: str = "u1", **metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"metadata": {"name": "cpu-1", "uid": uid, **metadata}, "spec": {"nodeName": "a"}}
    return found if status is None else {**found, "status": status}


def container(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    return {
        "phase": "Running",
        "containerStatuses": [
            {"containerID": "c://1", "restartCount": restarts, "state": state, "lastState": last or {}},
        ],
    }


RUNNING = {"running": {"startedAt": STARTED}}


def test_a_running_container_has_the_number_of_its_pod() -> None:
    state = pod_state(pod(container(RUNNING, restarts=2), annotations={"isochrone-serving.github.io/number": "77"}))
    assert (state.name, state.uid, state.node, state.number, state.restarts) == ("cpu-1", "u1", "a", 77, 2)
    assert state.waits_for == ""


@pytest.mark.parametrize("annotations", [{}, {"isochrone-serving.github.io/number": "x"}, {"isochrone.dev/number": ""}])
def test_a_pod_without_a_number_runs_all_the_same(annotations: dict[str, str]) -> None:
    assert pod_state(pod(container(RUNNING), annotations=annotations)).number == 1


@pytest.mark.parametrize("status", [None, {}, {"phase": "Pending"}, {"phase": "Pending", "containerStatuses": []}])
def test_a_pod_that_was_just_created_runs_nothing_and_waits_for_nothing(status: dict[str, Any] | None) -> None:
    state = pod_state(pod(status))
    assert (state.number, state.waits_for, state.is_over, state.is_ending) == (0, "", False, False)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                ],
            },
            "Unschedulable: 0/3 nodes",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "Initialized", "status": "True"},
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes",
                    },
                ],
            },
            "Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable",
        ),
        (
            container({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            "ImagePullBackOff: no such",
        ),
        (container({"waiting": {"reason": "CrashLoopBackOff"}}), "CrashLoopBackOff"),
        (container({"terminated": {"reason": "OOMKilled", "exitCode": 137}}), "OOMKilled"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"},
            "Evicted: the node was low",
        ),
    ],
)
def test_the_reason_why_nothing_runs_is_the_clusters_own(status: dict[str, Any], reason: str) -> None:
    state = pod_state(pod(status))
    assert state.number == 0
    assert state.waits_for.startswith(reason)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_a_container_that_is_being_created_waits_for_nothing(reason: str) -> None:
    assert pod_state(pod(container({"waiting": {"reason": reason}}))).waits_for == ""


@pytest.mark.parametrize(
    ("ended", "status"),
    [({"exitCode": 1}, 1), ({"exitCode": 137}, -9), ({"exitCode": 0, "signal": 15}, -15), ({"exitCode": 255}, 255)],
)
def test_the_status_of_the_last_container_is_as_in_subprocess(ended: dict[str, int], status: int) -> None:
    assert pod_state(pod(container({"terminated": ended}))).last_status == status
    again = pod_state(pod(container(RUNNING, {"terminated": {**ended, "message": "cannot open"}}, 1)))
    assert (again.last_status, again.last_words) == (status, "cannot open")


def test_a_pod_that_is_deleted_ends_and_a_failed_one_is_over() -> None:
    assert pod_state(pod(container(RUNNING), deletionTimestamp=STARTED)).is_ending
    assert pod_state(pod({"phase": "Failed"})).is_over
    assert pod_state(pod({"phase": "Succeeded"})).is_over


def test_a_node_is_lost_when_the_cluster_hears_nothing_of_it() -> None:
    def node(status: str) -> dict[str, Any]:
        conditions = [{"type": "DiskPressure", "status": "Unknown"}, {"type": "Ready", "status": status}]
        return {"status": {"conditions": conditions}}

    assert is_lost(node("Unknown"))
    assert not is_lost(node("True"))
    assert not is_lost(node("False")), "it speaks, and stops its pods itself"
    assert not is_lost({})
