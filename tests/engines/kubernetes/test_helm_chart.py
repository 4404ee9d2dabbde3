"""The Helm chart: with its own values it is the plain manifests; its schema refuses wrong values and says which."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from chart_rendering import NAMESPACE, SERVICE, render_chart
from manifest_policy import objections
from rendered_fleets import DEPLOY, FLEETS, container_of, documents_of, find, load, render
from schema_checks import check

from isochrone.engines.kubernetes.names import MANAGER


def _chart(name: str) -> dict[str, str]:
    return render((DEPLOY / "fleets" / f"{name}.yaml").read_text(), "helm", name=False)


def _without_empty(value: Any) -> Any:
    """An empty map or list is as good as none."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in ({}, [])}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", FLEETS)
def test_with_its_own_values_the_chart_is_the_manifests(name: str) -> None:
    text = (DEPLOY / "fleets" / f"{name}.yaml").read_text()
    plain = documents_of(render(text, name=False))
    namespace = next(each["metadata"]["name"] for each in plain if each["kind"] == "Namespace")
    expected = json.dumps([each for each in plain if each["kind"] != "Namespace"])
    # The namespace stands in names of hosts, too, and nowhere as a part of another word that is compared.
    expected = expected.replace(f'"namespace": "{namespace}"', f'"namespace": "{NAMESPACE}"')
    expected = expected.replace(f"control.{namespace}", f"control.{NAMESPACE}").replace(MANAGER, SERVICE)
    expected = expected.replace(f".{namespace}.svc", f".{NAMESPACE}.svc")
    assert _without_empty(render_chart(_chart(name))) == _without_empty(json.loads(expected))


def test_the_charts_documents_fit_their_schemas() -> None:
    for document in render_chart(_chart("small")):
        check(document, "1.37")


def test_values_reach_their_places() -> None:
    files = _chart("tiers")
    values = load(files["values.yaml"])[0]
    values["pools"]["edge"] |= {"replicas": 5, "image": "other:1", "nodeSelector": {"zone": "a"}}
    values["pools"]["core"]["autoscaling"]["maxReplicas"] = 20
    values["gateways"]["gw"]["service"] = {"type": "LoadBalancer", "annotations": {"lb": "internal"}}
    values["imagePullSecrets"] = [{"name": "mine"}]
    values["quota"] = {"pods": "50"}
    found = render_chart(files, values)
    edge = find(found, "StatefulSet", "edge")
    assert edge["spec"]["replicas"] == 5
    assert container_of(found, "StatefulSet", "edge")["image"] == "other:1"
    assert edge["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}
    assert edge["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    assert find(found, "HorizontalPodAutoscaler", "core")["spec"]["maxReplicas"] == 20
    assert find(found, "Service", "gw")["spec"]["type"] == "LoadBalancer"
    assert find(found, "Service", "gw")["metadata"]["annotations"] == {"lb": "internal"}
    assert find(found, "ResourceQuota", "fleet")["spec"]["hard"] == {"pods": "50"}
    namespace = {"kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert objections([namespace, *found]) == []


def test_the_limits_of_keda_are_values() -> None:
    files = render("pools: {cpu: {workers: 2, min: 0, max: 6}}\nkubernetes: {autoscaler: keda}\n", "helm")
    values = load(files["values.yaml"])[0]
    assert values["pools"]["cpu"]["autoscaling"] == {"minReplicas": 0, "maxReplicas": 6}
    values["pools"]["cpu"]["autoscaling"] = {"minReplicas": 1, "maxReplicas": 9}
    assert _errors(files, values) == []
    scaled = find(render_chart(files, values), "ScaledObject", "cpu")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 9)


def _errors(files: dict[str, str], values: Any) -> list[str]:
    schema = json.loads(files["values.schema.json"])
    jsonschema.Draft7Validator.check_schema(schema)
    found = jsonschema.Draft7Validator(schema).iter_errors(values)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


@pytest.mark.parametrize("name", FLEETS)
def test_the_schema_takes_the_charts_own_values(name: str) -> None:
    files = _chart(name)
    assert _errors(files, load(files["values.yaml"])[0]) == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("pools", "edge", "replica"),
            3,
            "pools.edge: Additional properties are not allowed ('replica' was unexpected)",
        ),
        (("pools", "edge", "replicas"), "three", "pools.edge.replicas: 'three' is not of type 'integer'"),
        (("pools", "edge", "replicas"), -1, "pools.edge.replicas: -1 is less than the minimum of 0"),
        (("pool",), {}, ": Additional properties are not allowed ('pool' was unexpected)"),
        (
            ("imagePullPolicy",),
            "Sometimes",
            "imagePullPolicy: 'Sometimes' is not one of ['IfNotPresent', ",
        ),
        (("gateways", "gw", "image"), "", "gateways.gw.image: '' does not match '^[^\\\\s]+$'"),
        (("control", "resources"), {}, "control.resources: 'requests' is a required property"),
        (("control", "tolerations"), [{"effect": "Never"}], "control.tolerations.0.effect: 'Never' is not one of"),
        (("gateways", "gw", "service", "type"), "External", "gateways.gw.service.type: 'External' is not one of"),
    ],
)
def test_the_schema_refuses_wrong_values(path: tuple[str, ...], value: Any, message: str) -> None:
    files = _chart("tiers")
    values = load(files["values.yaml"])[0]
    holder = values
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    errors = _errors(files, values)
    assert len(errors) == 1
    assert errors[0].startswith(message)


def test_braces_of_the_fleet_file_are_not_actions() -> None:
    text = "defaults: {slo: {deadline_ms: 20}} # {{ .Values.nothing }}\n"
    found = render_chart(render(text, "helm"))
    assert "{{ .Values.nothing }}" in find(found, "ConfigMap", "fleet")["data"]["fleet.yaml"]


def test_the_charts_metadata() -> None:
    files = _chart("small")
    chart = load(files["Chart.yaml"])[0]
    assert chart["apiVersion"] == "v2"
    assert chart["name"] == "small"
    assert copy.copy(chart["version"]).count(".") == 2
    assert "templates/NOTES.txt" in files
