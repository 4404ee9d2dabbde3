"""Model placement: what holds for every plan, whatever the fleet."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st
from placement_cases import alive, memory_of, model_needs, prefixes, standing, worker_offers

from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import ADD, BALANCE, MEMORY, RESTORE, Plan
from isochrone.control.placement.planning.eligibility import exclusion
from isochrone.control.placement.planning.explanation import explain, obstacle
from isochrone.control.placement.planning.occupancy import Occupancy
from isochrone.control.placement.planning.planner import DEFAULT_RULES, plan_placement
from isochrone.control.placement.planning.search import STRICT, fits
from isochrone.control.placement.planning.units import units_of
from isochrone.control.placement.workers import LOST, SERVING, Replicas, WorkerOffer


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[ModelNeeds], list[WorkerOffer], dict[str, frozenset[str]]]:
    needs, workers = draw(model_needs()), draw(worker_offers())
    return needs, workers, draw(standing(needs, workers)) if draw(st.booleans()) else {}


Fleet = tuple[list[ModelNeeds], list[WorkerOffer], dict[str, frozenset[str]]]


def settled(needs: list[ModelNeeds], workers: list[WorkerOffer], replicas: Replicas) -> Plan:
    """The plan after which nothing moves."""
    for _ in range(12):
        plan = plan_placement(needs, workers, replicas)
        if not plan.moves:
            return plan
        replicas = plan.replicas
    raise AssertionError("the plans do not come to rest")


@given(fleets())
def test_every_state_between_two_moves_is_sound(fleet: Fleet) -> None:
    """Memory is never over-committed, no model loses its last replica, and the moves lead to the replicas."""
    needs, workers, before = fleet
    plan = plan_placement(needs, workers, before)
    states = prefixes(plan, before, workers)
    for worker in (each for each in workers if each.memory and each.state != LOST):
        amounts = [memory_of(state, needs, worker.name) for state in states]
        # A worker that has too much already gets nothing until it fits.
        assert all(later <= earlier or later <= worker.memory for earlier, later in pairwise(amounts))
        assert amounts[-1] <= worker.memory
    for unit in units_of(needs):
        if unit.name in plan.unplaced or not unit.least:
            continue
        for state, move in zip(states[1:], plan.moves, strict=True):
            if move.model in unit.names and move.action != ADD and not state[move.model]:
                # Only where memory has room for no other.
                assert move.reason == MEMORY
    assert {model: frozenset(names) for model, names in states[-1].items() if names} == plan.replicas


@given(fleets())
def test_every_rule_holds_or_the_model_is_reported(fleet: Fleet) -> None:
    needs, workers, before = fleet
    plan = plan_placement(needs, workers, before)
    offers = {worker.name: worker for worker in workers}
    for unit in units_of(needs):
        reported = unit.name in plan.unplaced or unit.name in plan.short
        places = plan.replicas.get(unit.name, frozenset())
        if reported:
            assert plan.unplaced.get(unit.name) or plan.short.get(unit.name)
            continue
        assert len(places) >= unit.least
        for name in unit.names:
            assert plan.replicas.get(name, frozenset()) == places or not unit.least
        for place in places:
            assert exclusion(unit, offers[place]) is None
            if unit.isolated:
                assert {model for model, names in plan.replicas.items() if place in names} == set(unit.names)
        if unit.apart:
            machines = [offers[place].machine or place for place in places]
            assert len(machines) == len(set(machines))
        added = {move.worker for move in plan.moves if move.action == ADD and move.model in unit.names}
        assert not any(offers[place].rejected & set(unit.names) for place in added)
        if unit.max_replicas < len(places):
            assert not added


@given(fleets())
def test_nothing_moves_when_nothing_changed(fleet: Fleet) -> None:
    needs, workers, before = fleet
    plan = plan_placement(needs, workers, before)
    again = plan_placement(needs, workers, plan.replicas)
    assert {move.reason for move in again.moves} <= {BALANCE}
    assert not plan_placement(needs, workers, settled(needs, workers, again.replicas).replicas).moves


@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_of_models_and_workers_does_not_matter(fleet: Fleet, random: object) -> None:
    needs, workers, before = fleet
    plan = plan_placement(needs, workers, before)
    mixed_needs, mixed_workers = list(needs), list(workers)
    random.shuffle(mixed_needs)  # type: ignore[attr-defined]
    random.shuffle(mixed_workers)  # type: ignore[attr-defined]
    mixed = dict(reversed(list(before.items())))
    assert plan_placement(mixed_needs, mixed_workers, mixed) == plan


@given(st.integers(2, 12), st.integers(3, 8), st.data())
def test_a_lost_worker_moves_only_its_own_models(models: int, count: int, data: st.DataObject) -> None:
    """As long as the others have room for them."""
    sizes = st.integers(1, 9)
    needs = [ModelNeeds(f"m{n:02}", data.draw(sizes), min_replicas=data.draw(st.integers(1, 2))) for n in range(models)]
    workers = [WorkerOffer(f"w{n}", memory=300) for n in range(count)]
    before = settled(needs, workers, {}).replicas
    lost = data.draw(st.sampled_from([worker.name for worker in workers]))
    plan = plan_placement(needs, [worker for worker in workers if worker.name != lost], before)
    assert {(move.action, move.reason) for move in plan.moves} <= {(ADD, RESTORE)}
    assert sorted(move.model for move in plan.moves) == sorted(m for m, names in before.items() if lost in names)
    assert not plan.unplaced


@given(fleets(), st.data())
def test_loss_return_and_growth_come_to_rest(fleet: Fleet, data: st.DataObject) -> None:
    needs, workers, before = fleet
    first = settled(needs, workers, before)
    name = data.draw(st.sampled_from(workers)).name
    changed = data.draw(st.sampled_from((LOST, "shrunk", "hot")))
    if changed == LOST:
        workers = [replace(worker, state=LOST) if worker.name == name else worker for worker in workers]
    elif changed == "shrunk":
        workers = [replace(worker, memory=worker.memory // 2) if worker.name == name else worker for worker in workers]
    else:
        needs = [replace(each, rate=(each.rate or 1.0) * 4) for each in needs]
    second = settled(needs, workers, first.replicas)
    for worker in workers:
        if worker.memory and worker.state == SERVING:
            units = [unit for unit in units_of(needs) if worker.name in second.replicas.get(unit.name, ())]
            whole = {name for unit in units for name in unit.names}
            assert (
                memory_of({m: v for m, v in second.replicas.items() if m in whole}, needs, worker.name) <= worker.memory
            )


@given(fleets())
def test_the_explanation_has_the_rules_of_the_search(fleet: Fleet) -> None:
    needs, workers, before = fleet
    units = units_of(needs)
    occupancy = Occupancy(units, workers, before, DEFAULT_RULES)
    for unit in range(len(units)):
        possible = {candidate.worker for candidate in occupancy.candidates(unit)}
        explained = explain(units[unit].name, needs, workers, before, DEFAULT_RULES)
        assert sorted(verdict.worker for verdict in explained.workers) == sorted(worker.name for worker in workers)
        assert all(verdict.detail for verdict in explained.workers)
        assert explained.missing or occupancy.places[unit] or not units[unit].least
        for worker in range(len(occupancy.workers)):
            if unit in occupancy.present[worker]:
                continue
            taken = worker in possible and fits(occupancy, unit, worker, STRICT)
            assert taken == (obstacle(occupancy, unit, worker) is None)


@given(fleets())
def test_trials_that_are_undone_leave_nothing(fleet: Fleet) -> None:
    needs, workers, before = fleet
    units = units_of(needs)
    occupancy = Occupancy(units, workers, before, DEFAULT_RULES)
    assume(occupancy.workers)

    def state() -> object:
        sums = [list(map(sorted, occupancy.present)), occupancy.used, occupancy.room, occupancy.isolated]
        return repr((sums, occupancy.places, [sorted(each.items()) for each in occupancy.strays], occupancy.moves))

    first, loads = state(), list(occupancy.load)
    mark = occupancy.mark()
    for unit in range(len(units)):
        for worker in range(len(occupancy.workers)):
            if unit in occupancy.present[worker]:
                occupancy.remove(unit, worker, "trial")
            else:
                occupancy.add(unit, worker, "trial")
    occupancy.undo(mark)
    assert state() == first
    assert all(abs(now - then) < 1e-6 for now, then in zip(occupancy.load, loads, strict=True))
    assert alive(before, workers) == {model: set(names) for model, names in occupancy.replicas().items()}
