"""Runs trials stage by stage until the goal is met and nothing more is gained, the stages are over, or the time is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from isochrone.optimize.searching.candidate import Candidate, Goal, Outcome
from isochrone.optimize.searching.choice import fastest, is_faster
from isochrone.optimize.searching.stages import STAGES, Offer, Progress


class Ended(StrEnum):
    """Why a search ended."""

    NOTHING_GAINED = "the budget is met, and further changes gained nothing beyond noise"
    ALL_TRIED = "every candidate was tried"
    TIME = "the time for the search is over"
    FLOAT_FAILED = "the float model failed: there is nothing to compare with"


@dataclass(frozen=True, slots=True)
class Found:
    outcomes: tuple[Outcome, ...]
    """In the order of the trials; the float model first."""
    ended: Ended


def search(
    offer: Offer,
    goal: Goal,
    trial: Callable[[Candidate], Outcome],
    *,
    is_over: Callable[[], bool] = lambda: False,
    report: Callable[[tuple[Outcome, ...]], None] = lambda outcomes: None,
) -> Found:
    """``is_over``: whether the time for trials has passed; the float model is tried all the same.

    ``report`` gets all outcomes so far after each trial.
    """
    outcomes: list[Outcome] = []
    for stage in STAGES:
        before = fastest(outcomes, goal)
        tried = {outcome.candidate for outcome in outcomes}
        fresh = [
            candidate for candidate in dict.fromkeys(stage(Progress(offer, goal, outcomes))) if candidate not in tried
        ]
        for candidate in fresh:
            if outcomes and is_over():
                return Found(tuple(outcomes), Ended.TIME)
            outcomes.append(trial(candidate))
            report(tuple(outcomes))
            if outcomes[0].figures is None:
                return Found(tuple(outcomes), Ended.FLOAT_FAILED)
        if fresh and before is not None and _nothing_gained(before, fastest(outcomes, goal), goal):
            return Found(tuple(outcomes), Ended.NOTHING_GAINED)
    return Found(tuple(outcomes), Ended.ALL_TRIED)


def _nothing_gained(before: Outcome, after: Outcome | None, goal: Goal) -> bool:
    if after is None or after.figures is None or before.figures is None or not goal.is_met(after.figures):
        return False
    return not is_faster(after.figures, before.figures)
