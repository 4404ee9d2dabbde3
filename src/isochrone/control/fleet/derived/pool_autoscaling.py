"""The settings of a pool's autoscaler. Pure."""

from __future__ import annotations

from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.control.fleet.settings.pool_bounds import largest_size
from isochrone.control.fleet.settings.sections import FleetSections


def autoscaler_settings(fleet: FleetSections, pool: str) -> AutoscalerSettings | None:
    """None: the pool is not autoscaled."""
    spec = fleet.pools[pool]
    section = spec.autoscale
    if section is None:
        return None
    slo_ms = section.slo_ms if section.slo_ms is not None else _smallest_deadline_ms(fleet, pool)
    return AutoscalerSettings(
        min_workers=max(1, spec.min),
        max_workers=largest_size(spec),
        cost_cap=section.cost_cap,
        zero_after_seconds=section.zero_after_seconds,
        slo_seconds=slo_ms / 1000 if slo_ms else AutoscalerSettings().slo_seconds,
        start_up_seconds=section.start_up_seconds,
        deviations=section.deviations,
        trend_seconds=section.trend_seconds,
        down_seconds=section.down_seconds,
        down_share=section.down_share,
        hysteresis=section.hysteresis,
        has_forecast=section.forecast,
    )


def _smallest_deadline_ms(fleet: FleetSections, pool: str) -> float:
    """Of the models that the pool serves; 0: they have no deadline."""
    named = [model for name, model in fleet.models.items() if pool in fleet.pools_of(name)]
    models = named if fleet.models else [fleet.defaults]
    return min((model.slo.deadline_ms for model in models if model.slo.deadline_ms), default=0.0)
