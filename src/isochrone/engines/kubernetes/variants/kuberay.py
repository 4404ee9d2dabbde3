"""A Ray cluster of KubeRay with room for the fleet: ``isochrone up --engine ray`` places the processes on it. Pure.

Facts: ray-project/kuberay 1.7, ray-operator/apis/ray/v1/raycluster_types.go. Each pool and each group of gateways is a
worker group: one Ray node per process, with the labels, resources and devices that the fleet asks for. The controllers
run on the head. Ray's autoscaler adds nodes for processes that wait for one. The probes are KubeRay's: they ask the
HTTP server of Ray's dashboard agent, which only ``ray[default]`` has (``initLivenessAndReadinessProbe`` of
ray-operator/controllers/ray/common/pod.go).
"""

from __future__ import annotations

import math
from typing import Any

import isochrone
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render import scheduling, volumes
from isochrone.engines.kubernetes.render.autoscaling import most_workers
from isochrone.engines.kubernetes.render.base import namespace
from isochrone.engines.kubernetes.render.control import fleet_map
from isochrone.engines.kubernetes.render.pods import (
    WRITABLE_HOME,
    container_security,
    metadata,
    pod_security,
    store_environment,
    variables,
    with_given_environment,
)
from isochrone.engines.kubernetes.render.volumes import Volumes
from isochrone.engines.kubernetes.variants.ray_network import ray_policies

#: Ray keeps objects and logs in memory on every node.
_RAY_MEMORY = 1 << 30
_HEAD_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001}


def ray_cluster(fleet: Fleet, text: str) -> list[dict[str, Any]]:
    """The cluster, and what its pods need first. ``text``: the fleet.yaml, without a password."""
    groups = [_gateway_group(fleet, group) for group in fleet.gateways]
    groups += [_worker_group(fleet, pool) for pool in names.started_pools(fleet)]
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata(fleet, fleet.name),
        "spec": {
            # By it KubeRay chooses HTTP probes (2.53 and newer); without it, a program that the image does not have.
            "rayVersion": fleet.kubernetes.ray_version,
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": 60, "securityContext": container_security()},
            "headGroupSpec": _head(fleet),
            "workerGroupSpecs": groups,
        },
    }
    return [namespace(fleet), *ray_policies(fleet), fleet_map(fleet, text), cluster]


def _head(fleet: Fleet) -> dict[str, Any]:
    memory = fleet.kubernetes.control_memory * fleet.control.count + _RAY_MEMORY
    # Two cores for Ray's own processes, which compete with the controllers.
    needs = fleet.control.model_copy(update={"cpus": fleet.control.cpus * fleet.control.count + 2})
    resources = scheduling.resources(needs, memory, cpu_limits=True)
    template = _template(fleet, "ray-head", resources, volumes.of_controller(fleet), {}, _HEAD_PORTS)
    # Ray's own count of cores: only the controllers find room on the head.
    cpus = math.ceil(fleet.control.cpus * fleet.control.count)
    return {"rayStartParams": {"num-cpus": str(cpus), "dashboard-host": "0.0.0.0"}, "template": template}


def _gateway_group(fleet: Fleet, group: str) -> dict[str, Any]:
    spec = fleet.gateways[group]
    selector = names.gateways_selector(fleet, group)
    resources = scheduling.resources(spec, fleet.kubernetes.gateway_memory + _RAY_MEMORY, cpu_limits=True)
    template = _template(
        fleet,
        "ray-worker",
        resources,
        volumes.of_gateway(fleet),
        scheduling.placement(spec, selector),
        {},
        selector,
        reads_models=False,
    )
    return _group(group, spec.count, spec.count, dict(spec.node_labels), {}, template)


def _worker_group(fleet: Fleet, pool: str) -> dict[str, Any]:
    spec = fleet.pools[pool]
    selector = names.pool_selector(fleet, pool)
    memory = scheduling.worker_memory(fleet, pool) + _RAY_MEMORY
    devices, storage = scheduling.worker_devices(fleet, pool), volumes.cache_storage(fleet, pool)
    resources = scheduling.resources(spec, memory, True, devices, storage)
    placement = {
        **scheduling.classes(fleet, pool),
        **scheduling.placement(spec, selector),
        **scheduling.tolerations(fleet, pool),
    }
    mounted = volumes.of_worker(fleet, pool)
    template = _template(fleet, "ray-worker", resources, mounted, placement, {}, selector)
    # Processes inherit the variables of the Ray node.
    template["spec"]["containers"][0]["env"] += variables(volumes.cache_environment(fleet, pool))
    most = max(most_workers(fleet, pool), spec.processes)
    custom = {name: f"{amount:g}" for name, amount in spec.resources.items()}
    return _group(pool, spec.processes, most, dict(spec.node_labels), custom, template)


def _group(
    name: str,
    count: int,
    most: int,
    node_labels: dict[str, str],
    custom: dict[str, str],
    template: dict[str, Any],
) -> dict[str, Any]:
    found: dict[str, Any] = {"groupName": name, "replicas": count, "minReplicas": min(count, 1), "maxReplicas": most}
    if node_labels:
        # A process that needs these labels finds them on the Ray node, too.
        found["labels"] = node_labels
    if custom:
        # Ray finds cores, memory and GPUs by itself.
        found["resources"] = custom
    return {**found, "rayStartParams": {}, "template": template}


def _template(
    fleet: Fleet,
    name: str,
    resources: dict[str, Any],
    mounted: Volumes,
    placement: dict[str, Any],
    ports: dict[str, int],
    selector: dict[str, str] | None = None,
    reads_models: bool = True,
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": name,
        "image": fleet.kubernetes.ray_image or f"isochrone-ray:{isochrone.__version__}",
        "imagePullPolicy": fleet.kubernetes.pull_policy,
        "env": [*store_environment(fleet), *WRITABLE_HOME],
        "resources": resources,
        # Ray writes below its root: its sessions are in the mounted /tmp, other files are not.
        "securityContext": {**container_security(), "readOnlyRootFilesystem": False},
        "volumeMounts": mounted.mounts,
    }
    if reads_models:
        container = with_given_environment(fleet, container)
    if ports:
        container["ports"] = [{"name": each, "containerPort": port} for each, port in ports.items()]
    spec: dict[str, Any] = {
        "securityContext": pod_security(),
        **placement,
        "containers": [container],
        "volumes": mounted.volumes,
    }
    if selector is not None:
        # Under Ray's autoscaler the operator replaces pods; the kubelet must not restart Ray in them.
        spec["restartPolicy"] = "Never"
        # The autoscaler beside the head needs the cluster's API, other nodes do not.
        spec["automountServiceAccountToken"] = False
    if fleet.kubernetes.pull_secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in fleet.kubernetes.pull_secrets]
    given = fleet.kubernetes.pod_labels if reads_models else {}
    return {"metadata": {"labels": {**given, **names.labels(fleet, selector or {})}}, "spec": spec}
