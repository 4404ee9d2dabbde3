"""The file that a gateway's rules are read from. Read once at the start; what comes out is frozen and checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from isochrone.errors import ConfigError
from isochrone.gateway.policies import NAMES, known_options
from isochrone.gateway.resilience.outliers import OutlierRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.rules.reading import as_mapping, read
from isochrone.gateway.traffic.quotas import QuotaRules
from isochrone.suggestions import suggestion


def load_rules(path: Path | str) -> GatewayRules:
    """Reads a YAML or JSON file; raises ``ConfigError``, which names file, key, what was expected and what is given."""
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(where, "file", "a readable file in UTF-8", str(error)) from error
    return parse_rules(text, where)


def parse_rules(text: str, where: str) -> GatewayRules:
    """The same of the file's text. JSON by the name ``where`` ends with: YAML forbids the tabs it may hold."""
    try:
        given = (
            json.loads(text, object_pairs_hook=_once) if where.endswith(".json") else yaml.load(text, Loader=_Loader)
        )
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}" if error.problem_mark else "file"
        raise ConfigError(where, line, "valid YAML", str(error.problem)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(
            where, "file", "valid JSON" if where.endswith(".json") else "valid YAML", str(error)
        ) from error
    table = as_mapping(given, where, "")
    known = ["defaults", "models", "outliers", "quota"]
    for name in table:
        if name not in known:
            raise ConfigError(where, name, suggestion(name, known), "an unknown key")
    defaults = _checked(read(ModelRules(), table.get("defaults"), where, "defaults"), where, "defaults")
    models = {}
    for name, value in as_mapping(table.get("models"), where, "models").items():
        key = f"models.{name}"
        base = defaults
        if isinstance(value, dict) and value.get("policy", defaults.policy) != defaults.policy:
            # Options are of the policy they were written for.
            base = replace(defaults, policy_options={})
        models[name] = _checked(read(base, value, where, key), where, key)
    outliers = read(OutlierRules(), table.get("outliers"), where, "outliers")
    return GatewayRules(defaults, models, outliers, read(QuotaRules(), table.get("quota"), where, "quota"))


def _checked(rules: ModelRules, where: str, key: str) -> ModelRules:
    """What one setting's type cannot say: names that must exist, settings that need each other."""
    if rules.policy not in NAMES:
        raise ConfigError(where, f"{key}.policy", suggestion(rules.policy, list(NAMES), "policy"), repr(rules.policy))
    for option in rules.policy_options:
        known = list(known_options(rules.policy))
        if option not in known:
            expected = suggestion(option, known, "option") if known else f"none: {rules.policy} has no options"
            raise ConfigError(where, f"{key}.policy_options.{option}", expected, "an unknown option")
    if rules.canary.weight and not rules.canary.version:
        raise ConfigError(where, f"{key}.canary.version", "a version, since canary.weight is set", "none")
    if rules.shadow.share and not (rules.shadow.version or rules.shadow.model):
        raise ConfigError(where, f"{key}.shadow", "a version or a model, since shadow.share is set", "neither")
    order = rules.tiers.order
    if len(set(order)) < len(order):
        raise ConfigError(where, f"{key}.tiers.order", "each tier once", ", ".join(order))
    for tier in rules.tiers.way_ns:
        if tier not in order:
            raise ConfigError(where, f"{key}.tiers.way_ms.{tier}", f"a tier of the order ({', '.join(order)})", tier)
    for name in ("panic_threshold", "slow_start_floor"):
        share = getattr(rules.balancer, name)
        if not 0 <= share <= 1:
            raise ConfigError(where, f"{key}.balancer.{name}", "a number from 0 to 1", str(share))
    return rules


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key is given twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return table


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is given twice is an error: the first would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)
