"""The rules file: its settings, and errors that name file, line, key, expected and given."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.gateway.placement.balancer import Placement
from isochrone.gateway.rules.file import load_rules, parse_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.quota_rules import CallerLimits
from isochrone.settings.problems import SettingsError

FILE = """
defaults:
  deadline_ms: 50
  retries: {ratio: 0.2}
  hedge: {quantile: 0.9}
outliers: {consecutive_failures: 3, base_ms: 2500}
quota: {header: x-tenant-id, rate: 100, burst: 200, concurrency: 32, compute_share: 0.5}
models:
  detector:
    policy: consistent_hash
    policy_options: {points: 160, load_factor: 1.5}
    affinity: {header: x-agent-id}
    canary: {version: 3, stable: 2, weight: 0.05}
    shadow: {share: 0.01, version: 4, max_in_flight_mb: 2}
    quota: {total_rate: 1000, reserve: [0, 0.2]}
    hedge: false
    retries: {attempts: 2}
    breaker: {open_ms: 0.5}
    memory_mb: 512
    device: gpu
    tiers: [edge, core]
    deadline_ms: 12.5
    priority: 1
  planner:
    tiers: {order: [edge, core], way_ms: {core: 40}}
    admission: false
  plain:
"""


def test_everything_is_read() -> None:
    rules = parse_rules(FILE, "rules.yaml")
    detector = rules.of("detector")
    assert detector.policy == "consistent_hash"
    assert detector.policy_options == {"points": 160, "load_factor": 1.5}
    assert detector.affinity.header == "x-agent-id"
    assert (detector.canary.version, detector.canary.stable, detector.canary.weight) == ("3", "2", 0.05)
    assert (detector.shadow.share, detector.shadow.max_in_flight_bytes) == (0.01, 2 << 20)
    assert (detector.quota.total_rate, detector.quota.reserve) == (1000, (0, 0.2))
    assert detector.breaker.open_ns == 500_000
    assert detector.deadline_ns == 12_500_000
    assert detector.priority == 1
    assert detector.placement == Placement(512 << 20, "gpu", ("edge", "core"))
    assert rules.outliers.consecutive_failures == 3
    assert rules.outliers.base_ns == 2_500_000_000
    assert (rules.quota.header, rules.quota.rate, rules.quota.burst) == ("x-tenant-id", 100, 200)
    assert rules.of("planner").tiers.way_ns == {"core": 40_000_000}


def test_divisions_as_a_list_and_as_a_table_over_the_defaults() -> None:
    rules = parse_rules(
        "defaults: {division: [split, core]}\n"
        "models: {a: {division: {margin_ms: 5}}, b: {division: []}, c: {division: {order: [edge], hold_ms: 2}}}",
        "rules.yaml",
    )
    assert rules.defaults.division.order == ("split", "core")
    assert (rules.of("a").division.order, rules.of("a").division.margin_ns) == (("split", "core"), 5_000_000)
    assert rules.of("b").division.order == ()
    assert (rules.of("c").division.order, rules.of("c").division.hold_ns) == (("edge",), 2_000_000)


def test_keys_that_a_model_leaves_out_have_the_defaults() -> None:
    rules = parse_rules(FILE, "rules.yaml")
    detector = rules.of("detector")
    assert (detector.retries.attempts, detector.retries.ratio) == (2, 0.2)
    assert (detector.hedge.enabled, detector.hedge.quantile) == (False, 0.9)
    assert rules.of("planner").deadline_ns == 50_000_000
    assert rules.of("plain") == rules.of("never named") == rules.defaults


def test_settings_given_switch_a_thing_on_and_a_bare_boolean_is_enough() -> None:
    assert parse_rules(FILE, "rules.yaml").defaults.hedge.enabled
    assert not parse_rules(FILE, "rules.yaml").of("planner").admission.enabled
    off = parse_rules("models: {detector: {hedge: {enabled: false, quantile: 0.9}}}", "rules.yaml")
    assert not off.of("detector").hedge.enabled
    assert parse_rules("defaults: {hedge: true}", "rules.yaml").of("any").hedge.enabled


def test_options_are_of_the_policy_they_were_written_for() -> None:
    text = "defaults: {policy_options: {quantile: 0.8}}\nmodels: {a: {policy: random}, b: {priority: 1}}"
    rules = parse_rules(text, "rules.yaml")
    assert rules.of("a").policy_options == {}
    assert rules.of("b").policy_options == {"quantile": 0.8}


def test_an_empty_file_is_all_defaults() -> None:
    assert parse_rules("", "rules.yaml") == parse_rules("models:\n", "rules.yaml") == GatewayRules()


def test_json_is_read_with_its_tabs(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"models": {"detector": {"deadline_ms": 5}}}, indent="\t"))
    assert load_rules(path).of("detector").deadline_ns == 5_000_000


@pytest.mark.parametrize(
    ("text", "key", "expected", "given"),
    [
        ("modles: {}", "modles", "a known key (did you mean 'models'?)", "an unknown key"),
        (
            "models: {detector: {deadlin_ms: 5}}",
            "models.detector.deadlin_ms",
            "a known key (did you mean 'deadline_ms'?)",
            "an unknown key",
        ),
        ("defaults: {deadline_ns: 5}", "defaults.deadline_ns", "a known key (did you mean 'deadline_ms'?)", None),
        (
            "defaults: {canary: {wieght: 1}}",
            "defaults.canary.wieght",
            "a known key (did you mean 'weight'?)",
            "an unknown key",
        ),
        ("defaults: {deadline_ms: soon}", "defaults.deadline_ms", "a number of milliseconds, at least 0", "'soon'"),
        ("defaults: {deadline_ms: -1}", "defaults.deadline_ms", "a number of milliseconds, at least 0", "-1"),
        ("defaults: {deadline_ms: .inf}", "defaults.deadline_ms", "a number of milliseconds, at least 0", "inf"),
        ("defaults: {deadline_ms: .nan}", "defaults.deadline_ms", "a number of milliseconds, at least 0", "nan"),
        ("defaults: {memory_mb: yes}", "defaults.memory_mb", "a number of MiB, at least 0", "True"),
        ("defaults: {priority: 1.5}", "defaults.priority", "an integer, at least 0", "1.5"),
        ("defaults: {policy: prequel}", "defaults.policy", "a known policy (did you mean 'prequal'?)", "'prequel'"),
        (
            "defaults: {policy: prequal, policy_options: {quantil: 1}}",
            "defaults.policy_options.quantil",
            "a known option (did you mean 'quantile'?)",
            "an unknown option",
        ),
        ("defaults: {policy: random, policy_options: {a: 1}}", "defaults.policy_options.a", None, "an unknown option"),
        ("defaults: {policy: [a]}", "defaults.policy", "a string", "['a']"),
        ("defaults: {canary: {version: 1.1}}", "defaults.canary.version", "a string (in quotes: '1.1')", "1.1"),
        ("defaults: {canary: {weight: 5}}", "defaults.canary.weight", "a number from 0 to 1", "5"),
        ("defaults: {canary: {sticky: 1}}", "defaults.canary.sticky", "true or false", "1"),
        ("defaults: {canary: 5}", "defaults.canary", "a mapping", "5"),
        ("defaults: {quota: {reserve: 0.5}}", "defaults.quota.reserve", "a list", "0.5"),
        ("defaults: {quota: {reserve: [0, 2]}}", "defaults.quota.reserve[1]", "a number from 0 to 1", "2"),
        ("defaults: {tiers: {order: [a], way_ms: {a: x}}}", "defaults.tiers.way_ms.a", None, "'x'"),
        ("models: [detector]", "models", "a mapping", "['detector']"),
        ("models: {1: {}}", "models.1", "a key that is a string (in quotes: '1')", "1"),
        ("[1, 2]", "file", "a mapping", "[1, 2]"),
        ("outliers: {least_endpoints: 1}", "outliers.least_endpoints", "an integer, at least 3", "1"),
        ("a: b: c", "file", "valid YAML", "mapping values are not allowed here"),
        ("defaults: {}\ndefaults: {}", "file", "valid YAML", "the key 'defaults' for a second time"),
        ("defaults: {canary: {weight: 0.5}}", "defaults.canary.version", None, "none"),
        ("defaults: {shadow: {share: 0.5}}", "defaults.shadow", None, "neither"),
        ("defaults: {quota: {burst: 2}}", "defaults.quota.rate", "a number above 0, since burst is set", "0"),
        ("models: {m: {quota: {total_burst: 2}}}", "models.m.quota.total_rate", None, "0"),
        ("quota: {rate: 5, compute_burst_ms: 2}", "quota.compute_share", None, "0"),
        ("defaults: {tiers: [a, a]}", "defaults.tiers.order", "each tier once", "a, a"),
        ("defaults: {tiers: {order: [a], way_ms: {b: 1}}}", "defaults.tiers.way_ms.b", "a tier of the order (a)", "b"),
        ("defaults: {division: [edge, edge]}", "defaults.division.order", "each division once", "edge, edge"),
        (
            "models: {m: {division: {order: [egde]}}}",
            "models.m.division.order",
            "a known division (did you mean 'edge'?)",
            "'egde'",
        ),
        ("defaults: {division: {order: [edge], margin_ms: -1}}", "defaults.division.margin_ms", None, "-1"),
        ("defaults: {balancer: {panic_threshold: 50}}", "defaults.balancer.panic_threshold", None, "50.0"),
    ],
)
def test_errors_name_file_line_key_expected_and_given(
    text: str, key: str, expected: str | None, given: str | None
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rules(text, "rules.yaml")
    error = caught.value
    assert error.where == f"rules.yaml:{len(text.splitlines())}"
    assert error.key == key
    assert expected is None or error.expected == expected
    assert given is None or error.given == given


def test_all_errors_are_reported_at_once() -> None:
    text = """\
defaults: {deadline_ms: soon}
models:
  detector: {canary: {weight: 5}, polcy: random}
  a.b: {hedge: {quantile: 2}}
"""
    with pytest.raises(SettingsError) as caught:
        parse_rules(text, "rules.yaml")
    assert str(caught.value).splitlines() == [
        "rules.yaml:1: defaults.deadline_ms: expected a number of milliseconds, at least 0, given 'soon'",
        "rules.yaml:3: models.detector.canary.weight: expected a number from 0 to 1, given 5",
        "rules.yaml:3: models.detector.polcy: expected a known key (did you mean 'policy'?), given an unknown key",
        "rules.yaml:4: models.a.b.hedge.quantile: expected a number from 0.5 to 0.999, given 2",
    ]


def test_settings_that_do_not_fit_together_are_reported_once() -> None:
    text = "defaults: {shadow: {share: 0.5}}\nmodels: {a: {tiers: [x, x]}, b: {policy: prequel}}"
    with pytest.raises(SettingsError) as caught:
        parse_rules(text, "rules.yaml")
    assert [problem.path for problem in caught.value.problems] == [
        ("defaults", "shadow"),
        ("models", "a", "tiers", "order"),
        ("models", "b", "policy"),
    ]


def test_a_number_beyond_all_bounds_is_an_error() -> None:
    with pytest.raises(SettingsError, match="expected a number of milliseconds, at least 0"):
        parse_rules(f"defaults: {{deadline_ms: 1{'0' * 400}}}", "rules.yaml")


def test_a_file_that_cannot_be_read_or_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file or directory; expected a readable file"):
        load_rules(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="expected UTF-8 text, given bytes that are not"):
        load_rules(tmp_path / "binary.yaml")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="valid JSON"):
        load_rules(tmp_path / "bad.json")
    (tmp_path / "twice.json").write_text('{"models": {}, "models": {}}')
    with pytest.raises(ConfigError, match="the key 'models' for a second time"):
        load_rules(tmp_path / "twice.json")


def test_a_merge_key_is_no_duplicate() -> None:
    rules = parse_rules("defaults: &all {deadline_ms: 5}\nmodels: {a: {<<: *all, priority: 1}}", "rules.yaml")
    assert rules.of("a").deadline_ns == 5_000_000


def test_every_setting_can_be_written_back_as_it_is() -> None:
    """The defaults, written in the file's own names and units, read as the defaults."""

    def written(settings: object) -> object:
        if isinstance(settings, tuple):
            return list(settings)
        if not is_dataclass(settings):
            return settings
        table = {}
        for field in fields(settings):
            name, value = field.name, getattr(settings, field.name)
            if isinstance(value, int) and name.endswith("_ns"):
                name, value = name.replace("_ns", "_ms"), value / 1e6
            elif name.endswith("_ns"):
                name = name.replace("_ns", "_ms")
            elif name.endswith("_bytes"):
                name, value = name.replace("_bytes", "_mb"), value / (1 << 20)
            table[name] = written(value)
        return table

    text = json.dumps({"defaults": written(ModelRules())})
    assert parse_rules(text, "rules.json").defaults == ModelRules()


def test_limits_of_tenants_stand_over_those_of_all_callers() -> None:
    rules = parse_rules(
        """
defaults: {quota: {rate: 10, burst: 5, tenants: {plant-a: {rate: 100}}}}
models:
  m: {quota: {concurrency: 8, tenants: {plant-a: {burst: 50}, plant-b: {token_rate: 1000}}}}
""",
        "rules.yaml",
    )
    quota = rules.of("m").quota
    assert quota.tenants == {
        "plant-a": CallerLimits(rate=100, burst=50),
        "plant-b": CallerLimits(rate=10, burst=5, concurrency=8, token_rate=1000),
    }
    assert rules.of("other").quota.tenants == {"plant-a": CallerLimits(rate=100, burst=5)}


@pytest.mark.parametrize(
    ("quota", "error"),
    [
        ("{by: tenant, rate: 1}", "quota.by: expected identity or header"),
        ("{by: header, rate: 1, tenants: {a: {rate: 2}}}", "quota.by: expected identity, since tenants is set"),
        ("{token_burst: 5}", "quota.token_rate: expected a number above 0, since token_burst is set"),
        ("{tenants: {a: {rte: 2}}}", "quota.tenants.a.rte"),
        ("{tenants: {a: {burst: 2}}}", "quota.tenants.a.rate: expected a number above 0, since burst is set"),
    ],
)
def test_quotas_that_limit_nothing_or_nobody(quota: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        parse_rules(f"quota: {quota}", "rules.yaml")
