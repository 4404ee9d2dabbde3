"""A changed fleet.yaml changes only the documents that it concerns."""

from __future__ import annotations

from typing import Any

import pytest
from rendered_fleets import documents, render

FLEET = """\
control: {count: 2}
gateways:
  gw: {count: 2}
pools:
  cpu: {workers: 3, memory: 2GiB}
  gpu: {workers: 2, gpus: 1, device: gpu}
kubernetes: {quota: false}
"""
#: The mounted file is another one, and controllers with the old one are replaced.
FILE = {"ConfigMap fleet", "Deployment control"}


def changed(before: str, after: str) -> set[str]:
    """Kind and name of every document that differs, is new, or is gone."""
    old, new = ({_name(each): each for each in documents(text)} for text in (before, after))
    return {name for name in {**old, **new} if old.get(name) != new.get(name)}


def _name(document: dict[str, Any]) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


@pytest.mark.parametrize(
    ("old", "new", "also"),
    [
        ("workers: 3", "workers: 4", {"StatefulSet cpu"}),
        ("memory: 2GiB", "memory: 3GiB", {"StatefulSet cpu"}),
        ("gw: {count: 2}", "gw: {count: 3}", {"StatefulSet gw"}),
        ("control: {count: 2}", "control: {count: 3}", set()),
        ("kubernetes: {", "models: {detector: {slo: {deadline_ms: 20}}}\nkubernetes: {", set()),
        ("quota: false", "quota: true", {"ResourceQuota fleet"}),
        ("workers: 3,", "workers: 3, max: 6,", {"StatefulSet cpu", "HorizontalPodAutoscaler cpu"}),
        (
            "  gpu: {",
            "  spare: {workers: 1}\n  gpu: {",
            {"StatefulSet spare", "Service spare-workers", "PodDisruptionBudget spare"},
        ),
    ],
)
def test_only_touched_documents_change(old: str, new: str, also: set[str]) -> None:
    assert FLEET.count(old) == 1
    assert changed(FLEET, FLEET.replace(old, new)) == FILE | also


def test_only_touched_files_change() -> None:
    before, after = render(FLEET), render(FLEET.replace("workers: 3", "workers: 4"))
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {"20-control.yaml", "40-pool-cpu.yaml"}
    old, new = (files["40-pool-cpu.yaml"].splitlines() for files in (before, after))
    lines = [line for pair in zip(old, new, strict=True) for line in pair if pair[0] != pair[1]]
    assert lines == ["  replicas: 3", "  replicas: 4"]


def test_the_same_fleet_gives_the_same_bytes() -> None:
    assert render(FLEET) == render(FLEET)
