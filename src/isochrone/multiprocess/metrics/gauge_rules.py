"""How gauges of several processes become one figure. Counters, histograms and summaries always add up.

docs/metrics.md has the same table for users.
"""

from __future__ import annotations

from typing import Final

#: The machine's, or the same in each process: adding would count it several times.
_LARGEST: Final = frozenset(
    (
        "nv_cpu_utilization",
        "nv_cpu_memory_total_bytes",
        "nv_cpu_memory_used_bytes",
        "nv_gpu_utilization",
        "nv_gpu_memory_total_bytes",
        "nv_gpu_memory_used_bytes",
        "nv_gpu_power_usage",
        "nv_gpu_power_limit",
        "nv_energy_consumption",
        "isochrone_activation_cache_error",
        "isochrone_activation_cache_error_largest",
        "isochrone_activation_cache_error_budget",
        "isochrone_activation_cache_alarm",
        "isochrone_division_late_seconds",
        "isochrone_division_link_jitter_seconds",
        "isochrone_division_link_bytes_per_second",
        "isochrone_gateway_epoch",
        "isochrone_gateway_version",
        "isochrone_gateway_worker_ejected",
        "isochrone_gateway_quarantined",
    )
)
#: True only if it is true in each process; and the round trip, which no process measures too short.
_SMALLEST: Final = frozenset(
    (
        "isochrone_division_core_answers",
        "isochrone_division_link_round_trip_seconds",
        "isochrone_gateway_worker_healthy",
        "isochrone_gateway_name_resolves",
        "isochrone_gateway_store_connected",
        "isochrone_certificate_expiry_timestamp_seconds",
        "isochrone_gateway_worker_round_trip_seconds",
    )
)
#: Shares of something that each process has the same amount of.
_MEAN: Final = frozenset(("nv_cache_util",))
#: Series that end while their process lives: those of agents, which others replace.
_PASSING: Final = "isochrone_gateway_agent_"
#: Figures of a process; they get a label with its number.
_OF_A_PROCESS: Final = "process_"


def rule(family: str, kind: str) -> str:
    """How the samples of a metric family combine: add, largest, smallest, mean or label."""
    if family.startswith(_OF_A_PROCESS):
        return "label"
    if kind == "info" or family.endswith("_info") or family in _LARGEST:
        return "largest"
    if family in _SMALLEST:
        return "smallest"
    return "mean" if family in _MEAN else "add"


def grows(family: str, kind: str) -> bool:
    """Whether the samples count since the start, so that those of a process that ended must not vanish."""
    return rule(family, kind) == "add" and kind in ("counter", "histogram", "summary", "unknown", "untyped")


def is_passing(name: str) -> bool:
    """Whether the series of a family, or of a sample, may end or restart while their process lives."""
    return name.startswith(_PASSING)
