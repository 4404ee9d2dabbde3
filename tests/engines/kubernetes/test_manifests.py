"""Rendered manifests of three fleets: they fit the official schemas, a reviewer's rules, and the files in deploy/."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from manifest_policy import RULES, containers, objections, pods
from rendered_fleets import DEPLOY, FLEETS, ROOT, documents_of, example, find, render
from schema_checks import RELEASES, check

Document = dict[str, Any]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", FLEETS)
def test_the_documents_fit_their_schemas(name: str, release: str) -> None:
    for document in example(name):
        check(document, release)


@pytest.mark.parametrize("form", ["engine", "kserve", "kuberay"])
def test_the_variants_fit_their_schemas(form: Any) -> None:
    text = (DEPLOY / "fleets" / "mixed.yaml").read_text()
    found = documents_of(render(text, form, name=False))
    assert found
    for document in found:
        check(document, RELEASES[-1])


def _spoil(kind: str, *path: str | int, value: Any) -> Callable[[list[Document]], None]:
    def spoil(found: list[Document]) -> None:
        holder: Any = next(each for each in found if each["kind"] == kind)
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = value

    return spoil


@pytest.mark.parametrize(
    ("fleet", "kind", "path", "value"),
    [
        ("small", "StatefulSet", ("spec", "replica"), 3),
        ("small", "StatefulSet", ("spec", "template", "spec", "containers", 0, "readinessProb"), {}),
        ("small", "NetworkPolicy", ("spec", "podSelecter"), {}),
        ("tiers", "HTTPRoute", ("spec", "rules", 0, "backendRef"), []),
        ("tiers", "HTTPRoute", ("spec", "rules", 1, "matches", 0, "path", "type"), "Prefix"),
        ("mixed", "VirtualService", ("spec", "http", 0, "retries", "attempts"), "none"),
        ("mixed", "DestinationRule", ("spec", "trafficPolicy", "loadBalancer", "simple"), "LEAST"),
    ],
)
def test_the_schemas_find_what_is_wrong(fleet: str, kind: str, path: tuple[str | int, ...], value: Any) -> None:
    found = copy.deepcopy(example(fleet))
    _spoil(kind, *path, value=value)(found)
    spoilt = next(each for each in found if each["kind"] == kind)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(spoilt, RELEASES[-1])


@pytest.mark.parametrize("name", FLEETS)
def test_a_reviewer_has_no_objections(name: str) -> None:
    assert objections(example(name)) == []


def _container(**changes: Any) -> Callable[[list[Document]], None]:
    return lambda found: next(containers(found))[1].update(changes)


def _pod(**changes: Any) -> Callable[[list[Document]], None]:
    return lambda found: next(pods(found))[1]["spec"].update(changes)


def _without(kind: str, name: str) -> Callable[[list[Document]], None]:
    return lambda found: found.remove(find(found, kind, name))


_BREACHES: dict[str, Callable[[list[Document]], None]] = {
    "no_root": _pod(securityContext={}),
    "no_rights": _container(securityContext={"readOnlyRootFilesystem": True}),
    "read_only_root": lambda found: next(containers(found))[1]["securityContext"].pop("readOnlyRootFilesystem"),
    "no_host": _pod(hostNetwork=True),
    "no_api_token": _pod(automountServiceAccountToken=True),
    "resources_set": _container(resources={"requests": {"cpu": "1"}}),
    "probes_present": lambda found: next(containers(found))[1].pop("livenessProbe"),
    "images_pinned": _container(image="isochrone"),
    "denied_by_default": _without("NetworkPolicy", "default-deny"),
    "budgets_cover": _without("PodDisruptionBudget", "cpu"),
    "selectors_match": _spoil("Service", "spec", "selector", value={"app": "other"}),
    "references_exist": _without("ServiceAccount", "isochrone-worker"),
    "config_maps_rendered": _without("ConfigMap", "fleet"),
    "quota_has_room": _spoil("ResourceQuota", "spec", "hard", value={"pods": "3"}),
    "one_namespace": _spoil("Service", "metadata", "namespace", value="other"),
    "names_are_unique": lambda found: found.append(found[1]),
    "no_secrets": lambda found: found.append({"kind": "Secret", "metadata": {"name": "s", "namespace": "small"}}),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_finds_its_breach(rule: Any) -> None:
    found = copy.deepcopy(example("small"))
    assert list(rule(found)) == []
    _BREACHES[rule.__name__](found)
    assert list(rule(found)) != []


def test_the_examples_in_deploy_are_current() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "render_examples.py"))["examples"](DEPLOY)
    for directory, files in made:
        present = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
        assert present == files.keys(), f"run: make docs ({directory})"
        for name, text in files.items():
            assert (directory / name).read_text(encoding="utf-8") == text, f"run: make docs ({directory / name})"


def test_an_update_waits_until_a_worker_serves_the_committed_versions() -> None:
    for name, container in containers(example("small")):
        asked = container["readinessProbe"]["httpGet"]["path"]
        assert (asked == "/v2/health/committed") == (container["name"] == "worker"), name
        # Models are loaded into workers that have started.
        assert container["startupProbe"]["httpGet"]["path"] != "/v2/health/committed"
    # The names of workers do not depend on it.
    assert find(example("small"), "Service", "cpu-workers")["spec"]["publishNotReadyAddresses"] is True
