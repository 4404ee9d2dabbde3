"""The gateway's rules that a fleet means: the text that ``gateway.rules.file.parse_rules`` reads. Pure.

Every gateway of the fleet goes by the same text, taken from the store. Versions, canaries and digests are not in it:
those are the epoch's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from isochrone.control.fleet.checks import Path, Problem
from isochrone.control.fleet.model_spec import ModelDefaults
from isochrone.control.fleet.spec import Fleet
from isochrone.errors import ConfigError
from isochrone.gateway.policies import make
from isochrone.gateway.rules.file import parse_rules

#: Told to ``parse_rules``: by its ending the text is JSON.
SOURCE = "fleet.json"
#: Rules of a model that stand in fleet.yaml in a place of their own.
_OWN = {"deadline_ms": ("slo",), "priority": ("slo",), "policy": (), "policy_options": (), "affinity": ()}


def gateway_rules(fleet: Fleet) -> str:
    """The rules of all models, as JSON; ``parse_rules(text, SOURCE)`` reads it."""
    return _text(fleet, fleet.defaults, {name: _rules(fleet, model) for name, model in fleet.models.items()})


def _text(fleet: Fleet, defaults: ModelDefaults, models: dict[str, Any]) -> str:
    rules = {
        "defaults": _rules(fleet, defaults),
        "models": models,
        "outliers": fleet.traffic.outliers,
        "quota": fleet.traffic.quota,
    }
    return json.dumps(rules, sort_keys=True)


def _rules(fleet: Fleet, model: ModelDefaults) -> dict[str, Any]:
    rules: dict[str, Any] = {
        **model.traffic,
        "policy": model.policy,
        "policy_options": model.policy_options,
        "affinity": model.affinity,
        "deadline_ms": model.slo.deadline_ms,
        "priority": model.slo.priority,
    }
    if "tiers" in model.traffic:
        rules["tiers"] = _with_ways(fleet, model.traffic["tiers"])
    return rules


def _with_ways(fleet: Fleet, tiers: Any) -> Any:
    """Tiers with the pools' distances as their ways, there and back; what the file says itself stays."""
    table = {"order": tiers} if isinstance(tiers, list) else tiers
    if not isinstance(table, dict) or not isinstance(table.get("order"), list):
        return tiers
    ways: dict[str, float] = {}
    for pool in fleet.pools.values():
        if pool.distance_ms and pool.tier in table["order"]:
            ways[pool.tier] = min(2 * pool.distance_ms, ways.get(pool.tier, float("inf")))
    given = table.get("way_ms")
    return {**table, "way_ms": {**ways, **given} if isinstance(given, dict) else ways if given is None else given}


def rule_problems(fleet: Fleet) -> list[Problem]:
    """What the gateway would say against the rules, each by its place in fleet.yaml."""
    found = _all_problems(fleet, ("defaults",), fleet.defaults)
    if not found:
        # Models have it from there: once is enough.
        for name, model in fleet.models.items():
            found += _all_problems(fleet, ("models", name), model)
    return list(dict.fromkeys(found))


def _all_problems(fleet: Fleet, at: Path, model: ModelDefaults) -> list[Problem]:
    """The rules are read up to the first mistake, so each is read alone."""
    single = [model.model_copy(update={"traffic": {key: value}}) for key, value in model.traffic.items()]
    return [problem for one in single or [model] for problem in _problems(fleet, at, one)]


def _problems(fleet: Fleet, at: Path, model: ModelDefaults) -> list[Problem]:
    try:
        if at == ("defaults",):
            text = _text(fleet, model, {})
        else:
            text = _text(fleet, ModelDefaults(), {str(at[1]): _rules(fleet, model)})
    except (TypeError, ValueError) as error:
        return [Problem((*at, "traffic"), "mappings, lists, strings and numbers", str(error))]
    try:
        parse_rules(text, SOURCE)
    except ConfigError as error:
        return [Problem(_place(error.key, at), error.expected, error.given)]
    try:
        make(model.policy, Random(0), **model.policy_options)
    except ConfigError as error:
        return [Problem((*at, "policy_options", error.key), error.expected, error.given)]
    return []


def _place(key: str, at: Path) -> Path:
    """Where in fleet.yaml a key of the rules stands."""
    prefix = ".".join(str(step) for step in at)
    if not key.startswith(f"{prefix}."):
        return ("traffic", *_steps(key))
    first, *rest = _steps(key.removeprefix(f"{prefix}."))
    if str(first) in _OWN:
        return (*at, *_OWN[str(first)], first, *rest)
    return (*at, "traffic", first, *rest)


def _steps(key: str) -> Sequence[str | int]:
    steps: list[str | int] = []
    for part in key.split("."):
        name, *indices = part.replace("]", "").split("[")
        steps += [name, *(int(index) for index in indices)]
    return steps
