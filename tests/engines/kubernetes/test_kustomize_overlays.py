"""The base and the overlays for Kustomize: complete, and each patch changes an object of the base."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_policy import quota_has_room
from overlay_merging import merged
from rendered_fleets import DEPLOY, FLEETS, find, load, render
from schema_checks import check


def _files(name: str) -> dict[str, str]:
    return render((DEPLOY / "fleets" / f"{name}.yaml").read_text(), "kustomize", name=False)


@pytest.mark.parametrize("name", FLEETS)
def test_the_base_is_the_manifests(name: str) -> None:
    files = _files(name)
    named = load(files["base/kustomization.yaml"])[0]["resources"]
    base = {path: files[f"base/{path}"] for path in named}
    plain = render((DEPLOY / "fleets" / f"{name}.yaml").read_text(), name=False)
    assert base == {path: text for path, text in plain.items() if "/" not in path}


@pytest.mark.parametrize("overlay", ["dev", "production"])
@pytest.mark.parametrize("name", FLEETS)
def test_an_overlay_is_valid(name: str, overlay: str) -> None:
    for document in merged(_files(name), overlay):
        if document["kind"] in ("StatefulSet", "Deployment", "HorizontalPodAutoscaler"):
            check(document, "1.37")


@pytest.mark.parametrize("overlay", ["dev", "production"])
@pytest.mark.parametrize("name", FLEETS)
def test_the_quota_has_room_for_an_overlay(name: str, overlay: str) -> None:
    assert list(quota_has_room(merged(_files(name), overlay))) == []


def test_overlays_know_the_objects_of_keda() -> None:
    files = render(
        "pools: {cpu: {workers: 2, min: 0, max: 6}}\nkubernetes: {autoscaler: keda, quota: true}\n", "kustomize"
    )
    for overlay, limits in (("dev", (1, 1)), ("production", (0, 6))):
        found = merged(files, overlay)
        scaled = find(found, "ScaledObject", "cpu")
        check(scaled, "1.37")
        spec = scaled["spec"]
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == limits
        assert list(quota_has_room(found)) == []


def _replicas(found: list[dict[str, Any]]) -> dict[str, int]:
    kinds = ("StatefulSet", "Deployment")
    return {each["metadata"]["name"]: each["spec"].get("replicas", 1) for each in found if each["kind"] in kinds}


def test_dev_is_one_of_each() -> None:
    found = merged(_files("tiers"), "dev")
    assert set(_replicas(found).values()) == {1}
    assert find(found, "HorizontalPodAutoscaler", "core")["spec"]["maxReplicas"] == 1


def test_production_has_at_least_two_controllers_and_gateways_on_different_nodes() -> None:
    found = merged(_files("small"), "production")
    assert _replicas(found) == {"control": 2, "gw": 2, "cpu": 2}
    for kind, name in (("Deployment", "control"), ("StatefulSet", "gw")):
        workload = find(found, kind, name)["spec"]
        rules = workload["template"]["spec"]["affinity"]["podAntiAffinity"]
        term = rules["requiredDuringSchedulingIgnoredDuringExecution"][0]
        assert term["labelSelector"] == workload["selector"]


def test_production_leaves_groups_together_that_must_share_a_node() -> None:
    gateways = "{gw: {placement: together}, edge: {listen: '127.0.0.1:8100', metrics_port: 9100}}"
    text = f"control: {{count: 2, placement: together}}\ngateways: {gateways}\n"
    found = merged(render(text, "kustomize"), "production")
    for kind, name in (("Deployment", "control"), ("StatefulSet", "gw")):
        workload = find(found, kind, name)["spec"]
        assert workload["template"]["spec"]["affinity"].keys() == {"podAffinity"}, "both at once fit no node"
        assert workload["replicas"] == 2
    assert find(found, "Deployment", "control")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    assert find(found, "StatefulSet", "edge")["spec"]["template"]["spec"]["affinity"].keys() == {"podAntiAffinity"}
