"""Metrics of activation caches: every reason and scope from the start, and none without such a model."""

from __future__ import annotations

import re
from pathlib import Path

from isochrone.multiprocess.metrics.gauge_rules import rule
from isochrone.observe.metrics.activation_caches import activation_metrics
from isochrone.observe.snapshot import ActivationSnapshot

SNAPSHOT = ActivationSnapshot(
    model_name="m",
    model_version="3",
    hits={"temporal": 5, "spatial": 2},
    misses={"cold": 1, "changed": 0},
    entries=4,
    bytes_used=1000,
    limit_bytes=9000,
    evictions=6,
    saved_ns=2_000_000_000,
    comparison_ns=5_000_000,
    samples=7,
    samples_over_budget=1,
    error=0.25,
    largest_error=0.5,
    error_budget=0.1,
    is_alarmed=True,
)


def test_values_and_labels() -> None:
    samples = {
        (sample.name, *list(sample.labels.values())[2:]): sample.value
        for family in activation_metrics([SNAPSHOT])
        for sample in family.samples
    }
    prefix = "isochrone_activation_cache_"
    assert samples == {
        (f"{prefix}hits_total", "temporal"): 5,
        (f"{prefix}hits_total", "spatial"): 2,
        (f"{prefix}misses_total", "cold"): 1,
        (f"{prefix}misses_total", "changed"): 0,
        (f"{prefix}evictions_total",): 6,
        (f"{prefix}saved_seconds_total",): 2.0,
        (f"{prefix}comparison_seconds_total",): 0.005,
        (f"{prefix}samples_total",): 7,
        (f"{prefix}samples_over_budget_total",): 1,
        (f"{prefix}entries",): 4,
        (f"{prefix}bytes",): 1000,
        (f"{prefix}limit_bytes",): 9000,
        (f"{prefix}error",): 0.25,
        (f"{prefix}error_largest",): 0.5,
        (f"{prefix}error_budget",): 0.1,
        (f"{prefix}alarm",): 1,
    }
    for family in activation_metrics([SNAPSHOT]):
        for sample in family.samples:
            assert (sample.labels["model"], sample.labels["version"]) == ("m", "3")


def test_the_page_names_all_of_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(isochrone_activation_cache_[a-z_]+)", page))
    assert named == {sample.name for family in activation_metrics([SNAPSHOT]) for sample in family.samples}


def test_a_server_without_such_a_model_has_none() -> None:
    assert not list(activation_metrics(()))


def test_over_several_processes_errors_are_not_added() -> None:
    for name in ("error", "error_largest", "error_budget", "alarm"):
        assert rule(f"isochrone_activation_cache_{name}", "gauge") == "largest"
    assert rule("isochrone_activation_cache_bytes", "gauge") == "add"
