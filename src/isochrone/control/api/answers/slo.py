"""The error budgets of all models, of the store's totals and this controller's latest minutes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.control.api.messages import ModelSlo, SloAnswer, SloWindow
from isochrone.control.figures.budget import WINDOWS, Budget, budget
from isochrone.control.figures.frames import OTHER_MODELS, Frame
from isochrone.control.figures.objectives import limits
from isochrone.control.figures.totals import DAY, MOST_MODELS, in_window, totals_by_minute
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.state.view import View


def slo_answer(view: View, frames: Sequence[Frame], objective: float, at: int, began: int = 0) -> SloAnswer:
    """``frames``: the minutes of this controller, for budgets; ``at``: unix second of the latest one, or of now;
    ``began``: that of the history's first second."""
    record = view.fleet
    of = limits(fleet_of(record.spec) if record is not None else None)
    recorded = view.slo_totals
    starts = [*(each.since * 60 for each in recorded.values()), *(max(frame.at, began) for frame in frames[:1])]
    since = max(min(starts, default=at), at - DAY * 60)
    names = {*of.models, *recorded, *(model for frame in frames for model, _ in frame.models)} - {OTHER_MODELS}
    is_whole = all(frame.is_whole for frame in frames)
    models = []
    for name in sorted(names):
        seconds = of.of(name)
        totals = recorded.get(name)
        further = totals_by_minute(frames, name, seconds)
        windows = {minutes: in_window(totals, further, at // 60, minutes) for minutes in WINDOWS}
        is_counted = is_whole and (totals is not None or len(recorded) < MOST_MODELS)
        models.append(_model(name, seconds, budget(objective, windows, at - since, is_counted=is_counted)))
    return SloAnswer(at, since if starts else 0, objective, tuple(models))


def _model(name: str, seconds: float, found: Budget) -> ModelSlo:
    windows = tuple(
        SloWindow(each.minutes * 60, each.totals.good, each.totals.bad, each.ratio, each.burn) for each in found.windows
    )
    return ModelSlo(name, seconds * 1000, found.state, windows, found.used, found.left, found.spent_in_s)
