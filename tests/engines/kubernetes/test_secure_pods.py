"""Pods of a fleet with TLS and access rules: what they refuse, what they mount, whom their probes ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from manifest_policy import objections
from rendered_fleets import container_of, documents, documents_of, example, find, render
from schema_checks import RELEASES, check

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.scaling.keda.scaler import Trigger, read_trigger
from isochrone.control.state.records import KUBERNETES
from isochrone.engines.kubernetes.pods.process_pods import pod_of

SECURE = """\
name: demo
store: {url: "etcd:http://etcd:2379"}
security:
  tls: {cert: /etc/isochrone/tls/tls.crt, key: /etc/isochrone/tls/tls.key, ca: /etc/isochrone/tls/ca.crt}
  access: /etc/isochrone/security/access.yaml
  key: /etc/isochrone/security/fleet.key
"""
SECTION = "kubernetes: {tls_secret: certificates, security_secret: own}\n"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
WORKLOADS = {"cpu": "StatefulSet", "gw": "StatefulSet", "control": "Deployment"}


def secure(more: str = SECTION) -> list[dict[str, Any]]:
    return documents_of(render(SECURE + more, name=False))


def containers(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: container_of(found, kind, name) for name, kind in WORKLOADS.items()}


def asked(container: dict[str, Any]) -> set[tuple[str, str]]:
    """Port and scheme of its probes."""
    gets = [container[probe]["httpGet"] for probe in PROBES]
    return {(each["port"], each.get("scheme", "HTTP")) for each in gets}


def test_every_process_refuses_to_start_without_tls_and_access_rules() -> None:
    assert all(each["args"].count("--require-secure") == 1 for each in containers(secure()).values())
    plain = containers(documents("kubernetes: {require_secure: false}\n"))
    assert not any("--require-secure" in each["args"] for each in plain.values())


def test_the_engines_pods_are_those_of_the_manifests() -> None:
    fleet = parse_fleet(SECURE + SECTION, "fleet.yaml", Path("/srv/isochrone"))
    specs = processes_on(KUBERNETES, fleet, Path("/srv/isochrone"))
    for name, container in containers(secure()).items():
        spec = next(spec for each, spec in specs.items() if each.partition("-")[0] == name)
        pod = pod_of(fleet, spec)
        assert pod is not None
        made = pod["spec"]["containers"][0]
        assert "--require-secure" in made["args"]
        assert [made[probe] for probe in PROBES] == [container[probe] for probe in PROBES]
        assert made["volumeMounts"] == container["volumeMounts"]


def test_probes_ask_ports_that_want_no_certificate() -> None:
    found = containers(secure())
    assert {name: asked(each) for name, each in found.items()} == {
        "cpu": {("health", "HTTP")},
        "gw": {("health", "HTTP")},
        "control": {("http", "HTTPS")},
    }
    for name in ("cpu", "gw"):
        ports = {each["name"]: each["containerPort"] for each in found[name]["ports"]}
        words = found[name]["args"]
        assert words[words.index("--health-port") + 1] == str(ports["health"]) == "8005"
    plain = containers(documents(""))
    assert {port for each in plain.values() for port in asked(each)} == {("http", "HTTP")}
    assert not any("--health-port" in each["args"] for each in plain.values())


def test_the_health_port_is_open_to_the_kubelet_alone() -> None:
    policies = [each["spec"] for each in secure() if each["kind"] == "NetworkPolicy"]
    ports = {port["port"] for each in policies for rule in each.get("ingress", ()) for port in rule["ports"]}
    assert 8000 in ports
    assert 8005 not in ports
    services = [each["spec"]["ports"] for each in secure() if each["kind"] == "Service"]
    assert not [port for each in services for port in each if port["targetPort"] == "health"]


def test_certificates_are_a_directory_that_follows_the_secret() -> None:
    found = secure()
    for name, kind in WORKLOADS.items():
        pod = find(found, kind, name)["spec"]["template"]["spec"]
        (volume,) = (each for each in pod["volumes"] if each["name"] == "tls")
        assert volume["secret"] == {"secretName": "certificates", "defaultMode": 0o440}
        (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "tls")
        assert mount == {"name": "tls", "mountPath": "/etc/isochrone/tls", "readOnly": True}
    assert objections(found) == []


def test_the_authority_of_callers_may_be_in_the_other_secret() -> None:
    text = SECURE.replace("ca.crt}", "ca.crt, client_ca: /etc/isochrone/security/callers.crt}")
    found = documents_of(render(text + SECTION, name=False))
    pod = find(found, "StatefulSet", "gw")["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "security")
    assert [each["key"] for each in volume["secret"]["items"]] == ["fleet.key", "callers.crt"]
    words = container_of(found, "StatefulSet", "gw")["args"]
    assert words[words.index("--tls-client-ca") + 1] == "/etc/isochrone/security/callers.crt"
    assert asked(container_of(found, "StatefulSet", "gw")) == {("health", "HTTP")}


def test_commands_in_a_controllers_pod_reach_its_api() -> None:
    def variables(found: list[dict[str, Any]]) -> dict[str, str]:
        environment = container_of(found, "Deployment", "control")["env"]
        return {each["name"]: each["value"] for each in environment if each["name"].startswith("ISOCHRONE_API")}

    assert variables(secure()) == {
        "ISOCHRONE_API": "https://localhost:8003",
        "ISOCHRONE_API_CA": "/etc/isochrone/tls/ca.crt",
        "ISOCHRONE_API_CERT": "/etc/isochrone/tls/tls.crt",
        "ISOCHRONE_API_KEY": "/etc/isochrone/tls/tls.key",
    }
    given = SECTION.replace("}", ", env: {ISOCHRONE_API: 'https://api:1'}}")
    assert variables(secure(given))["ISOCHRONE_API"] == "https://api:1"
    assert variables(documents("")) == {}


def test_a_gateway_behind_a_proxy_that_ends_tls_is_plain_for_its_callers_alone() -> None:
    edge = "gateways: {gw: {tls: false}}\n" + SECTION.replace("}", ", edge: {kind: gateway-api, gateway: a/b}}")
    found = secure(edge)
    container = container_of(found, "StatefulSet", "gw")
    assert "--require-secure" not in container["args"]
    assert "--tls-cert" not in container["args"]
    assert asked(container) == {("http", "HTTP")}
    annotations = find(found, "StatefulSet", "gw")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/scheme"] == "https"
    assert _protocols(found) == {"http": "http", "grpc": "kubernetes.io/h2c"}


def test_proxies_and_prometheus_learn_of_tls() -> None:
    found = secure()
    assert _protocols(found) == {"http": "https", "grpc": "https"}
    for name in ("cpu", "gw"):
        template = find(found, "StatefulSet", name)["spec"]["template"]
        assert template["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    plain = find(documents(""), "StatefulSet", "cpu")["spec"]["template"]["metadata"]["annotations"]
    assert "prometheus.io/scheme" not in plain


def _protocols(found: list[dict[str, Any]]) -> dict[str, str]:
    return {each["name"]: each["appProtocol"] for each in find(found, "Service", "gw")["spec"]["ports"]}


def test_keda_verifies_the_controllers() -> None:
    more = "pools: {cpu: {workers: 2, min: 0, max: 6}}\n" + SECTION.replace("}", ", autoscaler: keda}")
    found = secure(more)
    trigger = find(found, "ScaledObject", "cpu")["spec"]["triggers"][0]
    authentication = find(found, "TriggerAuthentication", trigger["authenticationRef"]["name"])
    check(authentication, RELEASES[-1])
    check(find(found, "ScaledObject", "cpu"), RELEASES[-1])
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "caCert", "name": "certificates", "key": "ca.crt"}
    ]
    assert read_trigger(trigger["metadata"], {"cpu": object()}) == Trigger("cpu", 4.0)
    text = SECURE + more
    assert not [each for each in documents_of(render(text, "engine", False)) if each["apiVersion"].startswith("keda")]


def test_a_pools_arguments_come_after_the_fleets() -> None:
    words = container_of(
        secure(f"pools: {{cpu: {{arguments: [--limit, max_headers=64]}}}}\n{SECTION}"), "StatefulSet", "cpu"
    )
    assert words["args"][-3:] == ["--limit", "max_headers=64", "--log-json"]


@pytest.mark.parametrize("name", ["small"])
def test_the_main_example_is_secure(name: str) -> None:
    found = containers(example(name))
    assert all("--require-secure" in each["args"] for each in found.values())
