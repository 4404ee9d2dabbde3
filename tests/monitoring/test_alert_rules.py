"""The rules: limits follow the fleet's SLOs, one fleet's rules leave others alone, and every alert has a runbook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rendered_rules import FLEET, alert, all_rules, fleet_of, metrics_in, recorded_in, rules_of

from isochrone.engines.kubernetes.packaging.yaml_text import yaml_text
from isochrone.errors import InvalidArgument, IsochroneError, NotFound
from isochrone.gateway.requests.quota_accounts import QuotaExceeded
from isochrone.monitoring.alerts.catalog import all_alerts
from isochrone.monitoring.error_budget import EXCUSED, FAULTS
from isochrone.monitoring.recording import SLO
from isochrone.monitoring.rendering import rules_document
from isochrone.monitoring.rules import duration, figure, in_fleet, one_of
from isochrone.monitoring.slo_classes import bucket_of
from isochrone.monitoring.thresholds import Flags, thresholds
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

DOCS = Path(__file__).parents[2] / "docs"
RUNBOOKS = DOCS / "runbooks"


def test_the_file_is_yaml_and_every_rule_has_its_parts() -> None:
    document = yaml.safe_load(yaml_text([rules_of()]))
    assert document == rules_of()
    assert len({group["name"] for group in document["groups"]}) == len(document["groups"]) == 6
    for rule in all_rules(document):
        assert ("record" in rule) is not ("alert" in rule)
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
            assert rule["annotations"]["description"].endswith(".")


def test_every_selector_is_of_this_fleet() -> None:
    for rule in all_rules(rules_of()):
        expression = rule["expr"]
        assert "FLEET" not in expression
        for name in metrics_in(expression) | ({"up"} if "up{" in expression else set()):
            for selector in re.findall(rf"\b{name}\b(.{{0,16}})", expression):
                assert selector.startswith('{fleet="plant"'), f"{name} in {expression}"
        if "alert" in rule and recorded_in(expression) and "on (fleet" not in expression:
            assert 'fleet="plant"' in expression


def test_slos_are_the_files_deadlines() -> None:
    recorded = {
        rule["labels"]["model"]: rule["expr"]
        for rule in all_rules(rules_of())
        if rule.get("record") == SLO and "labels" in rule
    }
    assert recorded == {"detector": "vector(0.1)", "tracker.v2": "vector(0.2)"}
    (default,) = (rule["expr"] for rule in all_rules(rules_of()) if rule.get("record") == SLO and "labels" not in rule)
    assert default.endswith("* 0.2")
    # A name of a model is a text, not a pattern.
    assert r'model!~"detector|tracker\\.v2"' in default


def test_models_without_a_deadline_have_that_of_the_flag() -> None:
    found = thresholds(fleet_of("name: bare\nmodels: {a: {version: 1}}"), Flags(slo_seconds=0.05))
    assert (dict(found.slo_seconds), found.default_slo_seconds) == ({"a": 0.05}, 0.05)
    assert thresholds(fleet_of("name: bare"), Flags()).default_slo_seconds == 0.2


def test_jitter_and_lag_are_a_tenth_of_the_shortest_slo_unless_given() -> None:
    found = thresholds(fleet_of(), Flags())
    assert found.jitter_seconds == found.loop_lag_seconds == pytest.approx(0.01)
    short = thresholds(fleet_of("name: short\ndefaults: {slo: {deadline_ms: 2}}"), Flags())
    assert (short.jitter_seconds, short.loop_lag_seconds) == (0.001, 0.005)
    given = thresholds(fleet_of(), Flags(jitter_seconds=0.3, loop_lag_seconds=0.4))
    assert (given.jitter_seconds, given.loop_lag_seconds) == (0.3, 0.4)


def test_a_rollout_is_stuck_after_its_own_limits() -> None:
    assert alert(rules_of(), "RolloutStuck")["for"] == "12m"
    longer = FLEET.replace(
        "deadline_ms: 100}", "deadline_ms: 100}, rollout: {canary: {max_seconds: 3600, latency_ratio: 1.5}}"
    )
    assert alert(rules_of(longer), "RolloutStuck")["for"] == "1h2m"
    assert " 1.5 * " in alert(rules_of(longer), "CanaryRegression")["expr"]


def test_the_objective_sets_the_burn_rates() -> None:
    fast = alert(rules_of(flags=Flags(objective=0.999)), "ErrorBudgetBurnsFast")["expr"]
    assert re.findall(r"> ([\d.]+)", fast) == ["0.0144", "0.0144", "0.006", "0.006"]


@pytest.mark.parametrize("objective", [0.05, 0.5, 0.83, 0.9, 0.93, 0.94, 0.95, 0.99, 0.99999])
def test_an_outage_burns_every_budget_and_even_spending_none(objective: float) -> None:
    rules = rules_of(flags=Flags(objective=objective))
    limits = {
        name: [float(each) for each in re.findall(r"> ([\d.]+)", alert(rules, name)["expr"])]
        for name in ("ErrorBudgetBurnsFast", "ErrorBudgetBurnsSlowly")
    }
    assert all(1 - objective - 1e-6 <= each < 1 for found in limits.values() for each in found)
    fast, slow = limits.values()
    assert fast == sorted(fast, reverse=True)
    assert min(fast) >= max(slow)
    said = alert(rules, "ErrorBudgetBurnsFast")["annotations"]["description"]
    (days,) = re.findall(r"spent in ([\d.]+) days", said)
    assert float(days) == pytest.approx(30 * (1 - objective) / min(fast), rel=0.02)


def test_every_error_is_a_fault_an_excuse_or_a_callers_mistake() -> None:
    """Codes that gateways call rejected, and that the error budget does not know, would burn it."""

    def below(kind: type[IsochroneError]) -> list[type[IsochroneError]]:
        return [kind, *(other for each in kind.__subclasses__() for other in below(each))]

    mistakes = {each.code for kind in (InvalidArgument, NotFound) for each in below(kind)}
    codes = {each.code for each in below(IsochroneError) if each.__module__ == "isochrone.errors"} | {
        QuotaExceeded.code
    }
    assert codes - mistakes == {*FAULTS, *EXCUSED}


def test_servers_without_a_fleet_have_no_alerts_of_controllers() -> None:
    document = rules_document(thresholds(None, Flags(), "bench"), with_controllers=False)
    text = yaml.safe_dump(document)
    assert "isochrone_controller_" not in text
    assert 'role="controller"' not in text
    assert 'fleet="bench"' in text
    names = {rule["alert"] for rule in all_rules(document) if "alert" in rule}
    assert names == {f"Isochrone{each.name}" for each in all_alerts() if not each.needs_controllers}


def test_what_rules_record_is_what_alerts_read() -> None:
    rules = all_rules(rules_of())
    recorded = {rule["record"] for rule in rules if "record" in rule}
    read = {name for rule in rules for name in recorded_in(rule["expr"])}
    assert read <= recorded
    # Interpolated quantiles are for people: alerts compare shares beyond exact bounds.
    quantiles = {"isochrone:request_seconds:p50_5m", "isochrone:request_seconds:p99_5m", "isochrone:queue_share:p90_5m"}
    assert recorded - read == quantiles
    page = (DOCS / "monitoring.md").read_text()
    # Of the windows of the error budget, the page has one.
    windowed = {name for name in recorded if re.search(r":(ratio_|known_since:|counted_)", name)}
    assert recorded - windowed <= recorded_in(page)
    assert {re.sub(r"\d+[mhd]$", "5m", name) for name in windowed} <= recorded_in(page)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")}
    assert {each.page for each in all_alerts()} == pages
    for each in all_alerts():
        text = (RUNBOOKS / f"{each.page}.md").read_text()
        assert f"Alert `Isochrone{each.name}`" in text
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == ["Look first", "Likely causes", "What to change"], each.page


def test_the_page_lists_every_alert_with_its_severity() -> None:
    rows = re.findall(
        r"^\| `Isochrone(\w+)` \| (\w+) \| \[.+\]\(runbooks/([\w-]+)\.md\) \|$",
        (DOCS / "monitoring.md").read_text(),
        re.MULTILINE,
    )
    assert rows == [(each.name, each.severity, each.page) for each in all_alerts()]


def sections() -> dict[str, str]:
    """The reference by command, as ``rollout start``."""
    parts = re.split(r"^## isochrone ([\w -]+)$", (DOCS / "reference" / "cli.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands() -> set[str]:
    """Those of the runbooks, without the program's name."""
    return {
        words for page in RUNBOOKS.glob("*.md") for words in re.findall(r"`isochrone ([a-z][^`]*)`", page.read_text())
    }


def command_mistake(words: str, reference: dict[str, str]) -> str:
    """What a command line does that its section does not have; placeholders stand for values."""
    given = words.split()
    name = next((" ".join(given[:count]) for count in (2, 1) if " ".join(given[:count]) in reference), None)
    if name is None:
        return f"no command {words}"
    section, rest = reference[name], given[len(name.split()) :]
    options = dict(re.findall(r"^\| `(--[\w-]+)(?:, -\w)?( [^`]*)?`", section, re.MULTILINE))
    usage = re.search(rf"^isochrone {name}(.*)$", section, re.MULTILINE)
    assert usage is not None
    places = [each for each in usage[1].split() if not each.startswith(("[OPTIONS", "-"))]
    arguments = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            arguments.append(word)
        elif word not in options:
            return f"isochrone {name} has no {word}"
        elif options[word] and not rest:
            return f"{word} needs a value"
        elif options[word]:
            rest.pop(0)
    most = 99 if any("..." in each for each in places) else len(places)
    least = sum(not each.startswith("[") for each in places)
    return "" if least <= len(arguments) <= most else f"isochrone {name} takes {' '.join(places) or 'nothing'}"


def test_commands_of_runbooks_have_these_options_and_arguments() -> None:
    found = commands()
    assert len(found) > 20
    reference = sections()
    assert {words: mistake for words in found if (mistake := command_mistake(words, reference))} == {}
    for wrong in ("drain", "drain A B C", "infer MODEL --tempo", "infer MODEL --repeat", "no-such", "top --drain"):
        assert command_mistake(wrong, reference), wrong


@given(st.integers(1, 12_000_000_000))
def test_the_bucket_of_an_slo_holds_every_answer_in_time(nanoseconds: int) -> None:
    bound = bucket_of(nanoseconds / 1e9)
    assert float(bound) >= nanoseconds / 1e9
    lower = [each for each in BUCKET_BOUNDS_NS if each / 1e9 < float(bound)]
    assert not lower or max(lower) < nanoseconds


@given(st.integers(1, 10**7))
def test_durations_are_read_back(seconds: int) -> None:
    sizes = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    assert sum(int(count) * sizes[unit] for count, unit in re.findall(r"(\d+)([dhms])", duration(seconds))) == seconds


@given(st.floats(1e-6, 1e6))
def test_figures_have_no_exponent_and_lose_nothing_that_matters(value: float) -> None:
    assert re.fullmatch(r"\d+(\.\d*[1-9])?", figure(value))
    assert float(figure(value)) == pytest.approx(value, abs=1e-6)


_NAMES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1)


@given(st.lists(_NAMES, min_size=1, unique=True), _NAMES)
def test_a_matcher_matches_its_names_only(names: list[str], other: str) -> None:
    quoted = one_of(names)
    assert quoted[0] == quoted[-1] == '"'
    # PromQL takes \\ for a backslash and \" for a quote in a text.
    pattern = re.sub(r"\\(.)", r"\1", quoted[1:-1])
    for name in names:
        assert re.fullmatch(pattern, name)
    assert bool(re.fullmatch(pattern, other)) is (other in names)


@given(_NAMES)
def test_a_models_name_is_never_taken_for_the_fleets_place(name: str) -> None:
    matcher = one_of([name, "{FLEET", "FLEET"])
    assert in_fleet(f"up{{FLEET, model=~{matcher}}}", "plant") == f'up{{fleet="plant", model=~{matcher}}}'


@pytest.mark.parametrize(
    ("flags", "name", "said"),
    [
        (Flags(objective=1.0), "x", "--objective: expected a share above 0% and below 100%, given 100%"),
        (Flags(objective=0.9999999), "x", "--objective: expected at most 99.999%"),
        (Flags(queue_share=0.0), "x", "--queue-share: expected"),
        (Flags(gpu_share=2.0), "x", "--gpu-share: expected"),
        (Flags(slo_seconds=-1), "x", "--slo-ms: expected a number above 0, given -1"),
        (Flags(jitter_seconds=float("nan")), "x", "--jitter-ms: expected"),
        (Flags(certificate_days=float("inf")), "x", "--certificate-days: expected"),
        (Flags(), 'a"b', "--name: expected a name of a-z, 0-9 and -"),
    ],
)
def test_flags_that_make_no_sense_are_named(flags: Flags, name: str, said: str) -> None:
    with pytest.raises(Exception, match="^" + re.escape(said)):
        thresholds(None, flags, name)
