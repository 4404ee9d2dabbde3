"""The Pareto front of outcomes over latency, accuracy and size. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.optimize.searching.candidate import Figures, Outcome


def dominates(one: Figures, other: Figures) -> bool:
    """Whether ``one`` is at least as good in every respect, and better in one."""
    left, right = _costs(one), _costs(other)
    return left != right and all(ours <= theirs for ours, theirs in zip(left, right, strict=True))


def front(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The measured outcomes that no other one dominates, fastest first."""
    measured = [(outcome, outcome.figures) for outcome in outcomes if outcome.figures is not None]
    kept = [
        (outcome, figures)
        for outcome, figures in measured
        if not any(dominates(other, figures) for _, other in measured)
    ]
    return [outcome for outcome, figures in sorted(kept, key=lambda each: _costs(each[1]))]


def _costs(figures: Figures) -> tuple[float, float, float]:
    """The relative error stands for accuracy: unlike a share of rows, it tells close candidates apart."""
    return figures.milliseconds, figures.relative_error, figures.size
