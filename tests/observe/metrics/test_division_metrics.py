"""The metrics of divided models on the page."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.snapshot import DividedSnapshot, ServerSnapshot

NET = DividedSnapshot(
    "net",
    "1",
    "cut-3",
    {"edge": 2, "cut-3": 7},
    {"cut-3": 0.012},
    {"lost": 1, "faster": 0},
    2,
    True,
    0.004,
    0.001,
    math.inf,
)


def samples(*models: DividedSnapshot) -> dict[tuple[str, str], float]:
    """By name and the last label."""
    page = Exposition(lambda: ServerSnapshot(divided=models), machine=False).render()[0].decode()
    return {
        (sample.name, sample.labels.get("division") or sample.labels.get("reason") or ""): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("isochrone_division_")
    }


def test_a_divided_model_shows_its_divisions_its_moves_and_its_link() -> None:
    assert samples(NET) == {
        ("isochrone_division_present", "edge"): 0,
        ("isochrone_division_present", "cut-3"): 1,
        ("isochrone_division_requests_total", "edge"): 2,
        ("isochrone_division_requests_total", "cut-3"): 7,
        ("isochrone_division_late_seconds", "cut-3"): 0.012,
        ("isochrone_division_moves_total", "lost"): 1,
        ("isochrone_division_moves_total", "faster"): 0,
        ("isochrone_division_fallbacks_total", ""): 2,
        ("isochrone_division_link_round_trip_seconds", ""): 0.004,
        ("isochrone_division_link_jitter_seconds", ""): 0.001,
        ("isochrone_division_link_bytes_per_second", ""): math.inf,
        ("isochrone_division_core_answers", ""): 1,
    }


def test_a_server_without_one_has_none_of_them() -> None:
    assert not samples()
