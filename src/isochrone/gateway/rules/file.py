"""The file that a gateway's rules are read from, once at the start. Errors name file, line, key, expected and given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isochrone.gateway.policies import NAMES, known_options
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.quota_rules import BY_HEADER, BY_IDENTITY, CallerLimits, QuotaRules
from isochrone.protocol.headers.divisions import DIVISION_KINDS
from isochrone.settings.documents import parse_document, read_text
from isochrone.settings.expectations import problems_of
from isochrone.settings.problems import Path as KeyPath
from isochrone.settings.problems import Problem, settings_error
from isochrone.settings.records import RecordSection, read_over, section_of
from isochrone.suggestions import suggestion

_UNLIMITED = QuotaRules()


def load_rules(path: Path | str) -> GatewayRules:
    """Read a YAML or JSON file; raises ``SettingsError`` with all its errors."""
    return parse_rules(read_text(path, "a readable file"), str(path))


def parse_rules(text: str, where: str) -> GatewayRules:
    """The rules in a file's text: JSON if the name ``where`` ends in .json, else YAML."""
    document = parse_document(text, where)
    rules, problems = examine_rules(document.data)
    if problems:
        raise settings_error(problems, where, document.lines)
    return rules


def examine_rules(data: Any) -> tuple[GatewayRules, list[Problem]]:
    """The rules in a file's data, and all errors. Models with errors are left out to check the others."""
    section = section_of(GatewayRules)
    found: list[Problem] = []
    try:
        given = section.model_validate(data)
    except ValidationError as error:
        found = problems_of(error, section)
        wrong = {problem.path[:2] if problem.path[:1] == ("models",) else problem.path[:1] for problem in found}
        if any(len(path) < 2 for path in wrong):
            # What models inherit is not known.
            return GatewayRules(), found
        models = {name: model for name, model in data["models"].items() if ("models", str(name)) not in wrong}
        given = section.model_validate({**data, "models": models})
    rules = _rules_of(given)
    found += _quota_problems(rules.quota, ("quota",))
    found += _problems(rules.defaults, ("defaults",))
    inherited = {(problem.path[1:], problem.given) for problem in found}
    for name, model in rules.models.items():
        # A model inherits the errors of the defaults: reporting them once is enough.
        problems = _problems(model, ("models", name))
        found += [each for each in problems if (each.path[2:], each.given) not in inherited]
    return rules, found


def _rules_of(given: RecordSection) -> GatewayRules:
    base = GatewayRules()
    sections = {name: getattr(given, name) for name in given.model_fields_set}
    models: dict[str, RecordSection] = sections.pop("models", {})
    read = {name: read_over(getattr(base, name), section) for name, section in sections.items()}
    rules = replace(base, **read)
    return replace(rules, models={name: _model(rules.defaults, section) for name, section in models.items()})


def _model(defaults: ModelRules, given: RecordSection) -> ModelRules:
    policy = given.policy if "policy" in given.model_fields_set else defaults.policy  # type: ignore[attr-defined]
    # Options belong to the policy that they were written for.
    return read_over(defaults if policy == defaults.policy else replace(defaults, policy_options={}), given)


def _problems(rules: ModelRules, at: KeyPath) -> Iterator[Problem]:
    """Errors that one setting's type cannot express: unknown names, settings that need each other."""
    if rules.policy not in NAMES:
        yield Problem((*at, "policy"), suggestion(rules.policy, list(NAMES), "policy"), repr(rules.policy))
    else:
        known = list(known_options(rules.policy))
        for option in rules.policy_options:
            if option not in known:
                expected = suggestion(option, known, "option") if known else f"none: {rules.policy} has no options"
                yield Problem((*at, "policy_options", option), expected, "an unknown option")
    if rules.canary.weight and not rules.canary.version:
        yield Problem((*at, "canary", "version"), "a version, since canary.weight is set", "none")
    if rules.shadow.share and not (rules.shadow.version or rules.shadow.model):
        yield Problem((*at, "shadow"), "a version or a model, since shadow.share is set", "neither")
    yield from _quota_problems(rules.quota, (*at, "quota"))
    order = rules.tiers.order
    if len(set(order)) < len(order):
        yield Problem((*at, "tiers", "order"), "each tier once", ", ".join(order))
    for tier in rules.tiers.way_ns:
        if tier not in order:
            yield Problem((*at, "tiers", "way_ms", tier), f"a tier of the order ({', '.join(order)})", tier)
    yield from _division_problems(rules.division.order, (*at, "division", "order"))
    for name in ("panic_threshold", "slow_start_floor"):
        share = getattr(rules.balancer, name)
        if not 0 <= share <= 1:
            yield Problem((*at, "balancer", name), "a number from 0 to 1", str(share))


def _division_problems(order: tuple[str, ...], at: KeyPath) -> Iterator[Problem]:
    for kind in order:
        if kind not in DIVISION_KINDS:
            yield Problem(at, suggestion(kind, list(DIVISION_KINDS), "division"), repr(kind))
    if len(set(order)) < len(order):
        yield Problem(at, "each division once", ", ".join(order))


def _quota_problems(quota: QuotaRules, at: KeyPath) -> Iterator[Problem]:
    """A burst without its rate limits nothing; callers who name themselves are no tenant's."""
    if quota.by not in ("", BY_IDENTITY, BY_HEADER):
        yield Problem((*at, "by"), f"{BY_IDENTITY} or {BY_HEADER}", repr(quota.by))
    if quota.tenants and quota.by == BY_HEADER:
        yield Problem((*at, "by"), f"{BY_IDENTITY}, since tenants is set: an access file says who they are", quota.by)
    yield from _useless_bursts(quota, _UNLIMITED, at)
    for name, limits in quota.tenants.items():
        yield from _useless_bursts(limits, quota, (*at, "tenants", name))
    if quota.total_burst != _UNLIMITED.total_burst and not quota.total_rate:
        yield Problem((*at, "total_rate"), "a number above 0, since total_burst is set", "0")


def _useless_bursts(limits: CallerLimits, inherited: CallerLimits, at: KeyPath) -> Iterator[Problem]:
    for burst, rate, key in (
        ("burst", "rate", "burst"),
        ("compute_burst_ns", "compute_share", "compute_burst_ms"),
        ("token_burst", "token_rate", "token_burst"),
    ):
        if getattr(limits, burst) != getattr(inherited, burst) and not getattr(limits, rate):
            yield Problem((*at, rate), f"a number above 0, since {key} is set", "0")
