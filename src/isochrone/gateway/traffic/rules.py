"""All settings of a gateway's decisions, per model, and the file they are read from.

Read once at the start; what comes out is frozen and checked. A model that the file
does not name has the file's defaults. Nothing here is looked at on the way of a request but through ``of``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from isochrone.errors import ConfigError
from isochrone.gateway.admission import AdmissionRules
from isochrone.gateway.balancer import BalancerRules, Placement
from isochrone.gateway.policies import DEFAULT, NAMES, known_options
from isochrone.gateway.ranges import Count, Duration
from isochrone.gateway.resilience.breaker import BreakerRules
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.resilience.outliers import OutlierRules
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.resilience.suspects import QuarantineRules
from isochrone.gateway.traffic.affinity import AffinityRules
from isochrone.gateway.traffic.canary import CanaryRules
from isochrone.gateway.traffic.quotas import QuotaRules
from isochrone.gateway.traffic.rule_reading import as_mapping, read
from isochrone.gateway.traffic.shadow import ShadowRules
from isochrone.gateway.traffic.tiers import TierRules
from isochrone.models.config_keys import suggestion


@dataclass(frozen=True, slots=True)
class ModelRules:
    """How requests of one model are treated."""

    #: Name of the routing policy, and what it is made with.
    policy: str = DEFAULT
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    #: When requests without a deadline of their own must be answered; 0: they have none.
    deadline_ns: Duration = 0
    #: Class of requests that name none, 1 the highest; 0: the worker's default.
    priority: Count = 0
    #: What must be free on a worker, the device it must have ("": any), and the digest it must serve ("": any).
    memory_bytes: Count = 0
    device: str = ""
    digest: str = ""
    #: Who is eligible: panic threshold and slow start.
    balancer: BalancerRules = field(default_factory=BalancerRules)
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    retries: RetryRules = field(default_factory=RetryRules)
    hedge: HedgeRules = field(default_factory=HedgeRules)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    quarantine: QuarantineRules = field(default_factory=QuarantineRules)
    affinity: AffinityRules = field(default_factory=AffinityRules)
    canary: CanaryRules = field(default_factory=CanaryRules)
    shadow: ShadowRules = field(default_factory=ShadowRules)
    #: Per caller for this model alone, beside the gateway's own quota.
    quota: QuotaRules = field(default_factory=QuotaRules)
    tiers: TierRules = field(default_factory=TierRules)

    @property
    def placement(self) -> Placement:
        """The model's row of the routing table."""
        return Placement(self.memory_bytes, self.device, self.tiers.order, self.digest)


@dataclass(frozen=True, slots=True)
class GatewayRules:
    """The whole file."""

    #: What holds for models that are not named, and for what the named ones leave out.
    defaults: ModelRules = field(default_factory=ModelRules)
    models: Mapping[str, ModelRules] = field(default_factory=dict)
    #: Ejection is of whole endpoints, whatever they serve.
    outliers: OutlierRules = field(default_factory=OutlierRules)
    #: Per caller over all models.
    quota: QuotaRules = field(default_factory=QuotaRules)

    def of(self, model: str) -> ModelRules:
        """The rules of one model."""
        return self.models.get(model, self.defaults)

    def with_policy(self, policy: str) -> GatewayRules:
        """The same with another policy for models that do not choose one of their own."""
        known = self.defaults.policy
        models = {
            name: replace(rules, policy=policy, policy_options={}) if rules.policy == known else rules
            for name, rules in self.models.items()
        }
        return replace(self, defaults=replace(self.defaults, policy=policy, policy_options={}), models=models)


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
