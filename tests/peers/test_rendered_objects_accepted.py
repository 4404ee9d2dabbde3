"""A real API server accepts the rendered objects of three fleets: names, labels, quantities, selectors, probes.

It is Debian's, of release 1.20, and does not know later fields: they are taken out first, and kinds that it has in an
earlier version are sent as that. ``tests/engines/kubernetes`` checks them by the schemas of later releases.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_api import ApiServer

pytestmark = pytest.mark.peers

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FLEETS = ("small", "tiers", "mixed")
#: Kind → group and version at this server, and the name in the path.
KINDS = {
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "ConfigMap": ("api/v1", "configmaps"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("apis/policy/v1beta1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": ("apis/autoscaling/v2beta2", "horizontalpodautoscalers"),
}
#: Kinds of other projects: the server does not have them.
FOREIGN = frozenset(("HTTPRoute", "VirtualService", "DestinationRule"))

Document = dict[str, Any]


@pytest.fixture
def client(api_server: ApiServer) -> Iterator[Any]:
    with api_server.client() as client:
        yield client


def _documents(fleet: str) -> list[Document]:
    paths = sorted((DEPLOY / "manifests" / fleet).glob("*.yaml"))
    return [each for path in paths for each in yaml.load_all(path.read_text(), yaml.CSafeLoader) if each is not None]


def _as_in_1_20(document: Document) -> Document:
    older = copy.deepcopy(document)
    older["apiVersion"] = KINDS[document["kind"]][0].partition("/")[2]
    if document["kind"] in ("StatefulSet", "Deployment"):
        pod = older["spec"]["template"]["spec"]
        for container in pod["containers"]:
            container.pop("lifecycle", None)  # preStop.sleep
        pod["volumes"] = [
            {"name": volume["name"], "emptyDir": {}} if "image" in volume else volume for volume in pod["volumes"]
        ]
    return older


def _post(client: Any, document: Document) -> str:
    """What the server says against an object; "": nothing."""
    if document["kind"] == "Namespace":
        answer = client.post("/api/v1/namespaces", json=document)
    else:
        group, plural = KINDS[document["kind"]]
        path = f"/{group}/namespaces/{document['metadata']['namespace']}/{plural}"
        answer = client.post(path, json=_as_in_1_20(document))
    return "" if answer.status_code == 201 else str(answer.json()["message"])


@pytest.mark.parametrize("fleet", FLEETS)
def test_the_server_accepts_every_object(client: Any, fleet: str) -> None:
    own = [each for each in _documents(fleet) if each["kind"] not in FOREIGN]
    assert len(own) >= 20
    said = {f"{each['kind']} {each['metadata']['name']}": _post(client, each) for each in own}
    assert {name: text for name, text in said.items() if text} == {}


@pytest.mark.parametrize(
    ("kind", "path", "value", "objection"),
    [
        ("StatefulSet", ("spec", "selector", "matchLabels"), {"a": "b"}, "`selector` does not match template `labels`"),
        ("Service", ("metadata", "name"), "1st", "Invalid value"),
        ("NetworkPolicy", ("spec", "policyTypes"), ["Inward"], "policyTypes"),
    ],
)
def test_the_server_objects_to_what_is_wrong(
    client: Any, kind: str, path: tuple[str, ...], value: Any, objection: str
) -> None:
    found = _documents("small")
    _post(client, next(each for each in found if each["kind"] == "Namespace"))
    document = next(each for each in found if each["kind"] == kind)
    document["metadata"]["name"] = "another"
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    assert objection in _post(client, document)
