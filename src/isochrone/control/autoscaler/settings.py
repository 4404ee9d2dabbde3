"""Settings of the autoscaler of one pool."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import model_validator

from isochrone.settings.ranges import Amount, Positive, PositiveAmount, Range, Share
from isochrone.settings.sections import Section


class AutoscalerSettings(Section):
    """One pool. Times are in seconds."""

    min_workers: Positive = 1
    """Never fewer, unless the pool may be empty (`zero_after_seconds`). 1: the first request needs no start-up."""
    max_workers: Positive = 64
    """Never more. A bound that a mistaken reading cannot exceed."""
    cost_cap: PositiveAmount | None = None
    """Cost per hour of all workers (also standby and draining ones) that is never exceeded, in the unit of the reported
    cost per worker; none: no cap. It wins over `min_workers`."""
    zero_after_seconds: PositiveAmount | None = None
    """Without a request for this long the pool may have no worker; none: it always keeps `min_workers`."""
    slo_seconds: PositiveAmount = 0.2
    """Time within which requests are to be answered: queue waits are judged by it."""
    start_up_seconds: PositiveAmount = 120.0
    """Time from a decision until a new worker serves. Load is predicted this far ahead. Pods with models need 2 to 7
    minutes; measure yours."""
    deviations: Amount = 2.2
    """The margin over the expected load, in standard deviations of past errors. Higher: fewer refusals, more
    workers."""
    trend_seconds: PositiveAmount = 60.0
    """Readings in which a rise is looked for. Shorter: faster, and more often misled by noise."""
    down_seconds: PositiveAmount = 90.0
    """A lower number must have sufficed for this long. Shorter: cheaper after a burst, and more changes of
    direction."""
    down_share: Annotated[float, Range(above=0, most=1)] = 0.25
    """Most that is removed at once, as a share of the workers (at least one worker), and again only after a tenth of
    `down_seconds`: each step shows its effect before the next."""
    hysteresis: Share = 0.15
    """Capacity that must stay free beyond what an increase would ask for before a worker is removed, relative to the
    load. At least the capacity of one worker stays free, or half of the load if that is less. Against changes back and
    forth."""
    wait_share: Annotated[float, Range(above=0, most=1)] = 0.5
    """Share of the SLO that queued requests may wait before workers are added for it."""
    stale_seconds: PositiveAmount = 15.0
    """Older readings change nothing."""
    jump_seconds: PositiveAmount = 60.0
    """A larger step of the clock between two readings, or one backwards, changes nothing and discards what was learned
    from the last minutes."""
    has_forecast: bool = True
    """Learn the daily pattern, and have workers ready for it. It is used only while it predicts better than the load of
    now."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min_workers > self.max_workers:
            raise ValueError(f"min_workers {self.min_workers} is more than max_workers {self.max_workers}")
        return self
