"""The processes of a fleet on an engine: on machines as ``processes`` has them, or each in a pod of its own. Pure.

In pods every process listens on all addresses and on the usual port: each pod has its own address.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from isochrone.control.fleet.derived.processes import ProcessSpec, needs_of, processes
from isochrone.control.fleet.settings.process_names import controller_names, gateway_group, gateway_names, worker_names
from isochrone.control.fleet.settings.quantities import join_address
from isochrone.control.fleet.settings.sections import FleetSections, NodeNeeds, Pool
from isochrone.control.fleet.settings.security_spec import Audit
from isochrone.control.state.needs import Needs
from isochrone.control.state.records import KUBERNETES

#: Ports inside pods: of a worker (HTTP, gRPC, metrics), a gateway and a controller.
WORKER_PORTS = (8000, 8001, 8002)
GATEWAY_PORT, METRICS_PORT, CONTROL_PORT = 8000, 8002, 8003
#: Of workers and gateways with TLS: for probes, which show no certificate.
HEALTH_PORT = 8005
#: The Service of the controllers in a cluster.
CONTROL_SERVICE = "control"

#: The directory of fleet.yaml in pods: relative paths of the file refer to it, wherever it was applied from.
POD_DIRECTORY = Path("/srv/isochrone")

_EVERYWHERE = "0.0.0.0"
#: Keys of the section kubernetes that other objects are made of.
_NOT_OF_PODS = {
    *("namespace", "ray_image", "ray_version", "service_account_annotations", "service_type", "service_annotations"),
    *("client_namespaces", "monitoring_namespace", "autoscaler", "keda_namespace", "quota", "edge", "pools"),
    # Its flag makes the difference.
    "require_secure",
}
_NOT_OF_WORKERS = {"ready_seconds", "pending_per_worker"}


def processes_on(engine: str, fleet: FleetSections, directory: Path) -> dict[str, ProcessSpec]:
    """Every process by name, controllers first. ``directory`` is the file's."""
    return _in_pods(fleet) if engine == KUBERNETES else processes(fleet, directory, engine)


def _in_pods(fleet: FleetSections) -> dict[str, ProcessSpec]:
    one_of_each = _one_of_each(fleet)
    templates = {
        name: _guarded(fleet, spec, gateway_group(name, one_of_each) if spec.role == "gateway" else "")
        for name, spec in processes(one_of_each, POD_DIRECTORY).items()
    }
    controller, needs = templates[controller_names(one_of_each)[0]], _needs(fleet, fleet.control, "control")
    specs = [_copy(controller, name, needs) for name in controller_names(fleet)]
    for group, gateway in fleet.gateways.items():
        needs = _needs(fleet, gateway, group)
        template = templates[gateway_names(one_of_each, group)[0]]
        for name in gateway_names(fleet, group):
            # Processes that share a port elsewhere have a pod each.
            numbers = range(1, gateway.processes + 1)
            names = [name] if gateway.processes == 1 else [f"{name}.{number}" for number in numbers]
            specs += [_copy(template, each, needs) for each in names]
    for pool, settings in fleet.pools.items():
        needs = _needs(fleet, settings, pool)
        for name in worker_names(fleet, pool):
            template = templates[worker_names(one_of_each, pool)[0]]
            specs.append(_copy(template, name, needs, host=_EVERYWHERE))
    return {spec.name: spec for spec in specs}


def _guarded(fleet: FleetSections, spec: ProcessSpec, group: str) -> ProcessSpec:
    """With the flags that only pods have. ``group``: of a gateway."""
    # A gateway without TLS of its own is behind a proxy that has it.
    ends_elsewhere = spec.role == "gateway" and not fleet.gateways[group].tls
    secure = ("--require-secure",) if fleet.kubernetes.require_secure and not ends_elsewhere else ()
    health = has_health_port(fleet, spec.role, group)
    further = (*secure, *(("--health-port", str(HEALTH_PORT)) if health else ()))
    # Before the arguments of its pool, which come last.
    at = spec.arguments.index("--name")
    return replace(spec, arguments=(*spec.arguments[:at], *further, *spec.arguments[at:]))


def has_health_port(fleet: FleetSections, role: str, group: str = "") -> bool:
    """Whether probes of a process need a port of their own. ``group``: of a gateway."""
    if fleet.security.tls.cert is None or role == "controller":
        return False
    return role != "gateway" or fleet.gateways[group].tls


def _needs(fleet: FleetSections, section: NodeNeeds, group: str) -> Needs:
    return replace(needs_of(section, group, 1, 0), own_address=True, pod=_pod_settings(fleet, section, group))


def _pod_settings(fleet: FleetSections, section: NodeNeeds, group: str) -> str:
    """A digest of the keys that pods are made of: a change makes other pods."""
    kubernetes = fleet.kubernetes
    common = kubernetes.model_dump(mode="json", exclude=_NOT_OF_PODS)
    own = kubernetes.pool(group).model_dump(mode="json", exclude=_NOT_OF_WORKERS) if isinstance(section, Pool) else {}
    text = json.dumps([common, own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _one_of_each(fleet: FleetSections) -> FleetSections:
    """The fleet with one controller, and one process per group, with the addresses and ports of pods."""
    space = fleet.kubernetes.namespace or fleet.name
    suffixes = ("", f".{space}", f".{space}.svc", f".{space}.svc.cluster.local")
    services = (f"{CONTROL_SERVICE}{suffix}" for suffix in suffixes)
    control = fleet.control.model_copy(
        update={
            "count": 1,
            "listen": join_address(_EVERYWHERE, CONTROL_PORT),
            "hosts": tuple(dict.fromkeys((*services, *fleet.control.hosts))),
            # A file of this machine is not in a pod; the plan of an apply says so.
            "token_file": None,
        }
    )
    gateways = {
        group: gateway.model_copy(
            update={
                "count": 1,
                "processes": 1,
                "listen": join_address(_EVERYWHERE, GATEWAY_PORT),
                "metrics_port": METRICS_PORT if gateway.metrics_port >= 0 else -1,
            }
        )
        for group, gateway in fleet.gateways.items()
    }
    pools = {
        name: pool.model_copy(update={"workers": min(1, pool.workers), "warm": 0, "first_port": WORKER_PORTS[0]})
        for name, pool in fleet.pools.items()
    }
    # The same of the fleet's key, and of the directory of audit logs: what a pod writes there is lost with it.
    security = fleet.security.model_copy(update={"audit": Audit()})
    return fleet.model_copy(update={"control": control, "gateways": gateways, "pools": pools, "security": security})


def _copy(template: ProcessSpec, name: str, needs: Needs, host: str | None = None) -> ProcessSpec:
    """The same process under another name. Of a flag that is given twice, the first is the fleet's."""
    values = {"--name": name} | ({"--host": host} if host is not None else {})
    words = list(template.arguments)
    for index, word in enumerate(words[:-1]):
        if word in values:
            words[index + 1] = values.pop(word)
    return replace(template, name=name, arguments=tuple(words), needs=needs)
