"""Fleets whose pods the engine makes, and fleets that KEDA scales: what is rendered for them."""

from __future__ import annotations

from pathlib import Path

from manifest_policy import objections
from rendered_fleets import DEPLOY, STORE, container_of, documents, documents_of, find, render
from schema_checks import RELEASES, check

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.reading.parsing import load_fleet, parse_fleet
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.scaling.keda.scaler import Trigger, read_trigger
from isochrone.control.state.records import KUBERNETES
from isochrone.engines.kubernetes.pods.pod_documents import marked, spec_of
from isochrone.engines.kubernetes.pods.process_pods import pod_of

SCALED = "pools: {cpu: {workers: 2, min: 0, max: 6}}\nkubernetes: {autoscaler: keda, keda_namespace: scaling}\n"


def example(name: str) -> Fleet:
    return load_fleet(DEPLOY / "fleets" / f"{name}.yaml")


def test_every_pod_that_the_engine_makes_fits_the_schemas_and_a_reviewers_rules() -> None:
    for name in ("small", "tiers", "mixed"):
        fleet = example(name)
        specs = processes_on(KUBERNETES, fleet, Path("/srv/isochrone"))
        assert specs
        for spec in specs.values():
            pod = marked(pod_of(fleet, spec), spec, fleet.name)
            for release in RELEASES:
                check(pod, release)
            assert pod["metadata"]["name"] == spec.name
            assert spec_of(pod, spec.name) == spec, "what the next engine reads"


def test_pods_of_the_engine_and_of_stateful_sets_differ_in_their_names_alone() -> None:
    fleet = example("small")
    rendered = container_of(
        documents_of(render((DEPLOY / "fleets" / "small.yaml").read_text(), name=False)), "StatefulSet", "cpu"
    )
    spec = processes_on(KUBERNETES, fleet, Path("/srv/isochrone"))["cpu-1"]
    pod = pod_of(fleet, spec)
    assert pod is not None
    (container,) = pod["spec"]["containers"]
    named = [word.replace("$(POD_NAME)", "cpu-1") for word in rendered["args"]]
    assert {**container, "args": None} == {**rendered, "args": None}
    assert container["args"] == named


def test_a_process_that_is_not_in_the_fleet_any_more_has_no_pod() -> None:
    fleet = example("small")
    spec = processes_on(KUBERNETES, example("mixed"), Path("/srv/isochrone"))
    unknown = next(each for each in spec.values() if each.role == "worker" and each.pool not in fleet.pools)
    assert pod_of(fleet, unknown) is None


def test_the_engine_may_make_pods_and_read_nodes_and_nothing_else() -> None:
    found = documents_of(render((DEPLOY / "fleets" / "small.yaml").read_text(), "engine", name=False))
    kinds = {document["kind"] for document in found}
    assert not kinds & {"StatefulSet", "HorizontalPodAutoscaler", "ScaledObject"}
    assert [document["metadata"]["name"] for document in found if document["kind"] == "Deployment"] == ["engine"]
    rules = [rule for document in found if document["kind"] in ("Role", "ClusterRole") for rule in document["rules"]]
    assert {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]} == {
        *(("pods", verb) for verb in ("get", "list", "watch", "create", "delete")),
        *(("nodes", verb) for verb in ("get", "list", "watch")),
    }
    engine = find(found, "Deployment", "engine")
    assert engine["spec"]["strategy"] == {"type": "Recreate"}
    # It has a token of the API and no port to probe, and must not keep a node from being drained; all other rules hold.
    assert {text for text in objections(found) if text.startswith("engine")} == {
        *(f"engine/engine has no {probe}Probe" for probe in ("startup", "readiness", "liveness")),
        "engine has 0 PodDisruptionBudgets",
        "engine gets a token of the cluster's API",
    }


def test_a_budget_of_the_engines_pods_never_keeps_a_node() -> None:
    pools = "{cpu: {workers: 5}, pair: {workers: 2}, single: {workers: 1}, none: {workers: 0}}"
    found = documents_of(render(f"control: {{count: 3}}\npools: {pools}\n", "engine"))
    budgets = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "PodDisruptionBudget"}
    # Kubernetes takes no maxUnavailable for pods that no controller of its own has made.
    assert {name: budget["minAvailable"] for name, budget in budgets.items()} == {"control": 1, "cpu": 2, "pair": 1}
    assert not any("maxUnavailable" in budget for budget in budgets.values())


def test_the_cluster_autoscaler_may_move_the_pods() -> None:
    fleet = example("small")
    spec = processes_on(KUBERNETES, fleet, Path("/srv/isochrone"))["cpu-1"]
    pod = pod_of(fleet, spec)
    assert pod is not None
    assert pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"


def test_the_engine_reaches_api_servers_at_their_usual_ports() -> None:
    found = documents_of(render("", "engine"))
    anywhere = [rule for rule in find(found, "NetworkPolicy", "engine")["spec"]["egress"] if "to" not in rule]
    assert {443, 6443, 8443, 16443} <= {port["port"] for rule in anywhere for port in rule["ports"]}


def test_with_the_engine_nothing_is_open_for_keda() -> None:
    found = documents_of(render(SCALED, "engine"))
    assert [port["port"] for port in find(found, "Service", "control")["spec"]["ports"]] == [8003]
    fleet = parse_fleet(f"name: demo\n{STORE}{SCALED}", "fleet.yaml", Path("/srv/isochrone"))
    pod = pod_of(fleet, processes_on(KUBERNETES, fleet, Path("/srv/isochrone"))["control-1"])
    assert pod is not None
    assert [port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]] == [8003]
    allowed = find(found, "NetworkPolicy", "controllers")["spec"]["ingress"]
    assert not [rule for rule in allowed if {"protocol": "TCP", "port": 8004} in rule["ports"]]


def test_keda_asks_the_controllers_about_each_pool_with_a_maximum() -> None:
    found = documents(SCALED)
    scaled = find(found, "ScaledObject", "cpu")
    check(scaled, RELEASES[-1])
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (0, 6)
    assert "fallback" not in scaled["spec"], "a fixed number would shrink a loaded pool while no controller answers"
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["scalerAddress"] == "control.demo.svc:8004"
    assert read_trigger(trigger["metadata"], {"cpu": object()}) == Trigger("cpu", 4.0)
    assert not [document for document in found if document["kind"] == "HorizontalPodAutoscaler"]
    arguments = container_of(found, "Deployment", "control")["args"]
    assert arguments[arguments.index("--scaler-listen") + 1] == "0.0.0.0:8004"
    ports = {port["name"]: port["port"] for port in find(found, "Service", "control")["spec"]["ports"]}
    assert ports == {"http": 8003, "grpc-scaler": 8004}
    allowed = find(found, "NetworkPolicy", "controllers")["spec"]["ingress"]
    (peer,) = [rule["from"] for rule in allowed if {"protocol": "TCP", "port": 8004} in rule["ports"]]
    assert peer == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "scaling"}}}]


def test_without_a_pool_to_scale_controllers_serve_no_scaler() -> None:
    found = documents("kubernetes: {autoscaler: keda}\n")
    assert "--scaler-listen" not in container_of(found, "Deployment", "control")["args"]
