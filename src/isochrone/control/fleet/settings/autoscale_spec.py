"""The section ``autoscale`` of a pool in fleet.yaml, as a type.

Defaults are those of ``control.autoscaler.settings``, except the start-up time: processes of a fleet start faster than
pods. The bounds of the pool's size are its own ``min`` and ``max``.
"""

from __future__ import annotations

from pydantic import Field

from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.control.fleet.settings.quantities import PositiveMilliseconds, PositiveSeconds, Share
from isochrone.settings.sections import Section

_DEFAULTS = AutoscalerSettings()


class Autoscale(Section):
    """How the leading controller sets the number of workers of a pool, from min to max, by its load. true: all
    defaults; false: no autoscaling. See docs/autoscaling.md."""

    slo_ms: PositiveMilliseconds | None = None
    """Time within which requests are to be answered. The capacity of a worker, and how long requests may wait, are
    judged by it. The default is the smallest slo.deadline_ms of the pool's models; if they have none, 200."""
    start_up_seconds: PositiveSeconds = 30.0
    """Time from the decision to start a worker until it serves, with all models loaded. Load is predicted this far
    ahead: measure yours."""
    zero_after_seconds: PositiveSeconds | None = None
    """Without a request for this long the pool has no worker; the next request starts one, and waits for it. Needs min
    0. The default is never."""
    cost_per_worker: float = Field(default=1.0, gt=0)
    """Cost of one worker per hour, in any unit."""
    cost_cap: float | None = Field(default=None, gt=0)
    """Highest cost of the pool per hour, standby and draining workers included, in the unit of cost_per_worker. It wins
    over min. The default is no limit."""
    deviations: float = Field(default=_DEFAULTS.deviations, ge=0)
    """Margin over the expected load, in standard deviations of past errors. Higher: fewer refusals, more workers."""
    trend_seconds: PositiveSeconds = _DEFAULTS.trend_seconds
    """Readings whose mean is the present load, and in which a rise is looked for. Shorter: faster, and more often
    misled by noise."""
    down_seconds: PositiveSeconds = _DEFAULTS.down_seconds
    """A lower number of workers must have sufficed for this long before workers are removed."""
    down_share: Share = Field(default=_DEFAULTS.down_share, gt=0)
    """Most that is removed at once, as a share of the workers; at least one worker."""
    hysteresis: Share = _DEFAULTS.hysteresis
    """Capacity that must stay free before a worker is removed."""
    forecast: bool = _DEFAULTS.has_forecast
    """Learn the daily pattern, and start workers ahead of it."""
