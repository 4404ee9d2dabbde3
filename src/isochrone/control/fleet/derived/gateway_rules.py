"""The gateway rules of a fleet, as the text that ``gateway.rules.file.parse_rules`` reads. Pure.

Every gateway of the fleet uses the same text, from the store. It does not contain versions, canaries and digests: those
are in the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from isochrone.control.fleet.settings.model_spec import ModelDefaults
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.errors import ConfigError
from isochrone.gateway.policies import make
from isochrone.gateway.rules.file import examine_rules
from isochrone.settings.problems import Path, Problem

#: Name of the text for ``parse_rules``: its ending says that the text is JSON.
SOURCE = "fleet.json"
#: The waiting room of a model whose pools may all be empty: requests, and the shortest limit of their wait.
_MOST_WAITING = 1000
_LEAST_WAIT_MS = 30_000.0
#: Rules of a model that stand in fleet.yaml in a place of their own.
_OWN = {
    "deadline_ms": ("slo",),
    "priority": ("slo",),
    "policy": (),
    "policy_options": (),
    "affinity": (),
    "division": (),
}


def gateway_rules(fleet: Fleet) -> str:
    """The rules of all models, as JSON; ``parse_rules(text, SOURCE)`` reads it."""
    return json.dumps(_data(fleet), sort_keys=True)


def _data(fleet: Fleet) -> dict[str, Any]:
    return {
        "defaults": _rules(fleet, fleet.defaults),
        "models": {name: _rules(fleet, model) for name, model in fleet.models.items()},
        "outliers": fleet.traffic.outliers,
        "quota": fleet.traffic.quota,
        "agents": fleet.traffic.agents,
    }


def _rules(fleet: Fleet, model: ModelDefaults) -> dict[str, Any]:
    rules: dict[str, Any] = {
        **model.traffic,
        "policy": model.policy,
        "policy_options": model.policy_options,
        "affinity": model.affinity,
        "deadline_ms": model.slo.deadline_ms,
        "priority": model.slo.priority,
    }
    if model.division:
        rules["division"] = model.division
    if "tiers" in model.traffic:
        rules["tiers"] = _with_ways(fleet, model.traffic["tiers"])
    if "waiting_room" not in model.traffic:
        if room := _waiting_room(fleet, model):
            rules["waiting_room"] = room
        elif _waiting_room(fleet, fleet.defaults):
            # Models inherit the rules of the defaults.
            rules["waiting_room"] = {"max_requests": 0}
    return rules


def _waiting_room(fleet: Fleet, model: ModelDefaults) -> dict[str, Any]:
    """If all pools of a model may be empty, its requests wait for a worker to start; else it has no such rule."""
    sections = [fleet.pools[pool].autoscale for pool in model.pools or fleet.pools if pool in fleet.pools]
    start_ups = [each.start_up_seconds for each in sections if each is not None and each.zero_after_seconds is not None]
    if not start_ups or len(start_ups) < len(sections):
        return {}
    return {"max_requests": _MOST_WAITING, "max_wait_ms": max(_LEAST_WAIT_MS, 2000 * max(start_ups))}


def _with_ways(fleet: Fleet, tiers: Any) -> Any:
    """Tiers with the pools' distances, there and back, as their network times; the file's own times win."""
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
    """The errors that the gateway would report for the rules, by their paths in fleet.yaml."""
    places: dict[Path, ModelDefaults] = {("defaults",): fleet.defaults}
    places |= {("models", name): model for name, model in fleet.models.items()}
    found = [problem for at, model in places.items() if (problem := _without_json(fleet, at, model))]
    if not found:
        _, problems = examine_rules(_data(fleet))
        found = [Problem(_place(problem.path), problem.expected, problem.given) for problem in problems]
        wrong = {problem.path[:2] if problem.path[0] == "models" else problem.path[:1] for problem in found}
        found += [problem for at, model in places.items() if at not in wrong for problem in _policy(at, model)]
    # A model inherits the errors of the defaults: reporting them once is enough.
    inherited = {(problem.path[1:], problem.given) for problem in found if problem.path[0] == "defaults"}
    return [each for each in found if each.path[0] != "models" or (each.path[2:], each.given) not in inherited]


def _without_json(fleet: Fleet, at: Path, model: ModelDefaults) -> Problem | None:
    """YAML has values that JSON has not, such as bytes."""
    try:
        json.dumps(_rules(fleet, model), sort_keys=True)
    except (TypeError, ValueError) as error:
        return Problem((*at, "traffic"), "mappings, lists, strings and numbers", str(error))
    return None


def _policy(at: Path, model: ModelDefaults) -> Iterator[Problem]:
    try:
        make(model.policy, Random(0), **model.policy_options)
    except ConfigError as error:
        yield Problem((*at, "policy_options", error.key), error.expected, error.given)


def _place(path: Path) -> Path:
    """The path in fleet.yaml of a setting of the rules."""
    if path[0] not in ("defaults", "models"):
        return ("traffic", *path)
    depth = 1 if path[0] == "defaults" else 2
    at, rest = path[:depth], path[depth:]
    if rest and rest[0] in _OWN:
        return (*at, *_OWN[str(rest[0])], *rest)
    return (*at, "traffic", *rest)
