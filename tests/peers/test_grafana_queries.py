"""Every query of every Grafana dashboard returns data, from a real Prometheus that scrapes a real fleet under load."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from monitored_fleet import PATIENT, load, until
from prometheus_server import Prometheus, hurried, start_prometheus
from typer.testing import CliRunner

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import SOLO, Service, write_model, write_repository
from bench.control.running_fleet import WORKER
from isochrone.cli.main import app
from isochrone.monitoring.dashboards.catalog import all_dashboards

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

#: Why this fleet lacks some series. A query for another reason must return data here.
LACKING = {
    "the machine has no NVIDIA GPU",
    "rows are padded only for captured CUDA graphs",
    "the model generates no text",
    "the model has no response cache",
    "the worker runs in one process (--processes)",
    "the worker has no TLS",
    "workers and the store have addresses, not names",
    "the policy counts no decisions",
    "no strict switch has held requests",
}
#: A model whose rollout is aborted.
SPARE = "spare"
#: A canary that lasts as long as the test, and is not judged.
LONG = {"steps": [0.5], "min_samples": 10_000_000, "max_seconds": 600.0, "sticky": False}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedFleet]:
    directory = tmp_path_factory.mktemp("drawn")
    write_repository(directory / "models", 2, Service(milliseconds=10.0))
    write_model(directory / "models", SPARE, Service(), 2)
    models = {SOLO: {"slo": {"deadline_ms": 4}}, SPARE: {}}
    shape = Shape(workers=2, gateways=1, controllers=1, models=models)
    with SupervisedFleet(directory / "fleet", directory / "models", shape) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def dashboards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By name, as they are written."""
    directory = tmp_path_factory.mktemp("grafana")
    result = CliRunner().invoke(app, ["render", "grafana", "--out", str(directory)])
    assert result.exit_code == 0, result.output
    return {path.stem: json.loads(path.read_text()) for path in (directory / "dashboards").glob("*.json")}


@pytest.fixture(scope="module")
def prometheus(fleet: SupervisedFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Under load of every kind, with an aborted rollout and one in canary."""
    directory = tmp_path_factory.mktemp("prometheus")
    result = CliRunner().invoke(app, ["render", "prometheus", str(fleet.file), "--out", str(directory)])
    assert result.exit_code == 0, result.output
    hurried(directory)
    (gateway,) = fleet.gateways
    worker = fleet.of(WORKER)[0].address
    hurry = {"x-request-timeout-ms": "1"}
    with start_prometheus(directory) as server, ExitStack() as callers:
        callers.enter_context(load(gateway, callers=2))
        callers.enter_context(load(gateway, headers={**PATIENT, "x-agent-id": "arm-1"}, callers=2))
        callers.enter_context(load(gateway, headers={**hurry, "x-agent-id": "arm-2"}, callers=1, pause_seconds=0.05))
        callers.enter_context(load(worker, headers=hurry, callers=1, pause_seconds=0.05))
        aborted = fleet.api.start_rollout({SPARE: "2"}, canary=LONG)
        fleet.api.abort(aborted)
        until(lambda: fleet.api.rollout(aborted)["state"] == "aborted", "the abort")
        fleet.api.start_rollout({SOLO: "2"}, canary=LONG)
        yield server


def _substituted(expression: str) -> str:
    for name, value in (("__rate_interval", "30s"), ("fleet", "proof"), ("model|worker|gateway", ".*")):
        expression = re.sub(rf"\$({name})\b", value, expression)
    assert "$" not in expression, expression
    return expression


def _has_data(prometheus: Prometheus, target: dict[str, Any]) -> bool:
    """As Grafana asks: over a range, or for a table at once."""
    query = _substituted(target["expr"])
    if target["instant"]:
        found = prometheus.ask("query", query=query)["result"]
        return any(not math.isnan(float(each["value"][1])) for each in found)
    now = time.time()
    found = prometheus.ask("query_range", query=query, start=f"{now - 20:.3f}", end=f"{now:.3f}", step="2")["result"]
    return any(not math.isnan(float(value)) for each in found for _, value in each["values"])


def test_every_query_returns_data(prometheus: Prometheus, dashboards: dict[str, dict[str, Any]]) -> None:
    reasons = {
        query.shown: query.may_lack for each in all_dashboards() for panel in each.panels for query in panel.queries
    }
    asked = [
        (f"{name}: {panel['title']} {target['refId']}", target)
        for name, dashboard in dashboards.items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    assert {target["expr"] for _, target in asked} == set(reasons)
    assert len(asked) > 80
    empty: list[str] = []

    def all_have_data() -> bool:
        empty[:] = [
            where
            for where, target in asked
            # One that is not understood is an error of the server's, whatever it may lack.
            if not _has_data(prometheus, target) and reasons[target["expr"]] not in LACKING
        ]
        return not empty

    until(all_have_data, "data", lambda: "\n".join(empty))


def test_every_variable_has_values(prometheus: Prometheus, dashboards: dict[str, dict[str, Any]]) -> None:
    expected = {"fleet": {"proof"}, "worker": {"cpu-1", "cpu-2"}, "gateway": {"gw"}}
    seen = set()
    for dashboard in dashboards.values():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            series, label = _substituted(found[1]), found[2]
            values = {each[label] for each in prometheus.ask("series", **{"match[]": series}) if label in each}
            assert values >= {SOLO} if variable["name"] == "model" else values == expected[variable["name"]]
            seen.add(variable["name"])
    assert seen == {*expected, "model"}


def test_a_query_without_series_is_found_out(prometheus: Prometheus) -> None:
    """The first test is of use."""
    assert not _has_data(prometheus, {"expr": 'up{fleet="$fleet", role="nobody"}', "instant": True})


def test_the_data_source_is_this_prometheus(tmp_path: Path) -> None:
    import yaml

    words = ["render", "grafana", "--out", str(tmp_path), "--prometheus", "http://127.0.0.1:1234"]
    assert CliRunner().invoke(app, words).exit_code == 0
    (source,) = yaml.safe_load((tmp_path / "provisioning/datasources/isochrone.yaml").read_text())["datasources"]
    assert source["url"] == "http://127.0.0.1:1234"
