"""What a model's configuration says of its queue and of its requests' deadlines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isochrone.clock import MICROSECOND, MILLISECOND
from isochrone.errors import ConfigError
from isochrone.worker.catalog.instance_groups import plain_parameters
from isochrone.worker.scheduling.batch_queue import LevelPolicy, QueueRules

_DEFAULT_AGEING_MS = 1000


def whole_number(parameters: Mapping[str, str], key: str, default: int, where: str) -> int:
    value = parameters.get(key, "").strip()
    if not value:
        return default
    if not value.isdigit():
        raise ConfigError(where, f'parameters["{key}"]', "a whole number", repr(value))
    return int(value)


def read_deadline_ns(parameters: Mapping[str, str], where: str) -> int:
    value = parameters.get("deadline_ms", "").strip()
    try:
        milliseconds = float(value or 0)
        if not 0 <= milliseconds < 1e12:
            raise ValueError
    except ValueError:
        expected = "milliseconds, as in 50 or 2.5"
        raise ConfigError(where, 'parameters["deadline_ms"]', expected, repr(value)) from None
    return round(milliseconds * MILLISECOND)


def queue_rules(config: Any) -> QueueRules:
    """The rules of a model's queue, from ``dynamic_batching`` and the parameter ``priority_ageing_ms``."""
    if not config.HasField("dynamic_batching"):
        return QueueRules()
    batching = config.dynamic_batching
    levels = int(batching.priority_levels) or 1
    policies = []
    for level in range(1, levels + 1):
        policy = batching.priority_queue_policy.get(level, batching.default_queue_policy)
        policies.append(
            LevelPolicy(
                policy.max_queue_size,
                policy.default_timeout_microseconds * MICROSECOND,
                policy.timeout_action == 1,
            )
        )
    ageing = whole_number(plain_parameters(config), "priority_ageing_ms", _DEFAULT_AGEING_MS, config.name)
    return QueueRules(
        max_rows=max(1, config.max_batch_size),
        preferred=tuple(sorted(batching.preferred_batch_size)),
        delay_ns=batching.max_queue_delay_microseconds * MICROSECOND,
        levels=levels,
        default_level=int(batching.default_priority_level) or 1,
        ageing_ns=ageing * MILLISECOND,
        policies=tuple(policies),
    )
