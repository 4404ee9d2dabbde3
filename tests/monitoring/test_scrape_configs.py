"""Where Prometheus finds the pages: by the controllers, by a list, by the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rendered_rules import FLEET, fleet_of

from isochrone.control.fleet.derived.processes import processes
from isochrone.errors import ConfigError
from isochrone.monitoring.scraping import Discovery, plain_configs, scrape_configs, with_credentials


def targets(configs: list[dict[str, Any]]) -> dict[str, str]:
    """By name of a process: its page."""
    return {
        each["labels"]["name"]: each["targets"][0] for config in configs for each in config.get("static_configs", ())
    }


def test_controllers_name_the_pages() -> None:
    static, discovered = scrape_configs(fleet_of(), "http")
    assert targets([static]) == {"control-1": "127.0.0.1:8003", "control-2": "127.0.0.1:8004"}
    assert [each["url"] for each in discovered["http_sd_configs"]] == [
        "http://127.0.0.1:8003/v1/scrape-targets",
        "http://127.0.0.1:8004/v1/scrape-targets",
    ]
    assert discovered["relabel_configs"] == [{"target_label": "fleet", "replacement": "plant"}]


def test_other_addresses_of_controllers_count() -> None:
    static, discovered = scrape_configs(fleet_of(), "http", ["10.0.0.1:8003"])
    assert targets([static]) == {"control-1": "10.0.0.1:8003"}
    assert [each["url"] for each in discovered["http_sd_configs"]] == ["http://10.0.0.1:8003/v1/scrape-targets"]


def test_a_list_has_the_ports_of_the_processes() -> None:
    found = targets(scrape_configs(fleet_of(), "static"))
    assert found == {
        "control-1": "127.0.0.1:8003",
        "control-2": "127.0.0.1:8004",
        "gw-1": "127.0.0.1:9000",
        "gw-2": "127.0.0.1:9001",
        "cpu-1": "127.0.0.1:8102",
        "cpu-2": "127.0.0.1:8105",
    }
    for name, spec in processes(fleet_of(), Path("/srv")).items():
        words = dict(zip(spec.arguments, spec.arguments[1:], strict=False))
        page = words.get("--metrics-port") or words["--listen"].rpartition(":")[2]
        assert found[name].rpartition(":")[2] == page


def test_servers_at_addresses_are_listed_with_their_metrics_port() -> None:
    text = FLEET.replace(
        "pools: {cpu: {workers: 2, first_port: 8100}}",
        'pools: {gpu: {kind: triton, addresses: ["10.0.0.7:8000,metrics=8002", "10.0.0.8:8000"]}}',
    )
    found = targets(scrape_configs(fleet_of(text), "static"))
    assert found["gpu-10.0.0.7-8000"] == "10.0.0.7:8002"
    assert "gpu-10.0.0.8-8000" not in found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("first_port: 8100", "first_port: 0", "pools.cpu.first_port: expected a fixed port"),
        ("metrics_port: 9000", "metrics_port: 0", "gateways.gw.metrics_port: expected a fixed port"),
        ("127.0.0.1:8003", "127.0.0.1:0", "control.listen: expected a fixed port"),
        ("count: 2}}", "count: 1, processes: 2}}", "gateways.gw.processes: expected 1, for --discovery static"),
    ],
)
def test_a_list_needs_fixed_ports(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        scrape_configs(fleet_of(FLEET.replace(old, new)), "static")


def test_gateways_without_a_page_are_left_out() -> None:
    found = targets(scrape_configs(fleet_of(FLEET.replace("metrics_port: 9000", "metrics_port: -1")), "static"))
    assert not any(name.startswith("gw") for name in found)


def test_a_cluster_knows_its_pods() -> None:
    (config,) = scrape_configs(fleet_of(FLEET + "kubernetes: {namespace: robots}\n"), "kubernetes")
    (discovery,) = config["kubernetes_sd_configs"]
    assert discovery["namespaces"] == {"names": ["robots"]}
    assert discovery["selectors"][0]["label"].endswith("app.kubernetes.io/instance=plant")
    sources = {tuple(each.get("source_labels", ())) for each in config["relabel_configs"]}
    assert ("__meta_kubernetes_pod_label_app_kubernetes_io_component",) in sources
    labels = {each.get("target_label") for each in config["relabel_configs"]}
    assert {"fleet", "role", "name", "pool", "namespace", "pod"} <= labels
    assert ("__meta_kubernetes_pod_label_isochrone_serving_github_io_pool",) in sources


def test_pods_with_tls_are_read_with_the_fleets_certificate() -> None:
    folder = "/etc/isochrone/tls"
    files = f"cert: {folder}/tls.crt, key: {folder}/tls.key, ca: {folder}/ca.crt, server_name: plant.internal"
    secure = fleet_of(FLEET + f"security: {{tls: {{{files}}}}}\nkubernetes: {{namespace: robots}}\n")
    (config,) = scrape_configs(secure, "kubernetes", directory=Path("/here"))
    assert config["scheme"] == "https"
    assert config["tls_config"] == {
        "ca_file": f"{folder}/ca.crt",
        "cert_file": f"{folder}/tls.crt",
        "key_file": f"{folder}/tls.key",
        "server_name": "plant.internal",
    }
    (plain,) = scrape_configs(fleet_of(), "kubernetes")
    assert not plain.keys() & {"scheme", "tls_config"}


def test_plain_servers_are_named_by_their_pages() -> None:
    (config,) = plain_configs("bench", ["10.0.0.7:8002"], ["[::1]:9002"])
    assert config["static_configs"] == [
        {"targets": ["10.0.0.7:8002"], "labels": {"fleet": "bench", "role": "worker", "name": "10.0.0.7:8002"}},
        {"targets": ["[::1]:9002"], "labels": {"fleet": "bench", "role": "gateway", "name": "[::1]:9002"}},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "8002",
        "host:",
        "host:0",
        "host:99999",
        "host:x",
        "http://host:8002",
        "host:8002/metrics",
        "::1:8002",
        "[::1]",
        "a b:8002",
        " host:8002",
        "host:8002\n",
        "-host:8002",
        "",
    ],
)
def test_an_address_is_a_host_and_a_port(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--worker: expected HOST:PORT"):
        plain_configs("bench", [wrong], [])
    with pytest.raises(ConfigError, match="--controller: expected HOST:PORT"):
        scrape_configs(fleet_of(), "http", [wrong])


def test_an_address_is_given_once() -> None:
    with pytest.raises(ConfigError, match="--gateway: expected each address once, given h:1, as --worker already"):
        plain_configs("bench", ["h:1"], ["h:1"])
    with pytest.raises(ConfigError, match="--controller: expected each address once"):
        scrape_configs(fleet_of(), "http", ["h:1", "h:1"])


def test_controllers_are_those_of_the_file() -> None:
    with pytest.raises(ConfigError, match=r"--controller: expected at most 2, by control\.count of the file, given 3"):
        scrape_configs(fleet_of(), "static", ["h:1", "h:2", "h:3"])
    with pytest.raises(ConfigError, match="--controller: expected no --discovery kubernetes"):
        scrape_configs(fleet_of(FLEET + "kubernetes: {namespace: robots}\n"), "kubernetes", ["h:1"])


def test_pods_that_have_ended_are_not_read() -> None:
    (config,) = scrape_configs(fleet_of(FLEET + "kubernetes: {namespace: robots}\n"), "kubernetes")
    (rule,) = (each for each in config["relabel_configs"] if each.get("action") == "drop")
    assert rule["source_labels"] == ["__meta_kubernetes_pod_phase"]
    for phase, is_dropped in {"Succeeded": True, "Failed": True, "Running": False, "Pending": False}.items():
        assert bool(re.fullmatch(rule["regex"], phase)) is is_dropped


def test_prometheus_gets_a_token_for_every_page() -> None:
    for configs in (scrape_configs(fleet_of(), "http"), plain_configs("bench", ["h:1"], [])):
        guarded = with_credentials(configs, "/etc/prometheus/token")
        for config in (*guarded, *(found for each in guarded for found in each.get("http_sd_configs", ()))):
            assert config["authorization"] == {"credentials_file": "/etc/prometheus/token"}
        assert [{**each, "authorization": None} for each in configs] != guarded
        assert "authorization" not in str(configs)


def test_servers_with_tls_have_their_scheme_and_authorities() -> None:
    (job,) = plain_configs("default", ["https://10.0.0.1:8002", "10.0.0.2:8002"], [], Path("/etc/ca.crt"))
    assert job["tls_config"] == {"ca_file": "/etc/ca.crt"}
    first, second = job["static_configs"]
    assert first["targets"] == ["10.0.0.1:8002"]
    assert first["labels"]["__scheme__"] == "https"
    assert "__scheme__" not in second["labels"]


@pytest.mark.parametrize("discovery", ["http", "static"])
def test_a_fleet_with_tls_is_read_with_its_certificate(discovery: Discovery) -> None:
    text = FLEET + "security: {tls: {cert: tls.crt, key: tls.key, ca: /etc/ca.crt, server_name: a.internal}}\n"
    found = scrape_configs(fleet_of(text), discovery, (), Path("/f"))
    own = {"ca_file": "/etc/ca.crt", "cert_file": "/f/tls.crt", "key_file": "/f/tls.key", "server_name": "a.internal"}
    fleets_own = [job for job in found if not job["job_name"].endswith("-outside")]
    assert all(job["tls_config"] == own for job in fleets_own)
    assert found[0]["scheme"] == "https"
    for job in fleets_own:
        for discovered in job.get("http_sd_configs", ()):
            assert discovered["url"].startswith("https://")
            assert discovered["tls_config"] == own
    # Servers that the fleet did not start are plain.
    assert all("tls_config" not in job for job in found if job not in fleets_own)
