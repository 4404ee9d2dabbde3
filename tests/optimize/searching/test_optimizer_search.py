"""The order of trials, the Pareto front and the choice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.optimize.searching.candidate import Candidate, Figures, Goal, Outcome, RunSettings
from isochrone.optimize.searching.choice import fastest, is_faster, most_accurate_in_time, winners
from isochrone.optimize.searching.pareto import dominates, front
from isochrone.optimize.searching.search import Ended, search
from isochrone.optimize.searching.stages import Offer

ONE, TWO = RunSettings(), RunSettings(threads=2)
OFFER = Offer((ONE, TWO), ("slim", "fuse"), ("int8", "fp16"), (("cut-10", "cut-25", "cut-50"), ("zeros",)))


def figures(milliseconds: float, drop: float = 0.0, size: int = 100) -> Figures:
    return Figures(milliseconds, milliseconds * 0.999, milliseconds * 1.001, milliseconds * 2, drop, drop, size)


small = st.integers(1, 4)
outcome_lists = st.lists(st.tuples(small, small, small), max_size=12).map(
    lambda costs: [
        Outcome(Candidate((str(place),)), figures(cost[0], cost[1] / 10, cost[2])) for place, cost in enumerate(costs)
    ]
)


@given(outcome_lists)
def test_no_member_of_the_front_is_dominated_and_every_other_is(outcomes: list[Outcome]) -> None:
    members = front(outcomes)
    for outcome in outcomes:
        beaten = [
            each for each in members if each.figures and outcome.figures and dominates(each.figures, outcome.figures)
        ]
        assert bool(beaten) is (outcome not in members)


@given(outcome_lists, small, small)
def test_winners_meet_the_goal_and_none_is_left_out(outcomes: list[Outcome], time: int, drop: int) -> None:
    goal = Goal(time, drop / 10)
    met = [outcome for outcome in outcomes if outcome.figures and goal.is_met(outcome.figures)]
    ordered = winners(outcomes, goal)
    assert sorted(map(str, (each.candidate for each in ordered))) == sorted(str(each.candidate) for each in met)
    chosen = fastest(outcomes, goal)
    assert chosen is None or (chosen.figures and goal.accepts(chosen.figures))


class Machine:
    """Times of candidates by what they consist of."""

    def __init__(self, factors: dict[str, float], drops: dict[str, float] | None = None) -> None:
        self.factors, self.drops, self.tried = factors, drops or {}, list[str]()

    def trial(self, candidate: Candidate) -> Outcome:
        self.tried.append(f"{candidate.graph}/{candidate.settings.threads}")
        time, drop = 10.0 / candidate.settings.threads**0.5, 0.0
        for name in candidate.transformations:
            time *= self.factors.get(name, 1.0)
            drop += self.drops.get(name, 0.0)
        return Outcome(candidate, figures(time, drop))


def test_cheap_changes_come_first_and_only_what_helped_is_combined() -> None:
    machine = Machine({"slim": 0.8, "fuse": 0.8, "int8": 0.5, "fp16": 1.2, "cut-10": 0.9, "cut-25": 0.7, "zeros": 1.0})
    found = search(OFFER, Goal(0.001, 0.01), machine.trial)
    assert found.ended is Ended.ALL_TRIED
    assert machine.tried[:5] == ["float/1", "slim/1", "fuse/1", "slim + fuse/1", "slim + fuse/2"]
    assert machine.tried[5] == "slim + fuse + int8/2"
    assert not [name for name in machine.tried if "fp16" in name and "cut" in name]
    assert machine.tried[-1].startswith("cut-25 + slim + fuse + int8")


def test_stronger_pruning_needs_an_accepted_weaker_one() -> None:
    machine = Machine({"cut-10": 0.9, "cut-25": 0.8}, {"cut-25": 0.5})
    search(OFFER, Goal(0.001, 0.01), machine.trial)
    assert any("cut-25" in name for name in machine.tried)
    assert not any("cut-50" in name for name in machine.tried)


def test_a_met_budget_ends_the_search_once_a_stage_gains_nothing() -> None:
    machine = Machine({"slim": 0.8})
    found = search(Offer((ONE,), ("slim", "fuse"), ("int8",), (("cut-10",),)), Goal(9.0, 0.01), machine.trial)
    assert found.ended is Ended.NOTHING_GAINED
    assert machine.tried == ["float/1", "slim/1", "fuse/1", "slim + int8/1"]


def test_the_float_model_is_tried_even_without_time() -> None:
    machine = Machine({})
    found = search(OFFER, Goal(1.0, 0.01), machine.trial, is_over=lambda: True)
    assert (found.ended, machine.tried) == (Ended.TIME, ["float/1"])


def test_differences_within_noise_are_none() -> None:
    assert not is_faster(figures(9.8), figures(10.0))
    assert is_faster(figures(9.0), figures(10.0))


def test_the_most_accurate_in_time_is_named() -> None:
    outcomes = [Outcome(Candidate(), figures(5)), Outcome(Candidate(("int8",)), figures(1, 0.2))]
    found = most_accurate_in_time(outcomes, Goal(2, 0.01))
    assert found is outcomes[1]
    assert most_accurate_in_time(outcomes, Goal(0.5, 0.01)) is None


def test_nothing_is_tried_if_the_float_model_fails() -> None:
    found = search(OFFER, Goal(1.0, 0.1), lambda candidate: Outcome(candidate, None, "crashed"))
    assert [outcome.candidate for outcome in found.outcomes] == [Candidate((), ONE)]
    assert found.ended is Ended.FLOAT_FAILED
