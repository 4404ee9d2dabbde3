"""Plans without detours: no replica is both added and removed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from placement_cases import model_needs, standing, worker_offers

from isochrone.control.placement.plan import ADD, REMOVE, ROOM, Move
from isochrone.control.placement.planning.net_moves import Fleet, net_moves
from isochrone.control.placement.planning.planner import plan_placement


def moves(text: str) -> list[Move]:
    """``+x@a``: x is added on a; ``-x@a``: it is removed."""
    return [Move(ADD if each[0] == "+" else REMOVE, each[1], each.partition("@")[2], ROOM) for each in text.split()]


def after(**models: str) -> dict[str, frozenset[str]]:
    return {model: frozenset(names) for model, names in models.items()}


def test_a_detour_is_left_out() -> None:
    fleet = Fleet({"x": 4, "y": 4}, {"x": 0, "y": 1}, {"a": 8, "b": 8, "c": 8})
    made = moves("+x@b +x@c -x@b +y@b")
    assert net_moves(made, after(x="c", y="b"), fleet) == tuple(moves("+x@c +y@b"))
    assert net_moves(moves("-x@a +x@a"), after(x="ab"), fleet) == ()


def test_the_new_replica_comes_first_where_memory_suffices() -> None:
    fleet = Fleet({"x": 4, "y": 4}, {"x": 0, "y": 1}, {"a": 4, "b": 4, "c": 4})
    # x leaves a for c, by b; y comes to a.
    made = moves("+x@b -x@a +y@a +x@c -x@b")
    assert net_moves(made, after(x="c", y="a"), fleet) == tuple(moves("+x@c -x@a +y@a"))


def test_full_workers_exchange_models_by_a_detour() -> None:
    fleet = Fleet({"x": 4, "y": 4}, {"x": 0, "y": 1}, {"a": 4, "b": 4, "c": 4})
    made = moves("+x@c -x@a +y@a -y@b +x@b -x@c")
    assert net_moves(made, after(x="b", y="a"), fleet) == tuple(made)


@given(st.data())
def test_no_plan_adds_and_removes_one_replica(data: st.DataObject) -> None:
    needs, workers = data.draw(model_needs()), data.draw(worker_offers(least=2))
    before = data.draw(standing(needs, workers)) if data.draw(st.booleans()) else {}
    plan = plan_placement(needs, workers, before)
    times = Counter((move.model, move.worker) for move in plan.moves)
    assert all(each == 1 for each in times.values())
