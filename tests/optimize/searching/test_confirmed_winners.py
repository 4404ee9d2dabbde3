"""Winners are measured again, and the verdict agrees with what was measured."""

from __future__ import annotations

from isochrone.optimize.optimization import confirmed
from isochrone.optimize.publishing.report import Report, verdict
from isochrone.optimize.searching.candidate import Candidate, Figures, Goal, Outcome
from isochrone.optimize.searching.choice import fastest, most_accurate_in_time
from isochrone.optimize.searching.search import Ended, Found

GOAL = Goal(1.0, 0.005)


def figures(milliseconds: float) -> Figures:
    return Figures(milliseconds, milliseconds, milliseconds, milliseconds, 0.001, 0.0, 100)


def found(*milliseconds: float) -> Found:
    others = [Outcome(Candidate((f"c{place}",)), figures(each)) for place, each in enumerate(milliseconds)]
    return Found((Outcome(Candidate(), figures(2.0)), *others), Ended.ALL_TRIED)


def verdict_of(chosen: Outcome | None, outcomes: tuple[Outcome, ...]) -> str:
    closest, in_time = (None, None) if chosen else (fastest(outcomes, GOAL), most_accurate_in_time(outcomes, GOAL))
    return verdict(Report("m", "f", GOAL, "x", {}, {}, outcomes, {}, "e", chosen, closest, in_time))


def test_every_winner_is_measured_again_until_one_is_confirmed() -> None:
    tried: list[str] = []

    def trial(candidate: Candidate) -> Outcome:
        tried.append(candidate.graph)
        return Outcome(candidate, figures(0.99 if candidate.graph == "c4" else 1.05))

    chosen, _ = confirmed(found(0.80, 0.84, 0.88, 0.92, 0.97), GOAL, trial)
    assert tried == ["c0", "c1", "c2", "c3", "c4"]
    assert chosen is not None
    assert chosen.figures == figures(0.99)


def test_none_confirmed_is_no_contradiction() -> None:
    chosen, outcomes = confirmed(found(0.90, 0.91), GOAL, lambda each: Outcome(each, figures(1.05)))
    text = verdict_of(chosen, outcomes)
    assert text.startswith("No candidate met the budget of 1 ms")
    assert "1.05 ms" in text
    assert "too large a drop" not in text


def test_a_candidate_that_fails_again_has_failed() -> None:
    chosen, outcomes = confirmed(found(0.90), GOAL, lambda each: Outcome(each, None, "crashed"))
    assert chosen is None
    assert outcomes[1].figures is None
    assert outcomes[1].reason == "failed when it was measured again: crashed"
    assert "The closest is float" in verdict_of(chosen, outcomes)


def test_what_the_time_left_unconfirmed_is_called_so() -> None:
    tried: list[str] = []

    def trial(candidate: Candidate) -> Outcome:
        tried.append(candidate.graph)
        return Outcome(candidate, figures(1.05))

    chosen, outcomes = confirmed(found(0.80, 0.84, 0.88, 0.92), GOAL, trial, is_over=lambda: True)
    assert (chosen, tried) == (None, ["c0", "c1", "c2"])
    text = verdict_of(chosen, outcomes)
    assert "in two measurements. Not confirmed: c3" in text
    assert "too large a drop" not in text
