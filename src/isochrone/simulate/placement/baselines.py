"""First-fit and best-fit, as planners of model placement beside ours.

Both keep the rules of models and workers and give every model the replicas that its load needs, as ours does. They
choose by memory alone: the first worker that fits, or the one with the least memory left. ``repack`` packs all models
again at each change: those that need an empty worker, then the largest first, which packs best. ``keep`` leaves valid
replicas where they are and places only what is missing, which moves least. Neither moves one model to make room for
another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import ADD, REMOVE, Move, Plan
from isochrone.control.placement.planning.occupancy import Occupancy
from isochrone.control.placement.planning.planner import DEFAULT_RULES
from isochrone.control.placement.planning.search import STRICT, WITHOUT_COMPUTE, WITHOUT_ROOM, fits
from isochrone.control.placement.planning.units import units_of
from isochrone.control.placement.workers import LOST, Replicas, WorkerOffer

Choose = Callable[[Occupancy, int, int], int | None]

_REASON = "packing"


def first_fit(occupancy: Occupancy, unit: int, level: int) -> int | None:
    return next((each.worker for each in occupancy.candidates(unit) if fits(occupancy, unit, each.worker, level)), None)


def best_fit(occupancy: Occupancy, unit: int, level: int) -> int | None:
    fitting = [each.worker for each in occupancy.candidates(unit) if fits(occupancy, unit, each.worker, level)]
    return min(
        fitting, key=lambda worker: (occupancy.workers[worker].memory - occupancy.used[worker], worker), default=None
    )


def repack(choose: Choose, needs: Sequence[ModelNeeds], workers: Sequence[WorkerOffer], replicas: Replicas) -> Plan:
    """Pack an empty fleet; the moves are what differs."""
    packed = Occupancy(units_of(needs), workers, {}, DEFAULT_RULES)
    for unit in _order(packed):
        _fill(packed, choose, unit)
    serving = {worker.name for worker in workers if worker.state != LOST}
    standing = {model: names & serving for model, names in replicas.items()}
    after = packed.replicas()
    adds = [Move(ADD, m, w, _REASON) for m in after for w in sorted(after[m] - standing.get(m, frozenset()))]
    removes = [Move(REMOVE, m, w, _REASON) for m in standing for w in sorted(standing[m] - after.get(m, frozenset()))]
    sizes = {each.name: each.memory + each.incoming for each in needs}
    memory = {worker.name: worker.memory for worker in workers}
    unplaced = {
        n: "" for at, unit in enumerate(packed.units) if not packed.places[at] and unit.least for n in unit.names
    }
    return Plan(after, _ordered(adds, removes, standing, sizes, memory), unplaced)


def keep(choose: Choose, needs: Sequence[ModelNeeds], workers: Sequence[WorkerOffer], replicas: Replicas) -> Plan:
    """Leave what is valid, and place what is missing."""
    occupancy = Occupancy(units_of(needs), workers, replicas, DEFAULT_RULES)
    for worker in range(len(occupancy.workers)):
        for model in sorted(occupancy.strays[worker]):
            occupancy.remove_stray(model, worker, _REASON)
    order = _order(occupancy)
    for unit in order:
        for worker in list(occupancy.places[unit]):
            if occupancy.broken_rule(unit, worker) is not None:
                _replace(occupancy, choose, unit, worker)
    for worker, offer in enumerate(occupancy.workers):
        while offer.memory and occupancy.used[worker] > offer.memory:
            # The largest first: the fewest moves.
            _replace(
                occupancy, choose, max(occupancy.present[worker], key=lambda u: (occupancy.units[u].bytes, u)), worker
            )
    for unit in order:
        _fill(occupancy, choose, unit)
        _trim(occupancy, unit)
    unplaced = {
        name: ""
        for at, unit in enumerate(occupancy.units)
        if not occupancy.places[at] and unit.least
        for name in unit.names
    }
    return Plan(occupancy.replicas(), tuple(occupancy.moves), unplaced)


def _order(occupancy: Occupancy) -> list[int]:
    """Models that need an empty worker, then the largest."""
    units = occupancy.units
    return sorted(range(len(units)), key=lambda each: (not units[each].isolated, -units[each].bytes, each))


def _fill(occupancy: Occupancy, choose: Choose, unit: int) -> None:
    """Add replicas until there are enough, and until none is too busy."""
    one = occupancy.units[unit]
    while len(occupancy.places[unit]) < one.least:
        found = next(
            (
                w
                for level in (STRICT, WITHOUT_ROOM, WITHOUT_COMPUTE)
                if (w := choose(occupancy, unit, level)) is not None
            ),
            None,
        )
        if found is None:
            return
        occupancy.add(unit, found, _REASON)
    while occupancy.places[unit] and occupancy.is_hot(unit) and len(occupancy.places[unit]) < one.max_replicas:
        found = next((w for level in (STRICT, WITHOUT_ROOM) if (w := choose(occupancy, unit, level)) is not None), None)
        if found is None:
            return
        occupancy.add(unit, found, _REASON)


def _replace(occupancy: Occupancy, choose: Choose, unit: int, worker: int) -> None:
    for level in (STRICT, WITHOUT_ROOM):
        found = choose(occupancy, unit, level)
        if found is not None:
            occupancy.add(unit, found, _REASON)
            break
    occupancy.remove(unit, worker, _REASON)


def _trim(occupancy: Occupancy, unit: int) -> None:
    """Give replicas back that the load does not need, by the rule of ours."""
    while len(occupancy.places[unit]) > occupancy.units[unit].least:
        last = occupancy.places[unit][-1]
        if len(occupancy.places[unit]) > 1:
            share = occupancy.share_without(unit, last)
            if share > occupancy.rules.idle * occupancy.limit(unit, without=last):
                return
        occupancy.remove(unit, last, _REASON)


def _ordered(
    adds: list[Move], removes: list[Move], standing: Replicas, sizes: Mapping[str, int], memory: Mapping[str, int]
) -> tuple[Move, ...]:
    """Adds as soon as memory suffices, removes once all adds of their model are done. Where neither is possible, the
    next add is made without room: a packing from the beginning says nothing about the way to it."""
    used = {worker: sum(sizes.get(m, 0) for m, names in standing.items() if worker in names) for worker in memory}
    waiting = {move.model: 0 for move in (*adds, *removes)}
    for move in adds:
        waiting[move.model] += 1
    adds, removes, made = list(adds), list(removes), []
    while adds or removes:
        ready = [
            move
            for move in adds
            if not memory[move.worker] or used[move.worker] + sizes[move.model] <= memory[move.worker]
        ]
        gone = [move for move in removes if not waiting[move.model]]
        step = ready[:1] or gone[:1] or adds[:1] or removes[:1]
        move = step[0]
        (adds if move.action == ADD else removes).remove(move)
        used[move.worker] += sizes.get(move.model, 0) * (1 if move.action == ADD else -1)
        if move.action == ADD:
            waiting[move.model] -= 1
        made.append(move)
    return tuple(made)
