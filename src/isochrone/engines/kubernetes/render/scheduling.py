"""Where pods may run: resources, node labels, tolerations, and pods of one group apart or together. Pure."""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.kubernetes_spec import toleration
from isochrone.control.fleet.settings.sections import NodeNeeds
from isochrone.control.fleet.settings.spec import Fleet

_HOST = "kubernetes.io/hostname"
_ZONE = "topology.kubernetes.io/zone"
_MIB = 1 << 20
#: Memory for models of a pool that states none.
_MODEL_MEMORY = 2 << 30


def placement(needs: NodeNeeds, selector: dict[str, str]) -> dict[str, Any]:
    """Node labels and placement, as keys of a pod's spec."""
    found: dict[str, Any] = {"nodeSelector": dict(needs.node_labels)} if needs.node_labels else {}
    match needs.placement:
        case "spread":
            found["topologySpreadConstraints"] = [_spread(_HOST, selector), _spread(_ZONE, selector)]
        case "apart":
            found["affinity"] = {"podAntiAffinity": _required(selector)}
            found["topologySpreadConstraints"] = [_spread(_ZONE, selector)]
        case "together":
            found["affinity"] = {"podAffinity": _required(selector)}
    return found


def _spread(key: str, selector: dict[str, str]) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }


def _required(selector: dict[str, str]) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": selector}, "topologyKey": _HOST}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def tolerations(fleet: Fleet, pool: str) -> dict[str, Any]:
    given = fleet.kubernetes.pool(pool).tolerations
    return {"tolerations": [toleration(text) for text in given]} if given else {}


def classes(fleet: Fleet, pool: str) -> dict[str, Any]:
    """The RuntimeClass and the PriorityClass of a pool, as keys of a pod's spec."""
    own = fleet.kubernetes.pool(pool)
    given = {"runtimeClassName": own.runtime_class, "priorityClassName": own.priority_class}
    return {key: text for key, text in given.items() if text}


def resources(
    needs: NodeNeeds, memory: int, cpu_limits: bool, extended: dict[str, int] | None = None
) -> dict[str, Any]:
    """Requests and limits of a container. Memory is limited to its request, so that a node never runs out of it."""
    cpu, size = cpu_text(needs.cpus), memory_text(memory)
    extra = {name: str(amount) for name, amount in (extended or {}).items()}
    limits = {"cpu": cpu, "memory": size} if cpu_limits else {"memory": size}
    return {"requests": {"cpu": cpu, "memory": size, **extra}, "limits": {**limits, **extra}}


def worker_memory(fleet: Fleet, pool: str) -> int:
    given = fleet.kubernetes.pool(pool).memory
    return given or (fleet.pools[pool].memory or _MODEL_MEMORY) + fleet.kubernetes.overhead


def worker_devices(fleet: Fleet, pool: str) -> dict[str, int]:
    """Extended resources of one worker."""
    spec = fleet.pools[pool]
    gpus = {fleet.kubernetes.pool(pool).gpu_resource: int(spec.gpus)} if spec.gpus else {}
    return {**gpus, **{name: int(amount) for name, amount in spec.resources.items()}}


def has_gpus(fleet: Fleet, pool: str) -> bool:
    """Whether the workers of a pool compute on GPUs: whole ones, slices (MIG), or shared ones of ``device`` alone."""
    spec = fleet.pools[pool]
    return bool(spec.gpus) or spec.device == "gpu" or any(name.startswith("nvidia.com/") for name in spec.resources)


def cpu_text(cpus: float) -> str:
    """Whole cores as 2, parts as 250m."""
    millis = max(1, round(cpus * 1000))
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"


def memory_text(amount: int) -> str:
    """Whole Mi, rounded up; whole Gi as such."""
    mebibytes = max(1, -(-amount // _MIB))
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"
