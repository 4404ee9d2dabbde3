"""Pod templates: one container, without rights. Pure.

They fit Kubernetes' Pod Security Standard "restricted": no root, no capabilities, a read-only root file system, the
runtime's seccomp profile, no token of the cluster's API.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import isochrone
from isochrone.control.fleet.derived.engine_processes import has_health_port
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.command_lines import POD_NAME
from isochrone.engines.kubernetes.render.scheduling import has_gpus
from isochrone.engines.kubernetes.render.volumes import Volumes
from isochrone.store.etcd.address import PASSWORD_VARIABLE, read_address, split_password

#: The user of the images (deploy/Containerfile).
USER = 10001
#: Without it the cluster autoscaler keeps every node with one of our pods: they have a directory of their own and, if
#: the engine makes them, no controller of Kubernetes. Budgets hold for its evictions, too.
_MAY_MOVE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
#: For a read-only root file system.
WRITABLE_HOME = [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]


def image(fleet: Fleet) -> str:
    return fleet.kubernetes.image or f"isochrone:{isochrone.__version__}"


def worker_image(fleet: Fleet, pool: str) -> str:
    given = fleet.kubernetes.pool(pool).image
    gpu = fleet.kubernetes.gpu_image or f"isochrone-gpu:{isochrone.__version__}"
    return given or (gpu if has_gpus(fleet, pool) else image(fleet))


def container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        # Without it the kubelet changes the owner of every file of a large repository at each start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def environment(fleet: Fleet) -> list[dict[str, Any]]:
    own_name = {"name": POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [own_name, *store_environment(fleet), *WRITABLE_HOME]


def variables(given: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": text} for name, text in given.items()]


def with_given_environment(fleet: Fleet, container: dict[str, Any]) -> dict[str, Any]:
    """The container with the variables of fleet.yaml, for processes that read model repositories."""
    # The kubelet must not expand anything in them.
    given = [{"name": name, "value": text.replace("$(", "$$(")} for name, text in fleet.kubernetes.env.items()]
    secret = fleet.kubernetes.env_from_secret
    source = {"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}
    return {**container, "env": [*container["env"], *given], **source}


def store_environment(fleet: Fleet) -> list[dict[str, Any]]:
    """The store's password, where its URL names a user."""
    secret = store_secret(fleet)
    if not secret:
        return []
    return [{"name": PASSWORD_VARIABLE, "valueFrom": {"secretKeyRef": {"name": secret, "key": "password"}}}]


def store_secret(fleet: Fleet) -> str:
    """The Secret with the store's password; "": the store has no user."""
    if fleet.kubernetes.store_secret:
        return fleet.kubernetes.store_secret
    return f"{fleet.name}-store" if read_address(split_password(fleet.store.url)[0]).user else ""


def has_tls(fleet: Fleet) -> bool:
    """Whether workers, controllers and metrics ports have TLS; gateways may leave that of their callers to a proxy."""
    return fleet.security.tls.cert is not None


def health_port(fleet: Fleet, role: names.Role, group: str = "") -> dict[str, int]:
    """The port of a pod that its probes ask, where the others want certificates. ``group``: of a gateway."""
    return {"health": names.HEALTH_PORT} if has_health_port(fleet, role, group) else {}


@dataclass(frozen=True, slots=True)
class PodParts:
    """What differs between the pods of a fleet."""

    role: names.Role
    labels: dict[str, str]
    image: str
    arguments: list[str]
    #: By name.
    ports: dict[str, int]
    #: Probes and lifecycle, as keys of the container.
    probes: dict[str, Any]
    resources: dict[str, Any]
    volumes: Volumes
    #: Scheduling, as keys of the pod's spec.
    placement: dict[str, Any]
    grace_seconds: int
    annotations: dict[str, str] = field(default_factory=dict)
    #: Variables of this role alone.
    environment: dict[str, str] = field(default_factory=dict)
    #: The port of /metrics; 0: none.
    metrics_port: int = names.METRICS_PORT


def pod_template(fleet: Fleet, parts: PodParts) -> dict[str, Any]:
    annotations = {**_MAY_MOVE, **parts.annotations}
    if parts.metrics_port:
        annotations |= {"prometheus.io/scrape": "true", "prometheus.io/port": str(parts.metrics_port)}
        annotations |= {"prometheus.io/scheme": "https"} if has_tls(fleet) else {}
    metadata = {"labels": parts.labels, "annotations": annotations}
    if parts.role != "gateway":
        metadata["labels"] = {**fleet.kubernetes.pod_labels, **parts.labels}
    container: dict[str, Any] = {
        "name": parts.role,
        "image": parts.image,
        "imagePullPolicy": fleet.kubernetes.pull_policy,
        "args": parts.arguments,
        "env": [*environment(fleet), *variables(parts.environment)],
        "ports": [{"name": name, "containerPort": port} for name, port in parts.ports.items()],
        **parts.probes,
        "resources": parts.resources,
        "securityContext": container_security(),
        "volumeMounts": parts.volumes.mounts,
    }
    if parts.role != "gateway":
        container = with_given_environment(fleet, container)
    spec: dict[str, Any] = {
        "serviceAccountName": names.service_account(parts.role),
        "automountServiceAccountToken": False,
        # A pod of a namespace with many Services would get all of them as variables.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": parts.grace_seconds,
        "securityContext": pod_security(),
        **parts.placement,
        "containers": [container],
        "volumes": parts.volumes.volumes,
    }
    if fleet.kubernetes.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in fleet.kubernetes.pull_secrets]
    return {"metadata": metadata, "spec": spec}


def metadata(fleet: Fleet, name: str, selector: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """The metadata of an object in the fleet's namespace."""
    labels = names.labels(fleet, selector or {})
    return {"name": name, "namespace": names.namespace(fleet), "labels": labels, **more}
