"""The share of a gateway's quotas that one of several processes has. Pure.

The rate of all callers together is divided: their connections spread over the processes. A caller's own quotas are not:
an agent has one connection, so one process, and must get all of its rate there.
"""

from __future__ import annotations

from dataclasses import replace

from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.quotas import QuotaRules


def share_of_quotas(rules: GatewayRules, count: int) -> GatewayRules:
    """The rules of each of ``count`` processes."""
    return replace(
        rules,
        quota=_share(rules.quota, count),
        defaults=_with_share(rules.defaults, count),
        models={name: _with_share(each, count) for name, each in rules.models.items()},
    )


def has_quotas_of_callers(rules: GatewayRules) -> bool:
    """Whether a caller that connects to several processes could use more than its quota."""
    quotas = (rules.quota, rules.defaults.quota, *(each.quota for each in rules.models.values()))
    return any(quota.rate or quota.concurrency or quota.compute_share for quota in quotas)


def _with_share(rules: ModelRules, count: int) -> ModelRules:
    return replace(rules, quota=_share(rules.quota, count))


def _share(quota: QuotaRules, count: int) -> QuotaRules:
    if not quota.total_rate:
        return quota
    return replace(quota, total_rate=quota.total_rate / count, total_burst=max(1, quota.total_burst // count))
