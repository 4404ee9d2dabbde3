"""What a fleet promises of each model: a time limit, and the share of requests that must meet it. Pure.

The limit is ``slo.deadline_ms`` in fleet.yaml. The share is no setting of a fleet: whoever asks for budgets names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.control.fleet.settings.spec import Fleet

#: The share of requests that must be good. "p99 within the deadline" says the same.
OBJECTIVE: Final = 0.99
#: Beyond it, a budget is a handful of requests.
LARGEST_OBJECTIVE: Final = 0.99999
#: Of models without a deadline; the autoscaler judges them by the same figure.
DEFAULT_SECONDS: Final = AutoscalerSettings().slo_seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """The time limits of a fleet's models, in seconds."""

    models: Mapping[str, float] = field(default_factory=dict)
    default: float = DEFAULT_SECONDS

    def of(self, model: str) -> float:
        return self.models.get(model, self.default)


def limits(fleet: Fleet | None) -> Limits:
    """``fleet`` None: no file is applied."""
    if fleet is None:
        return Limits()
    default = fleet.defaults.slo.deadline_ms / 1000 or DEFAULT_SECONDS
    models = {name: each.slo.deadline_ms / 1000 or DEFAULT_SECONDS for name, each in fleet.models.items()}
    return Limits(models, default)
