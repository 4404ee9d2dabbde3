"""The gateways: a StatefulSet with two Services per group. Pure.

A strict switch waits for every gateway that may serve, and a gateway that was lost without a farewell counts until one
of the same name takes its place. So gateways have stable names, and Kubernetes' promise that no two pods have the same
one: a StatefulSet, not a Deployment (decision 0019).
"""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render import command_lines, probes, scheduling, volumes
from isochrone.engines.kubernetes.render.disruption import budget
from isochrone.engines.kubernetes.render.pods import PodParts, has_tls, health_port, image, metadata, pod_template


def gateway_objects(fleet: Fleet, group: str) -> list[dict[str, Any]]:
    selector = names.gateways_selector(fleet, group)
    return [
        _service(fleet, group),
        _headless(fleet, group),
        _stateful_set(fleet, group),
        budget(fleet, group, selector),
    ]


def _stateful_set(fleet: Fleet, group: str) -> dict[str, Any]:
    selector = names.gateways_selector(fleet, group)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(fleet, group, selector),
        "spec": {
            "serviceName": names.gateway_headless_service(group),
            "replicas": fleet.gateways[group].count,
            "ordinals": {"start": names.FIRST_NUMBER},
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": selector},
            "template": pod_template(fleet, gateway_parts(fleet, group)),
        },
    }


def gateway_parts(fleet: Fleet, group: str) -> PodParts:
    spec, kubernetes = fleet.gateways[group], fleet.kubernetes
    selector = names.gateways_selector(fleet, group)
    arguments = command_lines.gateway(fleet, group)
    metrics = names.METRICS_PORT if spec.metrics_port >= 0 else 0
    health = health_port(fleet, "gateway", group)
    return PodParts(
        role="gateway",
        labels=names.labels(fleet, selector),
        image=image(fleet),
        arguments=arguments,
        ports={"http": names.GATEWAY_PORT, **({"metrics": metrics} if metrics else {}), **health},
        probes=probes.of_gateway(kubernetes.drain_seconds, "health" if health else "http"),
        resources=scheduling.resources(spec, kubernetes.gateway_memory, kubernetes.cpu_limits),
        volumes=volumes.of_gateway(fleet),
        placement=scheduling.placement(spec, selector),
        grace_seconds=probes.grace_seconds(command_lines.exit_seconds(arguments), kubernetes.drain_seconds),
        metrics_port=metrics,
    )


def _service(fleet: Fleet, group: str) -> dict[str, Any]:
    """Where callers send requests. Both ports lead to the one port of the pods, which speaks HTTP and gRPC; a proxy has
    to know which of them it shall speak."""
    selector = names.gateways_selector(fleet, group)
    annotations = dict(fleet.kubernetes.service_annotations)
    more = {"annotations": annotations} if annotations else {}
    tls = has_tls(fleet) and fleet.gateways[group].tls
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(fleet, group, selector, **more),
        "spec": {
            "type": fleet.kubernetes.service_type,
            "selector": selector,
            "ports": [
                {
                    "name": "http",
                    "port": names.GATEWAY_PORT,
                    "targetPort": "http",
                    "appProtocol": "https" if tls else "http",
                },
                {
                    "name": "grpc",
                    "port": names.GATEWAY_GRPC_PORT,
                    "targetPort": "http",
                    "appProtocol": "https" if tls else "kubernetes.io/h2c",
                },
            ],
        },
    }


def _headless(fleet: Fleet, group: str) -> dict[str, Any]:
    """For gRPC clients that balance by themselves: one address per gateway."""
    selector = names.gateways_selector(fleet, group)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(fleet, names.gateway_headless_service(group), selector),
        "spec": {
            "clusterIP": "None",
            "selector": selector,
            "ports": [{"name": "http", "port": names.GATEWAY_PORT, "targetPort": "http"}],
        },
    }
