"""The dashboards: every metric in a query is documented, every selector is of one fleet, every panel has its place."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rendered_rules import metrics_in, recorded_in, rules_of

from isochrone.monitoring.dashboards.building import dashboard_text
from isochrone.monitoring.dashboards.catalog import all_dashboards
from isochrone.monitoring.dashboards.layout import COLUMNS, Dashboard, Panel, Query

DOCS = Path(__file__).parents[2] / "docs"
_SUFFIXES = re.compile(r"_(bucket|count|sum)$")
QUERIES = [
    (f"{each.name}: {panel.title}", query)
    for each in all_dashboards()
    for panel in each.panels
    for query in panel.queries
]


def documented() -> set[str]:
    """Metrics in the first column of the tables of the pages."""
    cells = [
        cell
        for page in ("metrics.md", "gateway.md", "monitoring.md")
        for cell in re.findall(r"^\| (`[^|]*`[^|]*) \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    return {name for cell in cells for name in re.findall(r"`((?:isochrone|nv)_\w*\w)[`{]", cell)}


def test_there_are_five() -> None:
    assert [each.name for each in all_dashboards()] == ["fleet", "model", "gateway", "worker", "control-plane"]
    assert len(QUERIES) > 80


@pytest.mark.parametrize(("where", "query"), QUERIES)
def test_every_metric_is_documented(where: str, query: Query) -> None:
    known = documented()
    named = {name for name in metrics_in(query.expression) if not name.startswith("process_")}
    assert {name for name in named if name not in known and _SUFFIXES.sub("", name) not in known} == set()
    recorded = {rule["record"] for group in rules_of()["groups"] for rule in group["rules"] if "record" in rule}
    assert recorded_in(query.expression) <= recorded


@pytest.mark.parametrize(("where", "query"), QUERIES)
def test_every_selector_is_of_the_chosen_fleet(where: str, query: Query) -> None:
    # vector(0) and functions aside, every name with a brace is a selector.
    selectors = re.findall(r"[\w:]+\{[^}]*\}", query.shown)
    assert selectors
    for selector in selectors:
        assert '{fleet="$fleet"' in selector
    assert set(re.findall(r"\$(\w+)", query.shown)) <= {
        "fleet",
        "model",
        "worker",
        "gateway",
        "__rate_interval",
    }


@pytest.mark.parametrize("described", all_dashboards(), ids=lambda each: each.name)
def test_variables_are_those_of_the_queries(described: Dashboard) -> None:
    text = " ".join(query.shown for panel in described.panels for query in panel.queries)
    used = set(re.findall(r"\$(\w+)", text)) - {"fleet", "__rate_interval"}
    assert used == {each.name for each in described.variables}


@pytest.mark.parametrize("described", all_dashboards(), ids=lambda each: each.name)
def test_legends_name_labels_of_their_queries(described: Dashboard) -> None:
    for panel in described.panels:
        for query in panel.queries:
            for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
                by = re.findall(r"by \(([^)]*)\)", query.expression)
                assert not by or any(label in each.split(", ") for each in by), f"{panel.title}: {label}"


def _built(described: Dashboard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dashboard_text(described))
    return found


@pytest.mark.parametrize("described", all_dashboards(), ids=lambda each: each.name)
def test_the_file_is_what_grafana_reads(described: Dashboard) -> None:
    found = _built(described)
    assert (found["uid"], found["title"]) == (f"isochrone-{described.name}", described.title)
    assert found["schemaVersion"] >= 36
    names = [each["name"] for each in found["templating"]["list"]]
    assert names == ["datasource", "fleet", *(each.name for each in described.variables)]
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    for panel in found["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]
            assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"])
    assert dashboard_text(described) == dashboard_text(described)


@pytest.mark.parametrize("described", all_dashboards(), ids=lambda each: each.name)
def test_panels_do_not_overlap(described: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in _built(described)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("described", all_dashboards(), ids=lambda each: each.name)
def test_titles_and_texts(described: Dashboard) -> None:
    panels: list[Panel] = list(described.panels)
    for row in described.rows:
        titles = [panel.title for panel in row.panels]
        assert len(titles) == len(set(titles))
    for panel in panels:
        assert not panel.text or panel.text.endswith("."), panel.title
    # Panels of one line of the grid have one height.
    for row in described.rows:
        for one, other in pairwise(row.panels):
            assert one.height == other.height or COLUMNS in (one.width, other.width)
