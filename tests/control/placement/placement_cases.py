"""Fleets for tests of model placement, and an independent check of what a plan does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hypothesis import strategies as st

from isochrone.control.placement.needs import BatchCurve, ModelNeeds
from isochrone.control.placement.plan import ADD, REMOVE, Plan
from isochrone.control.placement.workers import DRAINING, LOST, SERVING, Replicas, WorkerOffer

CURVES = {"cpu": BatchCurve(((1, 0.01), (8, 0.05))), "gpu": BatchCurve(((1, 0.004), (8, 0.008)))}

_DEVICES, _TIERS, _POOLS = ("cpu", "gpu"), ("edge", "core"), ("a", "b")


@st.composite
def worker_offers(draw: st.DrawFn, least: int = 1, most: int = 5, states: tuple[str, ...] = ()) -> list[WorkerOffer]:
    return [
        WorkerOffer(
            f"w{number}",
            memory=draw(st.sampled_from((0, 10, 16, 24, 40))),
            compute=draw(st.sampled_from((1.0, 1.0, 2.0, 0.5))),
            device=draw(st.sampled_from(_DEVICES)),
            machine=draw(st.sampled_from(("", "m1", "m2", "m3"))),
            pool=draw(st.sampled_from(_POOLS)),
            tier=draw(st.sampled_from(_TIERS)),
            round_trip=draw(st.sampled_from((0.0, 0.0004, 0.002, 0.03))),
            state=draw(st.sampled_from(states or (SERVING, SERVING, SERVING, DRAINING, LOST))),
            rejected=draw(st.sampled_from((frozenset(), frozenset(), frozenset(), frozenset({"m1"})))),
        )
        for number in range(draw(st.integers(least, most)))
    ]


@st.composite
def model_needs(draw: st.DrawFn, most: int = 6) -> list[ModelNeeds]:
    names = [f"m{number}" for number in range(draw(st.integers(1, most)))]
    some = st.lists(st.sampled_from(names), max_size=1).map(tuple)
    rare = st.sampled_from((False, False, False, True))
    return [
        ModelNeeds(
            name,
            memory=draw(st.sampled_from((0, 1, 2, 3, 5, 8, 13, 30))),
            incoming=draw(st.sampled_from((0, 0, 0, 2))),
            rate=draw(st.sampled_from((None, 0.0, 1.0, 20.0, 60.0, 150.0))),
            curves=draw(st.sampled_from((CURVES, {}, {"cpu": CURVES["cpu"]}))),
            budget=draw(st.sampled_from((math.inf, 0.1, 0.025))),
            instances=draw(st.sampled_from((1, 2))),
            devices=draw(st.sampled_from(((), (), ("cpu",), ("gpu",)))),
            pools=draw(st.sampled_from(((), (), ("a",), ("b", "a")))),
            tiers=draw(st.sampled_from(((), (), ("core",), ("core", "edge")))),
            min_replicas=draw(st.sampled_from((0, 1, 1, 1, 2))),
            max_replicas=draw(st.sampled_from((None, None, 3))),
            isolated=draw(rare),
            apart=draw(rare),
            together=draw(some) if draw(rare) else (),
            changes_with=draw(some) if draw(rare) else (),
        )
        for name in names
    ]


@st.composite
def standing(draw: st.DrawFn, needs: list[ModelNeeds], workers: list[WorkerOffer]) -> dict[str, frozenset[str]]:
    """Any replicas, also where no rule allows them, of models and workers that may be gone."""
    names = [*(each.name for each in workers), "gone"]
    models = [*(each.name for each in needs), "retired"]
    drawn = {model: draw(st.frozensets(st.sampled_from(names), max_size=4)) for model in models}
    return {model: workers for model, workers in drawn.items() if workers}


def memory_of(replicas: Mapping[str, Iterable[str]], needs: Iterable[ModelNeeds], worker: str) -> int:
    return sum(each.memory + each.incoming for each in needs if worker in replicas.get(each.name, ()))


def alive(replicas: Replicas, workers: Iterable[WorkerOffer]) -> dict[str, set[str]]:
    """The replicas that are not gone with their workers."""
    serving = {each.name for each in workers if each.state != LOST}
    left = {model: set(names) & serving for model, names in replicas.items()}
    return {model: names for model, names in left.items() if names}


def prefixes(plan: Plan, before: Replicas, workers: list[WorkerOffer]) -> list[dict[str, set[str]]]:
    """The replicas after each move; the first are those before all moves. Fails if a move is impossible."""
    state = alive(before, workers)
    states = [{model: set(names) for model, names in state.items()}]
    for move in plan.moves:
        names = state.setdefault(move.model, set())
        if move.action == ADD:
            assert move.worker not in names, move
            names.add(move.worker)
        else:
            assert move.action == REMOVE
            assert move.worker in names, move
            names.remove(move.worker)
        states.append({model: set(names) for model, names in state.items()})
    return states
