"""Situations for the tests of what-if questions."""

from __future__ import annotations

from isochrone.control.what_if.situation import Situation, SituationModel, SituationWorker
from isochrone.simulate.what_if.answering import Budget

#: Time stands still: only the given seconds count.
ENDLESS = Budget(lambda: 0.0, 1.0)


def a_model(name: str = "detector", rate: float = 200.0, run_ms: float = 2.0, **settings: object) -> SituationModel:
    return SituationModel(name, rate, {"": ((1, run_ms),)}, **settings)  # type: ignore[arg-type]


def a_situation(workers: int = 2, *models: SituationModel, **rules: object) -> Situation:
    """Every worker has all models."""
    each = models or (a_model(),)
    names = tuple(model.name for model in each)
    return Situation(
        each,
        tuple(SituationWorker(f"w{number}", names, "pool") for number in range(1, workers + 1)),
        rules={"defaults": rules} if rules else {},
    )
