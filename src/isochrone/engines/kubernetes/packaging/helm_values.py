"""Which fields of a fleet's objects are values of its Helm chart: their places, defaults and JSON schema. Pure.

What follows from fleet.yaml alone (command lines, names, probes) is no value: it is changed there and rendered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isochrone.engines.kubernetes import names

_COUNT = {"type": "integer", "minimum": 0, "maximum": 4096}
_IMAGE = {"type": "string", "pattern": r"^[^\s]+$", "description": "image reference, such as registry/isochrone:0.1.0"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_AMOUNTS = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?|Ki)?$"},
        ]
    },
}
_RESOURCES = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"requests": _AMOUNTS, "limits": _AMOUNTS},
    "required": ["requests"],
}
_TOLERATIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "key": {"type": "string"},
            "operator": {"enum": ["Exists", "Equal"]},
            "value": {"type": "string"},
            "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": {"type": "integer"},
        },
    },
}
_SECRETS = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    },
}

Step = str | int
_POD: tuple[Step, ...] = ("spec", "template", "spec")


@dataclass(frozen=True, slots=True)
class Slot:
    """A field of an object whose content is a value of the chart."""

    #: Where it is in the document.
    place: tuple[Step, ...]
    #: Where it is in the values.
    value: tuple[str, ...]
    default: Any
    schema: Mapping[str, Any]


def slots(document: Mapping[str, Any]) -> Iterator[Slot]:
    """The slots of one object."""
    kind, labels = document["kind"], document["metadata"].get("labels", {})
    group = _group(labels)
    spec: Mapping[str, Any] = document.get("spec", {})
    if kind in ("StatefulSet", "Deployment"):
        yield from _of_workload(spec, group)
    elif kind == "HorizontalPodAutoscaler":
        for key in ("minReplicas", "maxReplicas"):
            yield Slot(("spec", key), (*group, "autoscaling", key), spec[key], {**_COUNT, "minimum": 1})
    elif kind == "ScaledObject":
        # KEDA may scale to none.
        for key, least in (("minReplicas", 0), ("maxReplicas", 1)):
            place = ("spec", key.replace("Replicas", "ReplicaCount"))
            yield Slot(place, (*group, "autoscaling", key), spec[place[1]], {**_COUNT, "minimum": least})
    elif kind == "Service" and group[0] == "gateways" and spec.get("clusterIP") != "None":
        types = {"enum": ["ClusterIP", "LoadBalancer", "NodePort"]}
        yield Slot(("spec", "type"), (*group, "service", "type"), spec["type"], types)
        annotations = document["metadata"].get("annotations", {})
        yield Slot(("metadata", "annotations"), (*group, "service", "annotations"), annotations, _TEXTS)
    elif kind == "ServiceAccount":
        annotations = document["metadata"].get("annotations", {})
        role = labels["app.kubernetes.io/component"]
        yield Slot(("metadata", "annotations"), ("serviceAccounts", role, "annotations"), annotations, _TEXTS)
    elif kind == "ResourceQuota":
        yield Slot(("spec", "hard"), ("quota",), spec["hard"], _AMOUNTS)


def _of_workload(spec: Mapping[str, Any], group: tuple[str, ...]) -> Iterator[Slot]:
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    if "replicas" in spec:
        yield Slot(("spec", "replicas"), (*group, "replicas"), spec["replicas"], _COUNT)
    first: tuple[Step, ...] = (*_POD, "containers", 0)
    yield Slot((*first, "image"), (*group, "image"), container["image"], _IMAGE)
    policies = {"enum": ["IfNotPresent", "Always", "Never"]}
    yield Slot((*first, "imagePullPolicy"), ("imagePullPolicy",), container["imagePullPolicy"], policies)
    yield Slot((*first, "resources"), (*group, "resources"), container["resources"], _RESOURCES)
    yield Slot((*_POD, "nodeSelector"), (*group, "nodeSelector"), pod.get("nodeSelector", {}), _TEXTS)
    yield Slot((*_POD, "tolerations"), (*group, "tolerations"), pod.get("tolerations", []), _TOLERATIONS)
    yield Slot((*_POD, "imagePullSecrets"), ("imagePullSecrets",), pod.get("imagePullSecrets", []), _SECRETS)


def _group(labels: Mapping[str, str]) -> tuple[str, ...]:
    if names.POOL_LABEL in labels:
        return ("pools", labels[names.POOL_LABEL])
    if names.GATEWAYS_LABEL in labels:
        return ("gateways", labels[names.GATEWAYS_LABEL])
    return ("control",)


def values(found: list[Slot]) -> dict[str, Any]:
    """The defaults of all slots, as one tree."""
    tree: dict[str, Any] = {}
    for slot in found:
        section = tree
        for step in slot.value[:-1]:
            section = section.setdefault(step, {})
        section[slot.value[-1]] = slot.default
    return tree


def values_schema(found: list[Slot]) -> dict[str, Any]:
    """The JSON schema of the values: no other keys, and each of its own type."""
    root = _section()
    for slot in found:
        section = root
        for step in slot.value[:-1]:
            section = section["properties"].setdefault(step, _section())
        section["properties"][slot.value[-1]] = dict(slot.schema)
    # Helm merges this into every chart's values.
    root["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "values of the chart", **root}


def _section() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}
