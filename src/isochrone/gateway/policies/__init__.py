"""Routing policies by name, one file each. ``make`` constructs one for the gateway or the simulator.

To add a policy:

- Write ``policies/<name>.py`` with a subclass of ``base.Policy`` that has a ``name`` and a ``choose``. ``toolkit``,
  ``hashing`` and ``weighted`` have base classes for scores, keys and weights. The docstring names the rule's source.
- Options are keyword-only arguments of ``__init__``, checked with ``toolkit.options``. Rules files set them
  under ``policy_options``, scenarios of the simulator under ``options``, without further code.
- Register the class in ``_CLASSES`` below, and the module in the layers of "Routing policies do not know each other" in
  import-contracts.toml. fleet.yaml, rules files, the command line, the simulator and the benches go by ``NAMES``.
- ``tests/gateway/policies/test_every_policy.py`` runs every registered policy. Add a test of the rule itself beside it.
- Add a row to the table "Policies" in docs/gateway.md. Counters go into ``counts`` and the table "Metrics" there. Run
  ``make docs``; README.md and docs/architecture.svg say how many policies there are.

What a policy knows of a request is ``base.Demand``. The gateway does not parse tensors, so a new figure must come from
the head or the first fields of a message: the codecs in ``gateway.front`` set it, ``ServedModel.plain_demand`` stands
for requests without any, and ``simulate.processes.gateways`` sets it in simulations.

A policy must not perform I/O or read a clock. Of the gateway it imports ``replicas`` alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from random import Random
from typing import Any

from isochrone.errors import ConfigError
from isochrone.gateway.policies.base import Demand, Policy

__all__ = ["DEFAULT", "NAMES", "Demand", "Policy", "known_options", "make", "reads_prompts"]

DEFAULT = "prequal"
#: Name → module and class. Imported on demand, so that a gateway loads only what it uses.
_CLASSES = {
    "round_robin": ("round_robin", "RoundRobin"),
    "random": ("random_choice", "RandomChoice"),
    "least_connections": ("least_connections", "LeastConnections"),
    "power_of_two": ("power_of_two", "PowerOfTwo"),
    "least_pending": ("least_pending", "LeastPending"),
    "consistent_hash": ("hashing.consistent_hash", "ConsistentHash"),
    "prefix": ("prefix.policy", "Prefix"),
    "maglev": ("hashing.maglev", "Maglev"),
    "token_bucket": ("token_bucket", "TokenBucket"),
    "latency_weighted": ("weighted.latency_weighted", "LatencyWeighted"),
    "weighted_round_robin": ("weighted.weighted_round_robin", "WeightedRoundRobin"),
    "peak_ewma": ("peak_ewma", "PeakEwma"),
    "prequal": ("prequal.policy", "Prequal"),
    "learned": ("learned.policy", "Learned"),
}
NAMES = tuple(_CLASSES)


def make(name: str, random: Random, **given: Any) -> Policy:
    """Construct a policy. Raises ``ConfigError`` for an unknown name, an unknown option or a wrong value."""
    policy = _policy_class(name)
    known = known_options(name)
    for key in given:
        if key not in known:
            expected = f"one of {', '.join(known)}" if known else "no options"
            raise ConfigError(f"policy {name}", key, expected, repr(given[key]))
    return policy(random, **given)


@cache
def known_options(name: str) -> Mapping[str, Any]:
    """The options of a policy and their defaults."""
    parameters = inspect.signature(_policy_class(name)).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def reads_prompts(name: str) -> bool:
    """Whether a policy goes by the prompts of requests."""
    return _policy_class(name).reads_prompts


def _policy_class(name: str) -> type[Policy]:
    if name not in _CLASSES:
        raise ConfigError("policy", "name", f"one of {', '.join(NAMES)}", repr(name))
    module, attribute = _CLASSES[name]
    found: type[Policy] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
