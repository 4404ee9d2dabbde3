"""What a fleet's pods need first: the namespace, its quota and the service accounts. Pure."""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render import scheduling
from isochrone.engines.kubernetes.render.autoscaling import most_workers
from isochrone.engines.kubernetes.render.pods import metadata


def base_objects(fleet: Fleet) -> list[dict[str, Any]]:
    found = [namespace(fleet), *service_accounts(fleet)]
    return [*found, quota(fleet)] if fleet.kubernetes.quota else found


def namespace(fleet: Fleet) -> dict[str, Any]:
    # The API server refuses pods that ask for more rights than ours do.
    security = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": names.namespace(fleet), "labels": {**names.common_labels(fleet), **security}},
    }


def service_accounts(fleet: Fleet) -> list[dict[str, Any]]:
    """One per role. Those that read model repositories carry the identity for an object store."""
    roles: tuple[names.Role, ...] = ("controller", "gateway", "worker")
    found = []
    for role in roles:
        annotations = dict(fleet.kubernetes.service_account_annotations) if role != "gateway" else {}
        more = {"annotations": annotations} if annotations else {}
        found.append(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": metadata(fleet, names.service_account(role), names.role_selector(fleet, role), **more),
                "automountServiceAccountToken": False,
            }
        )
    return found


def quota(fleet: Fleet) -> dict[str, Any]:
    """The fleet at its largest, with a second controller while they are replaced. A pool that grows beyond it by hand
    meets a clear refusal, not a full cluster."""
    control, kubernetes = fleet.control, fleet.kubernetes
    groups: list[tuple[int, float, int, dict[str, int]]] = [
        (control.count + 1, control.cpus, kubernetes.control_memory, {})
    ]
    groups += [(each.count, each.cpus, kubernetes.gateway_memory, {}) for each in fleet.gateways.values()]
    for pool in names.started_pools(fleet):
        memory, devices = scheduling.worker_memory(fleet, pool), scheduling.worker_devices(fleet, pool)
        groups.append((most_workers(fleet, pool), fleet.pools[pool].cpus, memory, devices))
    # Each pod's own figures are rounded; the sum must not be smaller than theirs.
    cpus = sum(count * max(1, round(cpu * 1000)) for count, cpu, _, _ in groups) / 1000
    mebibyte = 1 << 20
    memory_text = scheduling.memory_text(sum(count * -(-size // mebibyte) * mebibyte for count, _, size, _ in groups))
    hard = {
        "pods": str(sum(count for count, *_ in groups)),
        "requests.cpu": scheduling.cpu_text(cpus),
        "requests.memory": memory_text,
        "limits.memory": memory_text,
    }
    for name in dict.fromkeys(name for *_, extended in groups for name in extended):
        hard[f"requests.{name}"] = str(sum(count * extended.get(name, 0) for count, *_, extended in groups))
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata(fleet, "fleet"),
        "spec": {"hard": hard},
    }
