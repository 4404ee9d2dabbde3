"""A fleet whose pods the engine makes: everything around the pods, and the engine with the rights that it needs. Pure.

``isochrone up --engine kubernetes`` runs as a Deployment of one. It may make and delete pods of its namespace and read
nodes, and nothing else; pods of the fleet itself have no rights at all.
"""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render import scheduling, volumes
from isochrone.engines.kubernetes.render.command_lines import DIRECTORY
from isochrone.engines.kubernetes.render.fleet_objects import parts
from isochrone.engines.kubernetes.render.network import object_stores
from isochrone.engines.kubernetes.render.pods import PodParts, image, metadata, pod_template

Document = dict[str, Any]

#: Kinds that make pods or count them: a fleet grows by ``isochrone scale``, up to the limits of its pools.
_LEFT_OUT = frozenset(("StatefulSet", "Deployment", "HorizontalPodAutoscaler", "ScaledObject", "ResourceQuota"))
_MEMORY = 256 << 20
_GRACE_SECONDS = 30


def engine_parts(fleet: Fleet, text: str) -> dict[str, list[Document]]:
    """The objects by part. ``text``: the fleet.yaml, without a password."""
    # No autoscaler changes the number of pods that the engine makes: controllers need not serve KEDA.
    kubernetes = fleet.kubernetes.model_copy(update={"autoscaler": "hpa"})
    fleet = fleet.model_copy(update={"kubernetes": kubernetes})
    found = {
        part: [each for document in documents for each in _adapted(fleet, document)]
        for part, documents in parts(fleet, text).items()
    }
    return {**{part: documents for part, documents in found.items() if documents}, "engine": _engine(fleet)}


def _adapted(fleet: Fleet, document: Document) -> list[Document]:
    """What is left of a document. A budget of pods without a controller of Kubernetes may only say how many must stay;
    a group of one has none, since nobody could drain its node."""
    if document["kind"] in _LEFT_OUT:
        return []
    if document["kind"] != "PodDisruptionBudget":
        return [document]
    count = _counts(fleet)[document["metadata"]["name"]]
    spec = {key: value for key, value in document["spec"].items() if key != "maxUnavailable"}
    return [{**document, "spec": {"minAvailable": max(1, count // 2), **spec}}] if count > 1 else []


def _counts(fleet: Fleet) -> dict[str, int]:
    """The number of pods of each group."""
    gateways = {group: spec.count for group, spec in fleet.gateways.items()}
    workers = {pool: fleet.pools[pool].processes for pool in names.started_pools(fleet)}
    return {names.CONTROL: fleet.control.count, **gateways, **workers}


def _engine(fleet: Fleet) -> list[Document]:
    selector = names.role_selector(fleet, "engine")
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(
            fleet,
            names.service_account("engine"),
            selector,
            **_annotations(fleet),
        ),
        "automountServiceAccountToken": False,
    }
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]}
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    # A name of the whole cluster: another namespace may have a fleet, too.
    cluster_name = f"isochrone-engine-{names.namespace(fleet)}"
    return [
        account,
        *_granted(fleet, "Role", names.service_account("engine"), pods),
        *_granted(fleet, "ClusterRole", cluster_name, nodes),
        *_networks(fleet, selector),
        _deployment(fleet, selector),
    ]


def _annotations(fleet: Fleet) -> dict[str, Any]:
    """It lists model repositories, as controllers do."""
    given = dict(fleet.kubernetes.service_account_annotations)
    return {"annotations": given} if given else {}


def _granted(fleet: Fleet, kind: str, name: str, rule: Document) -> list[Document]:
    """A role and its binding to the engine."""
    own = metadata(fleet, name)
    if kind == "ClusterRole":
        del own["namespace"]
    subject = {
        "kind": "ServiceAccount",
        "name": names.service_account("engine"),
        "namespace": names.namespace(fleet),
    }
    version = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": kind, "metadata": own, "rules": [rule]},
        {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": own,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [subject],
        },
    ]


def _networks(fleet: Fleet, selector: dict[str, str]) -> list[Document]:
    """It calls the API server, and asks its processes whether they serve. Nobody calls it."""
    fleet_pods = names.fleet_selector(fleet)
    asked = _ports(*dict.fromkeys((names.HTTP_PORT, names.GATEWAY_PORT, names.CONTROL_PORT)))
    own = {
        "podSelector": {"matchLabels": selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [
            {"ports": _ports(*names.API_PORTS)},
            {"to": [{"podSelector": {"matchLabels": fleet_pods}}], "ports": asked},
            *object_stores(fleet),
        ],
    }
    others = {
        "podSelector": {"matchLabels": fleet_pods},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": selector}}], "ports": asked}],
    }
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(fleet, name, selector),
            "spec": spec,
        }
        for name, spec in ((names.ENGINE, own), ("from-engine", others))
    ]


def _ports(*ports: int) -> list[Document]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _deployment(fleet: Fleet, selector: dict[str, str]) -> Document:
    # It resolves models as a controller does, and so needs the same volumes.
    mounted = volumes.of_controller(fleet)
    mounted.add({"name": "state", "emptyDir": {}}, {"mountPath": str(DIRECTORY / "state")})
    parts_of_pod = PodParts(
        role="engine",
        labels={**names.labels(fleet, selector), names.CLIENT_LABEL: "true"},
        image=image(fleet),
        arguments=["up", "--state", str(DIRECTORY), "--engine", "kubernetes"],
        ports={},
        probes={},
        resources=scheduling.resources(
            fleet.control.model_copy(update={"cpus": 0.25}), _MEMORY, fleet.kubernetes.cpu_limits
        ),
        volumes=mounted,
        placement=scheduling.placement(fleet.control, selector),
        grace_seconds=_GRACE_SECONDS,
        metrics_port=0,
    )
    template = pod_template(fleet, parts_of_pod)
    template["spec"]["automountServiceAccountToken"] = True
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(fleet, names.ENGINE, selector),
        "spec": {
            "replicas": 1,
            # Never two at once.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": template,
        },
    }
