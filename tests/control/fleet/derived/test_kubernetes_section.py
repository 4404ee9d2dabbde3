"""The section kubernetes is checked whenever a file is read, whatever engine runs its fleet."""

from __future__ import annotations

import pytest

from isochrone.control.fleet.reading.parsing import examine, fleet_of
from isochrone.settings.problems import dotted


def _paths(text: str) -> list[str]:
    return [dotted(problem.path) for problem in examine(f"name: demo\n{text}", "fleet.yaml").problems]


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("env: {AWS_SECRET_ACCESS_KEY: x}", "kubernetes.env.AWS_SECRET_ACCESS_KEY"),
        ("pools: {gpu: {}}", "kubernetes.pools.gpu"),
        ("image: bad image", "kubernetes.image"),
        ("namespace: My_Space", "kubernetes.namespace"),
        ("volumes: {./other: {claim: a}}", "kubernetes.volumes../other"),
        ("edge: {kind: istio}", "kubernetes.edge.gateway"),
    ],
)
def test_a_mistake_is_found_in_a_fleet_of_one_machine(section: str, path: str) -> None:
    assert _paths(f"kubernetes: {{{section}}}\n") == [path]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("pools: {cpu: {}, gpu: 7}\nkubernetes: {pools: {gpu: {}}}\n", "pools.gpu"),
        ("repository: 7\nkubernetes: {volumes: {./mine: {claim: a}}}\n", "repository"),
    ],
)
def test_what_may_only_follow_from_another_mistake_is_not_reported(text: str, path: str) -> None:
    assert _paths(text) == [path]


def test_a_fleet_in_the_store_is_not_checked_again() -> None:
    """Its processes run, and the section may be that of another release."""
    assert fleet_of({"name": "demo", "kubernetes": {"pools": {"gone": {}}}}).name == "demo"
