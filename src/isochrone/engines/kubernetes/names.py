"""Names, labels, selectors and ports of a fleet's objects in a cluster. Pure.

The pods of a pool or a group of gateways have the names that ``isochrone status`` shows: the StatefulSet ``cpu`` makes
the pods ``cpu-1``, ``cpu-2``, which register under these names. So a namespace holds one fleet.
"""

from __future__ import annotations

import re
from typing import Literal

from isochrone.control.fleet.derived.engine_processes import (
    CONTROL_PORT,
    CONTROL_SERVICE,
    GATEWAY_PORT,
    HEALTH_PORT,
    WORKER_PORTS,
)
from isochrone.control.fleet.settings.spec import Fleet

__all__ = ["CONTROL_PORT", "GATEWAY_PORT", "HEALTH_PORT"]

Role = Literal["controller", "gateway", "worker", "engine"]

#: Prefix of own label keys.
PREFIX = "isochrone-serving.github.io"
POOL_LABEL = f"{PREFIX}/pool"
GATEWAYS_LABEL = f"{PREFIX}/gateways"
TIER_LABEL = f"{PREFIX}/tier"
DEVICE_LABEL = f"{PREFIX}/device"
#: Pods with this label (and value "true") may call the control API.
CLIENT_LABEL = f"{PREFIX}/control-client"
#: Labels and annotations of pods that the engine makes: the fleet, the process, its spec, its number.
FLEET_LABEL = f"{PREFIX}/fleet-name"
ROLE_LABEL = "app.kubernetes.io/component"
PROCESS_LABEL = f"{PREFIX}/process"
SPEC_ANNOTATION = f"{PREFIX}/spec"
NUMBER_ANNOTATION = f"{PREFIX}/number"

#: What keeps the objects current, as a label says.
MANAGER = "isochrone-render"
CONTROL = CONTROL_SERVICE
ENGINE = "engine"
#: The ConfigMap with the fleet.yaml, and its key.
FLEET_MAP = "fleet"
FLEET_FILE = "fleet.yaml"
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
#: A StatefulSet's name, a hash and a number must fit into a label of 63 characters.
LONGEST_NAME = 50

# Ports inside pods: Triton's for workers; every worker has the same.
HTTP_PORT, GRPC_PORT, METRICS_PORT = WORKER_PORTS
#: Of a gateway's Service, for proxies: the same port of the pods, announced as HTTP/2.
GATEWAY_GRPC_PORT = 8001
#: Of the controllers' scaler for KEDA.
SCALER_PORT = 8004
#: Of API servers, behind their Service and on their own machines: those of kubeadm, minikube and MicroK8s, too.
API_PORTS = (443, 6443, 8443, 16443)

#: The first number in the names of workers and gateways, as in cpu-1.
FIRST_NUMBER = 1


def namespace(fleet: Fleet) -> str:
    return fleet.kubernetes.namespace or fleet.name


def headless_service(pool: str) -> str:
    """The Service that gives each worker of a pool a DNS name: cpu-1.cpu-workers."""
    return f"{pool}-workers"


def gateway_headless_service(group: str) -> str:
    return f"{group}-gateways"


def service_account(role: Role) -> str:
    return f"isochrone-{role}"


def common_labels(fleet: Fleet) -> dict[str, str]:
    """Labels of every object of a fleet."""
    return {
        **fleet_selector(fleet),
        "app.kubernetes.io/part-of": "isochrone",
        "app.kubernetes.io/managed-by": MANAGER,
    }


def fleet_selector(fleet: Fleet) -> dict[str, str]:
    """Selects all pods of the fleet, and no others of its namespace."""
    return {"app.kubernetes.io/name": "isochrone", "app.kubernetes.io/instance": fleet.name}


def role_selector(fleet: Fleet, role: Role) -> dict[str, str]:
    """Selects all pods of a role."""
    return {**fleet_selector(fleet), ROLE_LABEL: role}


def pool_selector(fleet: Fleet, pool: str) -> dict[str, str]:
    return {**role_selector(fleet, "worker"), POOL_LABEL: pool}


def gateways_selector(fleet: Fleet, group: str) -> dict[str, str]:
    return {**role_selector(fleet, "gateway"), GATEWAYS_LABEL: group}


def control_selector(fleet: Fleet) -> dict[str, str]:
    return role_selector(fleet, "controller")


def labels(fleet: Fleet, selector: dict[str, str]) -> dict[str, str]:
    """The labels of an object that belongs to the pods of a selector."""
    return {**common_labels(fleet), **selector}


def described(**texts: str) -> dict[str, str]:
    """Labels for tier and device, as far as a label can hold the text."""
    keys = {"tier": TIER_LABEL, "device": DEVICE_LABEL}
    return {keys[name]: text for name, text in texts.items() if LABEL_VALUE.fullmatch(text)}


def started_pools(fleet: Fleet) -> list[str]:
    """Pools whose workers the cluster runs: not those of servers that run elsewhere."""
    return [pool for pool, spec in fleet.pools.items() if not spec.addresses]
