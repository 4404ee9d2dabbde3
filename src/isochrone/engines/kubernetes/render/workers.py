"""The workers: a StatefulSet and a headless Service per pool, and its autoscaler. Pure."""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render import command_lines, probes, scheduling, volumes
from isochrone.engines.kubernetes.render.autoscaling import autoscaler, is_autoscaled
from isochrone.engines.kubernetes.render.disruption import budget
from isochrone.engines.kubernetes.render.pods import PodParts, health_port, metadata, pod_template, worker_image


def worker_objects(fleet: Fleet, pool: str) -> list[dict[str, Any]]:
    selector = names.pool_selector(fleet, pool)
    found = [_headless(fleet, pool), _stateful_set(fleet, pool), budget(fleet, pool, selector)]
    return [*found, autoscaler(fleet, pool)] if is_autoscaled(fleet, pool) else found


def _stateful_set(fleet: Fleet, pool: str) -> dict[str, Any]:
    selector = names.pool_selector(fleet, pool)
    # An autoscaler owns the number: a replicas that is applied again would undo what it decided.
    replicas = {} if is_autoscaled(fleet, pool) else {"replicas": fleet.pools[pool].processes}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(fleet, pool, selector),
        "spec": {
            "serviceName": names.headless_service(pool),
            **replicas,
            "ordinals": {"start": names.FIRST_NUMBER},
            # Workers do not depend on each other: all start at once.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "minReadySeconds": fleet.kubernetes.pool(pool).ready_seconds,
            "selector": {"matchLabels": selector},
            "template": pod_template(fleet, worker_parts(fleet, pool)),
        },
    }


def worker_parts(fleet: Fleet, pool: str) -> PodParts:
    spec = fleet.pools[pool]
    selector = names.pool_selector(fleet, pool)
    arguments = command_lines.worker(fleet, pool)
    memory = scheduling.worker_memory(fleet, pool)
    health = health_port(fleet, "worker")
    return PodParts(
        role="worker",
        labels={**names.labels(fleet, selector), **names.described(tier=spec.tier, device=spec.device)},
        image=worker_image(fleet, pool),
        arguments=arguments,
        ports={"http": names.HTTP_PORT, "grpc": names.GRPC_PORT, "metrics": names.METRICS_PORT, **health},
        probes=probes.of_worker(port="health" if health else "http"),
        resources=scheduling.resources(
            spec,
            memory,
            fleet.kubernetes.cpu_limits,
            scheduling.worker_devices(fleet, pool),
            volumes.cache_storage(fleet, pool),
        ),
        volumes=volumes.of_worker(fleet, pool),
        environment=volumes.cache_environment(fleet, pool),
        placement={
            **scheduling.classes(fleet, pool),
            **scheduling.placement(spec, selector),
            **scheduling.tolerations(fleet, pool),
        },
        grace_seconds=probes.grace_seconds(command_lines.exit_seconds(arguments)),
    )


def _headless(fleet: Fleet, pool: str) -> dict[str, Any]:
    """DNS names for workers. Gateways do not need it: they find workers in the store."""
    selector = names.pool_selector(fleet, pool)
    ports = {"http": names.HTTP_PORT, "grpc": names.GRPC_PORT, "metrics": names.METRICS_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(fleet, names.headless_service(pool), selector),
        "spec": {
            "clusterIP": "None",
            # A worker has its name while its models load, too.
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()],
        },
    }
