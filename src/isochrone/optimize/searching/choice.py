"""Which measured candidate is chosen, and which came closest if none is good enough. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.optimize.searching.candidate import Figures, Goal, Outcome

#: A difference below this share of the time is noise, however narrow the confidence intervals are: two runs of the same
#: file on a shared machine differ by as much.
NOISE = 0.03
#: So many times as long is clearly slower: other settings of the same runtime are not expected to make up for it.
CLEARLY_SLOWER = 1.25
#: The same, judged by the file before its precision changed, from which runtimes gain by different factors. A guess.
HOPELESSLY_SLOWER = 2.0


def is_faster(one: Figures, other: Figures) -> bool:
    """Whether ``one`` is faster than ``other`` beyond the noise of both measurements."""
    return one.milliseconds < other.milliseconds * (1 - NOISE) and one.high < other.low


def is_clearly_slower(one: Figures, other: Figures, times: float) -> bool:
    """Whether ``one`` takes over ``times`` as long as ``other``, beyond the noise of both."""
    return one.milliseconds > other.milliseconds * times and one.low > other.high


def fastest(outcomes: Sequence[Outcome], goal: Goal) -> Outcome | None:
    """The fastest whose accuracy is accepted.

    Of those whose times are within noise of the fastest, the one with the least error; then the one tried first.
    """
    accepted = [
        (outcome, outcome.figures)
        for outcome in outcomes
        if outcome.figures is not None and goal.accepts(outcome.figures)
    ]
    if not accepted:
        return None
    best = min(figures.milliseconds for _, figures in accepted)
    close = [each for each in accepted if each[1].milliseconds <= best * (1 + NOISE)]
    return min(close, key=lambda each: each[1].relative_error)[0]


def winners(outcomes: Sequence[Outcome], goal: Goal) -> list[Outcome]:
    """Those that meet the goal, best first."""
    remaining = [outcome for outcome in outcomes if outcome.figures is not None and goal.is_met(outcome.figures)]
    ordered: list[Outcome] = []
    while (best := fastest(remaining, goal)) is not None:
        ordered.append(best)
        remaining = [outcome for outcome in remaining if outcome is not best]
    return ordered


def most_accurate_in_time(outcomes: Sequence[Outcome], goal: Goal) -> Outcome | None:
    """Of those within the budget, the one that loses least."""
    in_time = [
        (outcome, outcome.figures)
        for outcome in outcomes
        if outcome.figures is not None and outcome.figures.milliseconds <= goal.milliseconds
    ]
    return min(in_time, key=lambda each: each[1].drop)[0] if in_time else None
