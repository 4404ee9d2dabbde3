"""Model placement in simulation: the course, the baselines, the times of moves, and the command."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import Move
from isochrone.control.placement.workers import WorkerOffer
from isochrone.simulate.placement.baselines import best_fit, first_fit, keep, repack
from isochrone.simulate.placement.comparison import PLANNERS, compare
from isochrone.simulate.placement.course import COMMITTED, LOST, VERSION, draw_course
from isochrone.simulate.placement.fleets import GIB, KINDS, draw_fleet
from isochrone.simulate.placement.timeline import LEASE_SECONDS, back_after, finished


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return compare(models=60, workers=16, changes=10, seed=3)


def by_name(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {planner["planner"]: planner for planner in figures["planners"]}


def test_our_planner_serves_all_and_over_commits_nothing(figures: dict[str, Any]) -> None:
    for name in ("isochrone", "isochrone, no balance"):
        ours = by_name(figures)[name]
        assert (ours["over_committed"], ours["ever_unplaced"]) == (0, 0)
        assert ours["hot_model_busy_most"] <= 0.7


def test_packing_again_moves_many_times_as_much(figures: dict[str, Any]) -> None:
    planners = by_name(figures)
    for name in ("first-fit, repack", "best-fit, repack"):
        assert planners[name]["loads_per_change"] > 5 * planners["isochrone"]["loads_per_change"]


def test_the_same_seed_gives_the_same_figures() -> None:
    figures = compare(models=30, workers=10, changes=3, seed=5)
    assert compare(models=30, workers=10, changes=3, seed=5) == figures
    assert compare(models=30, workers=10, changes=3, seed=6) != figures
    assert list(by_name(figures)) == list(PLANNERS)


def test_a_fleet_has_three_kinds_and_every_rule() -> None:
    fleet = draw_fleet(Random(1), 200, 50)
    assert {worker.device for worker in fleet.workers} == set(KINDS)
    assert (len(fleet.needs), len(fleet.workers)) == (200, 50)
    assert any(each.isolated for each in fleet.needs)
    assert any(each.apart and each.min_replicas == 2 for each in fleet.needs)
    assert any(each.together for each in fleet.needs)


def test_a_course_ends_what_it_begins() -> None:
    fleet = draw_fleet(Random(1), 60, 16)
    course = list(draw_course(Random(2), fleet, 80))
    assert len(course) == 80
    assert min(len(each.fleet.workers) for each in course) >= 15
    incoming = {each.about for each in course if each.change == VERSION}
    committed = {each.about for each in course if each.change == COMMITTED}
    assert len(incoming - committed) <= 3
    for each in course:
        names = [worker.name for worker in each.fleet.workers]
        assert (each.about in names) == (each.change != LOST) or each.about.startswith("model-")


def test_moves_take_their_time_and_wait_for_each_other() -> None:
    sizes = {"a": 2 * GIB, "b": 4 * GIB}
    moves = [
        Move("add", "a", "w1", ""),  # 3 s
        Move("remove", "a", "w0", ""),  # after that, and 1 s of draining
        Move("add", "b", "w0", ""),  # after that, 5 s
        Move("add", "b", "w2", ""),  # beside them
    ]
    assert finished(moves, sizes) == [3.0, 4.0, 9.0, 5.0]
    assert back_after(moves, sizes, frozenset({"b"})) == LEASE_SECONDS + 9.0
    assert back_after(moves, sizes, frozenset({"c"})) == 0.0


def test_first_fit_takes_the_first_and_best_fit_the_fullest() -> None:
    needs = [ModelNeeds("a", 4)]
    workers = [WorkerOffer("w0", 30), WorkerOffer("w1", 12), WorkerOffer("w2", 20)]
    assert keep(first_fit, needs, workers, {}).replicas == {"a": {"w0"}}
    assert keep(best_fit, needs, workers, {}).replicas == {"a": {"w1"}}
    # A standing replica stays for the one, and is packed again by the other.
    assert keep(first_fit, needs, workers, {"a": frozenset({"w2"})}).moves == ()
    assert [move.action for move in repack(first_fit, needs, workers, {"a": frozenset({"w2"})}).moves] == [
        "add",
        "remove",
    ]


def test_a_packing_from_the_beginning_may_have_no_way_to_it() -> None:
    """Two workers without a byte to spare change places: one load has no room."""
    needs = [ModelNeeds("a", 6), ModelNeeds("b", 5)]
    workers = [WorkerOffer("w0", 6), WorkerOffer("w1", 6)]
    plan = repack(first_fit, needs, workers, {"a": frozenset({"w1"}), "b": frozenset({"w0"})})
    assert plan.replicas == {"a": {"w0"}, "b": {"w1"}}
    assert [move.action for move in plan.moves].index("add") == 0


def test_the_command_prints_a_table_and_json() -> None:
    arguments = ["simulate", "placement", "--models", "30", "--workers", "10", "--changes", "3", "--seed", "2"]
    table = CliRunner().invoke(app, arguments)
    assert table.exit_code == 0, table.output
    for text in ("isochrone, no balance", "best-fit, repack", "over-committed", "30 models", "changes:"):
        assert text in table.output
    first = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(first.output)["workers"] == 10
    assert CliRunner().invoke(app, [*arguments, "--json"]).output == first.output
