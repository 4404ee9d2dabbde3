"""Routes at the edge, KServe's runtimes and KubeRay's cluster: what they lead to and what they hold."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_policy import config_maps_rendered, names_are_unique, objections, one_namespace
from rendered_fleets import DEPLOY, container_of, documents, documents_of, example, find, render

from isochrone.settings.problems import SettingsError


def _backends(found: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Path → the Service and the port that it is sent to."""
    routes: dict[str, tuple[str, int]] = {}
    for document in found:
        if document["kind"] == "HTTPRoute":
            for rule in document["spec"]["rules"]:
                (to,) = rule["backendRefs"]
                routes |= {match["path"]["value"]: (to["name"], to["port"]) for match in rule["matches"]}
        if document["kind"] == "VirtualService":
            for rule in document["spec"]["http"]:
                to = rule["route"][0]["destination"]
                paths = (match["uri"]["prefix"] for match in rule["match"])
                routes |= {path: (to["host"].partition(".")[0], to["port"]["number"]) for path in paths}
                assert rule["retries"] == {"attempts": 0}
    return routes


@pytest.mark.parametrize("kind", ["gateway-api", "istio"])
def test_a_route_sends_http_and_grpc_to_ports_that_say_what_they_speak(kind: str) -> None:
    found = documents(f"kubernetes: {{edge: {{kind: {kind}, gateway: edge/public}}}}\n")
    ports = {each["port"]: each for each in find(found, "Service", "gw")["spec"]["ports"]}
    routes = _backends(found)
    assert routes.keys() == {"/v2", "/inference.GRPCInferenceService", "/grpc.health.v1.Health"}
    for path, (service, port) in routes.items():
        assert service == "gw"
        assert ports[port]["appProtocol"] == ("http" if path == "/v2" else "kubernetes.io/h2c")
        assert ports[port]["targetPort"] == "http"


def test_several_groups_have_hosts_of_their_own() -> None:
    found = example("mixed")
    hosts = {each["metadata"]["name"]: each["spec"]["hosts"] for each in found if each["kind"] == "VirtualService"}
    assert hosts == {"agents": ["agents.inference.example.com"], "batch": ["batch.inference.example.com"]}


def test_the_routes_parent_is_the_named_gateway() -> None:
    assert find(example("tiers"), "HTTPRoute", "gw")["spec"]["parentRefs"] == [{"namespace": "edge", "name": "public"}]


def _variant(form: Any, fleet: str = "mixed") -> list[dict[str, Any]]:
    return documents_of(render((DEPLOY / "fleets" / f"{fleet}.yaml").read_text(), form, name=False))


def test_kserve_gets_one_port_per_runtime_and_safe_containers() -> None:
    found = _variant("kserve", "small")
    ports = {}
    for runtime in found:
        (container,) = runtime["spec"]["containers"]
        ports[runtime["metadata"]["name"]] = [each["name"] for each in container["ports"]]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["args"][0] == "tritonserver"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] == 8080
    assert ports == {"isochrone": ["http1"], "isochrone-grpc": ["h2c"]}
    chosen = {each["metadata"]["name"]: each["spec"]["supportedModelFormats"][0]["autoSelect"] for each in found}
    assert chosen == {"isochrone": True, "isochrone-grpc": False}


def test_kuberay_has_a_group_for_every_pool_and_group_of_gateways() -> None:
    cluster = find(_variant("kuberay"), "RayCluster", "mixed")
    groups = {each["groupName"]: each for each in cluster["spec"]["workerGroupSpecs"]}
    assert groups.keys() == {"agents", "batch", "cpu", "gpu", "slices", "pairs"}
    assert (groups["cpu"]["replicas"], groups["cpu"]["maxReplicas"]) == (12, 40)
    assert groups["gpu"]["labels"] == {"accelerator": "h200"}
    limits = groups["gpu"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert groups["slices"]["resources"] == {"nvidia.com/mig-1g.18gb": "1"}
    assert {each["template"]["spec"]["restartPolicy"] for each in groups.values()} == {"Never"}
    head = cluster["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "6"
    assert "restartPolicy" not in head["template"]["spec"]
    # The autoscaler beside the head talks to the cluster's API.
    assert "automountServiceAccountToken" not in head["template"]["spec"]


def test_kuberay_has_the_namespace_and_the_file_that_its_head_mounts() -> None:
    found = _variant("kuberay")
    assert [*config_maps_rendered(found), *one_namespace(found), *names_are_unique(found)] == []
    head = find(found, "RayCluster", "mixed")["spec"]["headGroupSpec"]["template"]["spec"]
    assert "fleet" in [volume["configMap"]["name"] for volume in head["volumes"] if "configMap" in volume]


def test_a_reviewer_has_no_objections_to_kuberays_pods() -> None:
    for fleet in ("small", "tiers", "mixed"):
        assert objections(_variant("kuberay", fleet)) == []


def test_kuberay_is_told_a_release_of_ray_that_it_probes_by_http() -> None:
    given = find(_variant("kuberay"), "RayCluster", "mixed")["spec"]["rayVersion"]
    assert tuple(map(int, given.split("."))) >= (2, 53, 0)
    found = documents_of(render("kubernetes: {ray_version: 2.60.1}\n", "kuberay"))
    assert find(found, "RayCluster", "demo")["spec"]["rayVersion"] == "2.60.1"
    for wrong in ("2.40.0", "latest", "2.56", "2.60.0rc1"):
        with pytest.raises(SettingsError, match="a release of Ray such as"):
            render(f"kubernetes: {{ray_version: '{wrong}'}}\n", "kuberay")


def test_kuberays_processes_have_a_home_that_they_can_write_to() -> None:
    spec = find(_variant("kuberay"), "RayCluster", "mixed")["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "HOME", "value": "/tmp"} in container["env"], "the cache of models and Ray's own files"


def test_kuberays_pods_have_the_classes_of_their_pool() -> None:
    groups = find(_variant("kuberay", "tiers"), "RayCluster", "tiers")["spec"]["workerGroupSpecs"]
    (core,) = [each["template"]["spec"] for each in groups if each["groupName"] == "core"]
    assert (core["runtimeClassName"], core["priorityClassName"]) == ("nvidia", "serving")


def test_the_runtimes_image_is_that_of_the_fleet() -> None:
    found = _variant("kserve", "tiers")
    assert found[0]["spec"]["containers"][0]["image"] == container_of(example("tiers"), "StatefulSet", "gw")["image"]
