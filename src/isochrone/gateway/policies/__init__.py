"""Routing policies by name: one file each, each with its source. ``make`` is how the rest of the gateway gets one."""

from __future__ import annotations

import inspect
from importlib import import_module
from random import Random
from typing import Any

from isochrone.errors import ConfigError
from isochrone.gateway.policies.base import Demand, Policy

__all__ = ["DEFAULT", "NAMES", "Demand", "Policy", "known_options", "make"]

DEFAULT = "prequal"
#: Name → module and class; imported when asked for, so that a gateway holds no more than what it uses.
_WHERE = {
    "round_robin": ("round_robin", "RoundRobin"),
    "random": ("random_choice", "RandomChoice"),
    "least_connections": ("least_connections", "LeastConnections"),
    "power_of_two": ("power_of_two", "PowerOfTwo"),
    "least_pending": ("least_pending", "LeastPending"),
    "consistent_hash": ("hashing.consistent_hash", "ConsistentHash"),
    "maglev": ("hashing.maglev", "Maglev"),
    "token_bucket": ("token_bucket", "TokenBucket"),
    "latency_weighted": ("weighted.latency_weighted", "LatencyWeighted"),
    "weighted_round_robin": ("weighted.weighted_round_robin", "WeightedRoundRobin"),
    "peak_ewma": ("peak_ewma", "PeakEwma"),
    "prequal": ("prequal.policy", "Prequal"),
    "learned": ("learned.policy", "Learned"),
}
#: What ``make`` knows.
NAMES = tuple(_WHERE)


def make(name: str, random: Random, **given: Any) -> Policy:
    """The policy of that name. Options are those of its class; a wrong one is told with what would be right."""
    policy = _policy_class(name)
    known = known_options(name)
    for key in given:
        if key not in known:
            expected = f"one of {', '.join(known)}" if known else "no options"
            raise ConfigError(f"policy {name}", key, expected, repr(given[key]))
    return policy(random, **given)


def known_options(name: str) -> dict[str, Any]:
    """A policy's options and their defaults."""
    parameters = inspect.signature(_policy_class(name)).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def _policy_class(name: str) -> type[Policy]:
    if name not in _WHERE:
        raise ConfigError("policy", "name", f"one of {', '.join(NAMES)}", repr(name))
    module, attribute = _WHERE[name]
    found: type[Policy] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
