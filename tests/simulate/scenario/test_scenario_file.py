"""Scenarios from YAML: the shipped ones are valid, and errors name file, line, key, expected and given."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios import SHIPPED

from isochrone.errors import ConfigError
from isochrone.settings.problems import SettingsError
from isochrone.simulate.scenario.file import parse, read
from isochrone.simulate.scenario.records import FifoWorkers

GOOD = """\
name: small
seconds: 5
workload: {kind: poisson, rate: 100}
workers:
  - {model: fifo, count: 2, batch_ms: {1: 2.0, 8: 6.0}}
policies:
  - round_robin
  - {name: power_of_two, label: two}
"""


def test_a_scenario_is_read_with_its_defaults() -> None:
    scenario = parse(GOOD, "small.yaml")
    assert scenario.worker_count == 2
    assert isinstance(scenario.workers[0], FifoWorkers)
    assert scenario.workers[0].batch_ms == {1: 2.0, 8: 6.0}
    assert [choice.title for choice in scenario.policies] == ["round_robin", "two"]
    assert scenario.requests[0].deadline_ms is None


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenarios_are_right_and_say_what_they_show(path: Path) -> None:
    scenario = read(path)
    assert scenario.name
    assert len(scenario.about) > 80


def test_all_eight_are_shipped() -> None:
    assert {path.stem for path in SHIPPED.glob("*.yaml")} >= {
        "azure_like",
        "equal_workers",
        "failures",
        "one_slow",
        "overload",
        "park",
        "prequal_figure6",
        "scale",
    }


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("rate: 100", "rate: fast", "small.yaml:3: workload.rate: expected a number above 0, given 'fast'"),
        ("rate: 100", "rate: 0", "small.yaml:3: workload.rate: expected a number above 0, given 0"),
        (
            "kind: poisson, ",
            "",
            "small.yaml:3: workload.kind: expected poisson, gamma, diurnal, minutes or steps, given nothing",
        ),
        (
            "kind: poisson",
            "kind: tidal",
            "small.yaml:3: workload.kind: expected poisson, gamma, diurnal, minutes or steps, given 'tidal'",
        ),
        (
            "count: 2",
            "cuont: 2",
            "small.yaml:5: workers[0].cuont: expected a known key (did you mean 'count'?), given an unknown key",
        ),
        (
            "model: fifo",
            "model: lifo",
            "small.yaml:5: workers[0].model: expected fifo, exact or sharing (did you mean 'fifo'?), given 'lifo'",
        ),
        ("batch_ms: {1: 2.0, 8: 6.0}", "batch_ms: {}", "small.yaml:5: workers[0].batch_ms: expected"),
        (
            "seconds: 5",
            "secs: 5",
            "small.yaml:2: secs: expected a known key (did you mean 'seconds'?), given an unknown key",
        ),
        ("seconds: 5", "seconds: -5", "small.yaml:2: seconds: expected a number above 0, given -5"),
        (
            "seconds: 5",
            "warmup_seconds: 10",
            "small.yaml:2: warmup_seconds: expected less than the run's 10 s, given 10",
        ),
        (
            "- round_robin",
            "- round_robbing",
            "small.yaml:7: policies[0]: expected a known policy (did you mean 'round_robin'?)",
        ),
        ("label: two}", "options: {q: 3}}", "small.yaml:8: policies[1]: expected"),
        (
            "name: small",
            "failures: [{kind: stop, at: 1, workers: [2]}]",
            "failures[0].workers[0]: expected a worker's number, at most 1, given 2",
        ),
        ("name: small", "antagonists: {machine_cores: 8}", "small.yaml:5: workers[0].model: expected sharing"),
        ("name: small", "name: [", "small.yaml:3: not valid YAML: "),
    ],
)
def test_errors_name_file_line_key_expected_and_given(before: str, after: str, message: str) -> None:
    assert before in GOOD
    with pytest.raises(ConfigError) as caught:
        parse(GOOD.replace(before, after), "small.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_errors_are_reported_at_once() -> None:
    text = GOOD.replace("rate: 100", "rate: 0").replace("count: 2", "count: 0").replace("seconds: 5", "seeds: 1.5")
    with pytest.raises(SettingsError) as caught:
        parse(text, "small.yaml")
    assert str(caught.value).splitlines() == [
        "small.yaml:2: seeds: expected an integer, at least 1, given 1.5",
        "small.yaml:3: workload.rate: expected a number above 0, given 0",
        "small.yaml:5: workers[0].count: expected an integer, at least 1, given 0",
    ]


def test_parts_that_do_not_fit_together_are_reported_at_once() -> None:
    text = GOOD.replace("seconds: 5", "warmup_seconds: 10").replace("- round_robin", "- round_robbing")
    with pytest.raises(SettingsError) as caught:
        parse(text, "small.yaml")
    assert [problem.path for problem in caught.value.problems] == [("warmup_seconds",), ("policies", 0)]


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a mapping with workload and workers"):
        parse(text, "x.yaml")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file or directory; expected a readable YAML file"):
        read(tmp_path / "none.yaml")


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read(path)
