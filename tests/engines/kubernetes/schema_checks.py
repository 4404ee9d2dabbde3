"""Validates documents: Kubernetes' own kinds by its official schemas, others by our reduced ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
from reduced_schemas import SCHEMAS

#: The first release with everything that is rendered as stable or on by default (docs/kubernetes.md), and a late one.
RELEASES = ("1.31", "1.37")


def check(document: dict[str, Any], release: str) -> None:
    """Raises an error that names the field."""
    if document["kind"] in SCHEMAS:
        jsonschema.Draft202012Validator(SCHEMAS[document["kind"]]).validate(document)
        for pod in _pods_in(document):
            kubernetes_validate.validate(pod, release, strict=True)
    else:
        kubernetes_validate.validate(document, release, strict=True)


def _pods_in(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods that an operator makes of a document, as Pods."""
    spec = document["spec"]
    if document["kind"] == "ClusterServingRuntime":
        yield _pod({"spec": {"containers": spec["containers"], "volumes": spec["volumes"]}})
    if document["kind"] == "RayCluster":
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            yield _pod(group["template"])


def _pod(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **template}
