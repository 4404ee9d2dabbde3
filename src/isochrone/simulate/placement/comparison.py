"""All planners over the same course of changes, and what each of them moved, broke and left unserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import ADD, Plan
from isochrone.control.placement.planning.occupancy import Occupancy
from isochrone.control.placement.planning.planner import DEFAULT_RULES, plan_placement
from isochrone.control.placement.planning.rules import PlacementRules
from isochrone.control.placement.planning.units import units_of
from isochrone.control.placement.workers import Replicas, WorkerOffer
from isochrone.simulate.draws import plain_random
from isochrone.simulate.placement.baselines import best_fit, first_fit, keep, repack
from isochrone.simulate.placement.course import HOT, LOST, ChangedFleet, draw_course
from isochrone.simulate.placement.fleets import GIB, SimulatedFleet, draw_fleet
from isochrone.simulate.placement.timeline import back_after

Planner = Callable[[Sequence[ModelNeeds], Sequence[WorkerOffer], Replicas], Plan]
Progress = Callable[[str, int, int], None]

PLANNERS: Mapping[str, Planner] = {
    "isochrone": plan_placement,
    # A margin that no load can exceed.
    "isochrone, no balance": partial(plan_placement, rules=PlacementRules(margin=1000.0)),
    "first-fit, keep": partial(keep, first_fit),
    "best-fit, keep": partial(keep, best_fit),
    "first-fit, repack": partial(repack, first_fit),
    "best-fit, repack": partial(repack, best_fit),
}
#: Plans after one change: ours moves for balance only when nothing else has to move.
_PLANS = 4


def compare(models: int, workers: int, changes: int, seed: int, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """The figures of all planners. The same arguments give the same figures."""
    fleet = draw_fleet(plain_random(seed, "fleet"), models, workers)
    course = list(draw_course(plain_random(seed, "course"), fleet, changes))
    return {
        "models": models,
        "workers": workers,
        "memory_gib": round(sum(each.memory for each in fleet.workers) / GIB),
        "models_gib": round(sum(each.memory for each in fleet.needs) / GIB),
        "changes": changes,
        "seed": seed,
        "kinds": {kind: sum(each.change == kind for each in course) for kind in sorted({e.change for e in course})},
        "planners": [run(name, planner, fleet, course, progress) for name, planner in PLANNERS.items()],
    }


def run(
    name: str, planner: Planner, fleet: SimulatedFleet, course: Sequence[ChangedFleet], progress: Progress
) -> dict[str, Any]:
    """One planner. It begins with its own packing of the fleet, which is not counted."""
    replicas, _ = _planned(planner, fleet, {})
    steps = []
    for number, changed in enumerate(course):
        progress(name, number, len(course))
        before, (replicas, plans) = replicas, _planned(planner, changed.fleet, replicas)
        steps.append(_step(changed, before, replicas, plans))
    return {"planner": name, **_summary(steps)}


def _planned(planner: Planner, fleet: SimulatedFleet, replicas: Replicas) -> tuple[Replicas, list[Plan]]:
    plans: list[Plan] = []
    while len(plans) < _PLANS and not (plans and not plans[-1].moves):
        plans.append(planner(fleet.needs, fleet.workers, replicas))
        replicas = plans[-1].replicas
    return replicas, plans


def _step(changed: ChangedFleet, before: Replicas, after: Replicas, plans: Sequence[Plan]) -> dict[str, Any]:
    fleet, moves = changed.fleet, [move for plan in plans for move in plan.moves]
    sizes = {each.name: each.memory + each.incoming for each in fleet.needs}
    lost = frozenset(model for model, names in before.items() if changed.change == LOST and changed.about in names)
    loads = _loads(fleet, after)
    hot = changed.about if changed.change == HOT else ""
    return {
        "change": changed.change,
        "loads": sum(move.action == ADD for move in moves),
        "reasons": Counter(move.reason for move in moves if move.action == ADD),
        "unloads": sum(move.action != ADD for move in moves),
        "gib": sum(sizes.get(move.model, 0) for move in moves if move.action == ADD) / GIB,
        "over_committed": _over_committed(fleet, before, plans, sizes),
        "unplaced": sorted(plans[-1].unplaced),
        "lost_replicas": len(lost),
        # Later plans are for balance: the models are back by the first.
        "back_seconds": back_after(plans[0].moves, sizes, lost) if lost else None,
        "busiest": max(loads, default=0.0),
        "mean_load": mean(loads) if loads else 0.0,
        "hot_model_busy": _busy(fleet, after, hot) if hot else None,
    }


def _over_committed(fleet: SimulatedFleet, before: Replicas, plans: Sequence[Plan], sizes: Mapping[str, int]) -> int:
    """Loads that were started on a worker without memory for them. Memory that shrank by itself does not count."""
    memory = {worker.name: worker.memory for worker in fleet.workers}
    used = {name: sum(sizes.get(m, 0) for m, names in before.items() if name in names) for name in memory}
    count = 0
    for move in (move for plan in plans for move in plan.moves):
        used[move.worker] += sizes.get(move.model, 0) * (1 if move.action == ADD else -1)
        count += move.action == ADD and used[move.worker] > memory[move.worker]
    return count


def _loads(fleet: SimulatedFleet, replicas: Replicas) -> list[float]:
    occupancy = Occupancy(units_of(fleet.needs), fleet.workers, replicas, DEFAULT_RULES)
    return [occupancy.relative_load(worker) for worker in range(len(occupancy.workers))]


def _busy(fleet: SimulatedFleet, replicas: Replicas, model: str) -> float:
    """How busy the replicas of a model are, relative to what they can take."""
    occupancy = Occupancy(units_of(fleet.needs), fleet.workers, replicas, DEFAULT_RULES)
    unit = next(at for at, each in enumerate(occupancy.units) if model in each.names)
    limit = occupancy.limit(unit)
    return occupancy.share(unit) / limit if occupancy.places[unit] and limit else 1.0


def _summary(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    back = [step["back_seconds"] for step in steps if step["back_seconds"] is not None]
    hot = [step["hot_model_busy"] for step in steps if step["hot_model_busy"] is not None]
    by_change: dict[str, list[int]] = {}
    for step in steps:
        by_change.setdefault(step["change"], []).append(step["loads"])
    lost = sum(step["lost_replicas"] for step in steps)
    return {
        "loads_per_change": _rounded([step["loads"] for step in steps]),
        "most_loads": max((step["loads"] for step in steps), default=0),
        "gib_per_change": _rounded([step["gib"] for step in steps]),
        "loads_by_reason": dict(sorted(sum((step["reasons"] for step in steps), Counter()).items())),
        "loads_by_change": {change: _rounded(loads) for change, loads in sorted(by_change.items())},
        "loads_per_lost_replica": round(sum(by_change.get(LOST, [])) / lost, 3) if lost else 0.0,
        "over_committed": sum(step["over_committed"] for step in steps),
        "unplaced_per_change": _rounded([len(step["unplaced"]) for step in steps]),
        "ever_unplaced": len({model for step in steps for model in step["unplaced"]}),
        "back_seconds_mean": _rounded(back),
        "back_seconds_most": round(max(back, default=0.0), 3),
        "busiest_mean": _rounded([step["busiest"] for step in steps]),
        "busiest_most": round(max((step["busiest"] for step in steps), default=0.0), 3),
        "hot_model_busy_most": round(max(hot, default=0.0), 3),
        "imbalance": _rounded([step["busiest"] / step["mean_load"] for step in steps if step["mean_load"]]),
    }


def _rounded(values: Sequence[float]) -> float:
    return round(mean(values), 3) if values else 0.0
