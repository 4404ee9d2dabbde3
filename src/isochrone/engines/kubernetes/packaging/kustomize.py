"""A base with overlays for Kustomize: the manifests, a small copy for development, and one for production. Pure.

Overlays use what every Kustomize since 3.0 has: resources, and patches that name a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes.packaging.manifests import manifest_files
from isochrone.engines.kubernetes.packaging.yaml_text import yaml_text
from isochrone.engines.kubernetes.render.base import quota

_LEAST_IN_PRODUCTION = 2
_SMALL = {"requests": {"cpu": "100m"}}


def kustomize_files(fleet: Fleet, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """``parts``: the objects of the fleet."""
    manifests = manifest_files(parts)
    files = {f"base/{path}": text for path, text in manifests.items()}
    files["base/kustomization.yaml"] = _kustomization(sorted(path for path in manifests if "/" not in path), [])
    documents = [document for documents in parts.values() for document in documents]
    for overlay, patches in (("dev", list(_dev(documents))), ("production", list(_production(documents, fleet)))):
        named = {f"{patch['kind'].lower()}-{patch['metadata']['name']}.yaml": patch for patch in patches}
        files |= {f"overlays/{overlay}/{path}": yaml_text([patch]) for path, patch in named.items()}
        files[f"overlays/{overlay}/kustomization.yaml"] = _kustomization(["../../base"], list(named))
    return files


def _kustomization(resources: list[str], patches: list[str]) -> str:
    document: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }
    if patches:
        document["patches"] = [{"path": path} for path in patches]
    return yaml_text([document])


def _dev(documents: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One process of each kind, with little CPU."""
    for document in documents:
        if document["kind"] in ("StatefulSet", "Deployment"):
            name = document["spec"]["template"]["spec"]["containers"][0]["name"]
            pod = {"spec": {"containers": [{"name": name, "resources": _SMALL}]}}
            replicas = {"replicas": 1} if document["spec"].get("replicas", 0) > 1 else {}
            yield _patch(document, {**replicas, "template": pod})
        elif document["kind"] == "HorizontalPodAutoscaler":
            yield _patch(document, {"minReplicas": 1, "maxReplicas": 1})
        elif document["kind"] == "ScaledObject":
            yield _patch(document, {"minReplicaCount": 1, "maxReplicaCount": 1, "fallback": {"replicas": 1}})


def _production(documents: Sequence[Mapping[str, Any]], fleet: Fleet) -> Iterator[dict[str, Any]]:
    """At least two controllers and two gateways of each group, on different nodes."""
    for document in documents:
        if document["kind"] == "ResourceQuota":
            yield _patch(document, quota(_larger(fleet))["spec"])
        role = document["metadata"].get("labels", {}).get("app.kubernetes.io/component")
        if document["kind"] not in ("StatefulSet", "Deployment") or role == "worker":
            continue
        selector = document["spec"]["selector"]
        term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        spec: dict[str, Any] = {
            "replicas": max(_LEAST_IN_PRODUCTION, document["spec"]["replicas"]),
            "template": {"spec": {"affinity": apart}},
        }
        if document["kind"] == "Deployment":
            # There may be no node for one more.
            spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
        yield _patch(document, spec)


def _larger(fleet: Fleet) -> Fleet:
    """The fleet with the controllers and gateways of production."""
    control = fleet.control.model_copy(update={"count": max(_LEAST_IN_PRODUCTION, fleet.control.count)})
    gateways = {
        group: spec.model_copy(update={"count": max(_LEAST_IN_PRODUCTION, spec.count)})
        for group, spec in fleet.gateways.items()
    }
    return fleet.model_copy(update={"control": control, "gateways": gateways})


def _patch(document: Mapping[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    named = {key: document["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": named, "spec": spec}
