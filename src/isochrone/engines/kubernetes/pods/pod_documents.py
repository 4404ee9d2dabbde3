"""Writes into pods what the engine finds them and compares them by, and reads it again. Pure."""

from __future__ import annotations

import secrets
from typing import Any, Literal

import msgspec

from isochrone.control.agents.process_number import PROCESS_VARIABLE
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.kubernetes.names import (
    FLEET_LABEL,
    NUMBER_ANNOTATION,
    POOL_LABEL,
    PROCESS_LABEL,
    ROLE_LABEL,
    SPEC_ANNOTATION,
)
from isochrone.engines.kubernetes.pods.cluster_api import Document

_NUMBERS = 1 << 31

_encoder = msgspec.json.Encoder()


def marked(pod: Document, spec: ProcessSpec, fleet: str) -> Document:
    """The pod with what the engine finds and compares it by."""
    metadata = pod.get("metadata", {})
    labels = {**metadata.get("labels", {}), FLEET_LABEL: fleet, PROCESS_LABEL: spec.name}
    number = str(secrets.randbelow(_NUMBERS) + 1)
    annotations = {
        **metadata.get("annotations", {}),
        SPEC_ANNOTATION: _encoder.encode(spec).decode(),
        NUMBER_ANNOTATION: number,
    }
    first, *others = pod["spec"]["containers"]
    # In containers all processes have the same pid.
    environment = [*first.get("env", ()), {"name": PROCESS_VARIABLE, "value": number}]
    return {
        **pod,
        "metadata": {**metadata, "name": spec.name, "labels": labels, "annotations": annotations},
        "spec": {
            **pod["spec"],
            "containers": [
                # The end of its log is in its status when it fails.
                {**first, "env": environment, "terminationMessagePolicy": "FallbackToLogsOnError"},
                *others,
            ],
        },
    }


def spec_of(pod: Document, process: str) -> ProcessSpec:
    """The spec in a pod's annotation. One that another release wrote equals none of ours: the process is replaced."""
    metadata = pod["metadata"]
    try:
        return msgspec.json.decode((metadata.get("annotations") or {}).get(SPEC_ANNOTATION, ""), type=ProcessSpec)
    except msgspec.MsgspecError:
        labels = metadata.get("labels") or {}
        roles: dict[str, Literal["controller", "gateway", "worker"]] = {
            "controller": "controller",
            "gateway": "gateway",
        }
        return ProcessSpec(process, roles.get(labels.get(ROLE_LABEL, ""), "worker"), (), labels.get(POOL_LABEL, ""))


def model_of(pod: Document) -> dict[str, Any]:
    """A pod to make another one like it, without what the cluster has added."""
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": pod["metadata"].get("labels") or {}},
        "spec": spec,
    }
