"""Two versions of a model side by side, while a rollout has both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from isochrone.console.view.latencies import Percentiles, percentiles
from isochrone.control.figures.history import History
from isochrone.control.state.rollout_records import RolloutRecord

#: Seconds of history that they are compared over.
SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class VersionComparison:
    rollout: str
    model: str
    before: str
    after: str
    before_figures: Percentiles
    after_figures: Percentiles
    seconds: int = SECONDS


def version_comparisons(rollouts: Sequence[RolloutRecord], history: History) -> tuple[VersionComparison, ...]:
    """Of open rollouts: every model that changes its version."""
    found = []
    for record in rollouts:
        if record.is_over:
            continue
        for model, change in record.changes.items():
            if change.before and change.is_new:
                before = percentiles(history.window(model, change.before, SECONDS), SECONDS)
                after = percentiles(history.window(model, change.version, SECONDS), SECONDS)
                found.append(VersionComparison(record.identity, model, change.before, change.version, before, after))
    return tuple(found)
