"""Every metric in a rule of Prometheus is one that processes serve: the names are those of real pages."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest
from real_fleets import small_fleet

from bench.control.running_fleet import CONTROLLER
from isochrone.control.fleet.reading.parsing import load_fleet
from isochrone.monitoring.rendering import rules_document
from isochrone.monitoring.thresholds import Flags, thresholds
from isochrone.observe.metrics.activation_caches import activation_metrics
from isochrone.observe.metrics.divisions import division_metrics
from isochrone.observe.metrics.gpus import _FAMILIES
from isochrone.observe.snapshot import ActivationSnapshot, DividedSnapshot

pytestmark = pytest.mark.long

_SUFFIXES = r"(_bucket|_count|_sum|_total|_info)?"


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def of_other_machines() -> set[str]:
    """Metrics of GPUs and of models that this fleet does not have: what the code of the page makes of such."""
    cache = ActivationSnapshot("m", "1", {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.1, False)
    divided = DividedSnapshot("m", "1", "edge", {}, {}, {}, 0, True, 0.0, 0.0, 0.0)
    families = [*activation_metrics([cache]), *division_metrics([divided])]
    return {family.name for family in families} | set(_FAMILIES)


def test_every_metric_of_a_rule_is_on_a_page(tmp_path: Path) -> None:
    with small_fleet(tmp_path) as fleet:
        status = fleet.api.status()
        addresses = [status["workers"][0]["metrics"], status["gateways"][0]["metrics"]]
        addresses.append(fleet.of(CONTROLLER)[0].address)
        pages = "".join(page(address) for address in addresses)
        limits = thresholds(load_fleet(fleet.file), Flags())
    served = {re.sub(f"{_SUFFIXES}$", "", name) for name in re.findall(r"^# TYPE (\S+) ", pages, re.MULTILINE)}
    served |= of_other_machines()
    document = rules_document(limits, with_controllers=True)
    expressions = [rule["expr"] for group in document["groups"] for rule in group["rules"]]
    named = {
        name
        for expression in expressions
        for name in re.findall(r"\b((?:isochrone|nv|process)_\w+)", re.sub(r'"[^"]*"', '""', expression))
    }
    assert len(named) > 20
    assert {name for name in named if name not in served and re.sub(f"{_SUFFIXES}$", "", name) not in served} == set()
