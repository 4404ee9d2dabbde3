"""The plan of model placement: from the replicas that stand to the next ones, with as few moves as the rules allow.

A standing replica stays unless it breaks a rule, is not needed for the load, or its move gains more than a margin. Each
part below looks at the present state alone, so that a plan for its own result is empty. The parts, in their order:
models without enough replicas, replicas that break a rule, workers with too little memory, models that are given back,
models and workers with too much load. Replicas move for balance only when nothing else has to move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import (
    BALANCE,
    COLD,
    HOT,
    MEMORY,
    OVERLOAD,
    RESTORE,
    RETIRED,
    RULE,
    Plan,
)
from isochrone.control.placement.planning.explanation import lacking, missing
from isochrone.control.placement.planning.net_moves import Fleet, net_moves
from isochrone.control.placement.planning.occupancy import ROUNDING, Occupancy
from isochrone.control.placement.planning.rules import PlacementRules
from isochrone.control.placement.planning.search import (
    STRICT,
    WITHOUT_COMPUTE,
    WITHOUT_ROOM,
    best_worker,
    evacuate_others,
    fits,
    make_room,
    relocate,
)
from isochrone.control.placement.planning.units import units_of
from isochrone.control.placement.workers import Replicas, WorkerOffer

#: Rounds over all parts. The memory that one part frees may serve another; the third round rarely finds anything.
_ROUNDS = 6
#: Replicas of others that may move so that a model is served at all, and so that a hot one gets one more.
_MOST_MOVED, _MOST_MOVED_FOR_LOAD = 8, 2
#: Replicas that may leave one worker for its load. Between devices of different speeds, a move can raise the load of
#: other workers: the number makes sure that a plan ends.
_MOST_RELIEFS = 64
#: Times the least number of replicas that a hot model may get, as far as workers are too busy for the least number.
_TIMES = (1.0, 1.5, 2.0, 3.0)

DEFAULT_RULES = PlacementRules()


def plan_placement(
    needs: Iterable[ModelNeeds],
    workers: Iterable[WorkerOffer],
    replicas: Replicas,
    rules: PlacementRules = DEFAULT_RULES,
) -> Plan:
    """Replicas of workers that are lost or not named are gone."""
    units = units_of(needs)
    occupancy = Occupancy(units, workers, replicas, rules)
    _retire(occupancy)
    for _ in range(_ROUNDS):
        before = len(occupancy.moves)
        occupancy.recount()
        _restore(occupancy)
        _keep_rules(occupancy)
        _keep_memory(occupancy)
        _remove_strays(occupancy)
        _give_back(occupancy)
        _relieve_models(occupancy)
        _relieve_workers(occupancy)
        if len(occupancy.moves) == before:
            break
    if not occupancy.moves:
        occupancy.recount()
        _balance(occupancy)
    return _plan(occupancy)


def _plan(occupancy: Occupancy) -> Plan:
    unplaced: dict[str, str] = {}
    short: dict[str, str] = {}
    for unit, each in enumerate(occupancy.units):
        if not occupancy.places[unit] and each.least:
            unplaced |= dict.fromkeys(each.names, missing(occupancy, unit))
        elif text := lacking(occupancy, unit):
            short |= dict.fromkeys(each.names, text)
    crowded = [
        worker.name
        for at, worker in enumerate(occupancy.workers)
        if worker.memory and occupancy.used[at] + occupancy.room[at] > worker.memory
    ]
    replicas = occupancy.replicas()
    members = {each.name: (at, each) for at, unit in enumerate(occupancy.units) for each in unit.members}
    fleet = Fleet(
        {name: each.memory + each.incoming for name, (_, each) in members.items()},
        {name: at for name, (at, _) in members.items()},
        {worker.name: worker.memory for worker in occupancy.workers},
    )
    net = net_moves(occupancy.moves, replicas, fleet)
    return Plan(replicas, net, unplaced, short, tuple(crowded))


def _retire(occupancy: Occupancy) -> None:
    """Models that nothing needs any more."""
    served = {name for unit in occupancy.units for name in unit.names}
    for worker, strays in enumerate(occupancy.strays):
        for model in sorted(strays.keys() - served):
            occupancy.remove_stray(model, worker, RETIRED)


def _restore(occupancy: Occupancy) -> None:
    """Every model gets its first replica before any gets its second; those with the fewest possible workers first, and
    before them those that need an empty one."""
    units = occupancy.units
    lacking_units = [at for at, unit in enumerate(units) if len(occupancy.places[at]) < unit.least]
    order = {
        unit: (not units[unit].isolated, occupancy.allowed_workers(unit), -units[unit].bytes, unit)
        for unit in lacking_units
    }
    for count in range(max((units[unit].least for unit in lacking_units), default=0)):
        for unit in sorted(lacking_units, key=order.__getitem__):
            if len(occupancy.places[unit]) == count < units[unit].least:
                _place(occupancy, unit)


def _place(occupancy: Occupancy, unit: int) -> bool:
    for level in (STRICT, WITHOUT_ROOM):
        found = best_worker(occupancy, unit, level)
        if found is not None:
            occupancy.add(unit, found, RESTORE)
            return True
    for level in (WITHOUT_ROOM, WITHOUT_COMPUTE):
        found = make_room(occupancy, unit, level, _MOST_MOVED)
        if found is None and level == WITHOUT_ROOM:
            # Too much load for any worker: served late is better than not served.
            found = best_worker(occupancy, unit, WITHOUT_COMPUTE)
        if found is not None:
            occupancy.add(unit, found, RESTORE)
            return True
    return False


def _keep_rules(occupancy: Occupancy) -> None:
    """Replicas where they must not be: they move; one that cannot move and is needed stays, and is reported."""
    for unit in range(len(occupancy.units)):
        for worker in list(occupancy.places[unit]):
            if worker not in occupancy.places[unit] or not occupancy.broken_rule(unit, worker):
                continue
            if relocate(occupancy, unit, worker, RULE):
                continue
            if len(occupancy.places[unit]) > occupancy.units[unit].least:
                occupancy.remove(unit, worker, RULE)
                continue
            found = make_room(occupancy, unit, WITHOUT_ROOM, _MOST_MOVED, leaving=worker)
            if found is not None:
                occupancy.add(unit, found, RULE)
                occupancy.remove(unit, worker, RULE)
            elif occupancy.judged(unit, worker)[0] is None and occupancy.units[unit].isolated:
                evacuate_others(occupancy, unit, worker)


def _keep_memory(occupancy: Occupancy) -> None:
    """Workers whose memory is too small for what they have, because it or a model has changed: they give models away,
    and unload what no other worker can take."""
    for worker, offer in enumerate(occupancy.workers):
        while offer.memory and occupancy.used[worker] > offer.memory:
            over = occupancy.used[worker] - offer.memory
            strays = occupancy.strays[worker]
            if sum(strays.values()):
                # A part of an ensemble serves less than a whole model.
                occupancy.remove_stray(max(strays, key=lambda model: (strays[model], model)), worker, MEMORY)
                continue
            by_size = sorted(occupancy.present[worker], key=lambda each: (occupancy.units[each].bytes, each))
            enough = [unit for unit in by_size if occupancy.units[unit].bytes >= over]
            less = [unit for unit in reversed(by_size) if 0 < occupancy.units[unit].bytes < over]
            if any(_give_away(occupancy, unit, worker) for unit in [*enough, *less]):
                continue
            # Nothing can move: what has other replicas, then what has the fewest callers, is unloaded.
            occupancy.remove(min([*enough, *less], key=lambda unit: _loss(occupancy, unit)), worker, MEMORY)


def _give_away(occupancy: Occupancy, unit: int, worker: int) -> bool:
    if len(occupancy.places[unit]) > occupancy.units[unit].least and _can_spare(occupancy, unit, worker):
        occupancy.remove(unit, worker, MEMORY)
        return True
    return relocate(occupancy, unit, worker, MEMORY)


def _loss(occupancy: Occupancy, unit: int) -> tuple[bool, bool, float, int]:
    one = occupancy.units[unit]
    return len(occupancy.places[unit]) == 1, one.rate is None, one.rate or 0.0, unit


def _remove_strays(occupancy: Occupancy) -> None:
    """Single models of a unit on workers that do not have all of it, once the unit has its replicas. A stage may have
    callers of its own there: it stays as long as no load is measured."""
    complete = {
        name
        for at, unit in enumerate(occupancy.units)
        if unit.rate is not None and len(occupancy.places[at]) >= max(1, unit.least)
        for name in unit.names
    }
    for worker, strays in enumerate(occupancy.strays):
        for model in sorted(strays.keys() & complete):
            occupancy.remove_stray(model, worker, RULE)


def _give_back(occupancy: Occupancy) -> None:
    """Replicas that the load does not need. A model whose load is not measured keeps all of its replicas."""
    for unit, one in enumerate(occupancy.units):
        if one.rate is None:
            continue
        while len(occupancy.places[unit]) > one.least:
            # From the farthest worker, then from the busiest.
            order = sorted(
                occupancy.places[unit],
                key=lambda worker: (occupancy.rank(unit, worker), occupancy.relative_load(worker), worker),
                reverse=True,
            )
            spared = next((worker for worker in order if _can_spare(occupancy, unit, worker)), None)
            if spared is None:
                break
            occupancy.remove(unit, spared, COLD)


def _can_spare(occupancy: Occupancy, unit: int, worker: int) -> bool:
    """Whether the other replicas, and the workers that they are on, stay idle enough without this one."""
    if len(occupancy.places[unit]) == 1:
        return not occupancy.units[unit].rate
    share = occupancy.share_without(unit, worker)
    if share > occupancy.rules.idle * occupancy.limit(unit, without=worker) + ROUNDING:
        return False
    more = share - occupancy.share(unit)
    return all(
        occupancy.load[other] + more <= occupancy.rules.busy * occupancy.workers[other].compute + ROUNDING
        for other in occupancy.places[unit]
        if other != worker and more > 0
    )


def _relieve_models(occupancy: Occupancy) -> None:
    """More replicas for models whose load comes near to what theirs can take: before requests wait, not after."""
    hot = [unit for unit in range(len(occupancy.units)) if occupancy.places[unit] and occupancy.is_hot(unit)]
    for unit in sorted(hot, key=lambda each: (-occupancy.share(each) / (occupancy.limit(each) or 1.0), each)):
        least = _replicas_for_load(occupancy, unit)
        # Many replicas with a little load each fit where few with much do not.
        aims = sorted({min(math.ceil(least * times), occupancy.units[unit].max_replicas) for times in _TIMES})
        if not any(_replicate(occupancy, unit, int(aim)) for aim in aims):
            _replicate_partly(occupancy, unit, least)


def _replicas_for_load(occupancy: Occupancy, unit: int) -> int:
    """By the speed of its present workers."""
    offers = [(occupancy.judged(unit, worker)[1], occupancy.workers[worker]) for worker in occupancy.places[unit]]
    return max(occupancy.replicas_for(unit, needed, offer.compute) for needed, offer in offers)


def _replicate(occupancy: Occupancy, unit: int, aim: int) -> bool:
    """Add replicas until there are as many as the aim, or none."""
    mark = occupancy.mark()
    while occupancy.is_hot(unit) or len(occupancy.places[unit]) < aim:
        found = None
        if len(occupancy.places[unit]) < occupancy.units[unit].max_replicas:
            found = best_worker(occupancy, unit, STRICT, aim=aim)
            if found is None:
                found = best_worker(occupancy, unit, WITHOUT_ROOM, aim=aim)
        if found is None:
            occupancy.undo(mark)
            return False
        occupancy.add(unit, found, HOT)
    return True


def _replicate_partly(occupancy: Occupancy, unit: int, aim: int) -> None:
    """As many replicas as there is room for, also if others must move: less load for each is better than none."""
    while occupancy.is_hot(unit) and len(occupancy.places[unit]) < occupancy.units[unit].max_replicas:
        found = best_worker(occupancy, unit, WITHOUT_ROOM, aim=aim)
        if found is None:
            found = make_room(occupancy, unit, WITHOUT_ROOM, _MOST_MOVED_FOR_LOAD)
        if found is None:
            return
        occupancy.add(unit, found, HOT)


def _relieve_workers(occupancy: Occupancy) -> None:
    """Workers whose models together have too much load: the smallest share that suffices moves, else the largest."""
    for worker, offer in enumerate(occupancy.workers):
        for _ in range(_MOST_RELIEFS):
            if not occupancy.is_overloaded(worker):
                break
            excess = occupancy.load[worker] - occupancy.rules.busy * offer.compute
            by_share = sorted(
                (unit for unit in occupancy.present[worker] if occupancy.share(unit) > ROUNDING),
                key=lambda unit: (occupancy.share(unit), unit),
            )
            enough = [unit for unit in by_share if occupancy.share(unit) >= excess]
            less = [unit for unit in reversed(by_share) if occupancy.share(unit) < excess]
            # By the load that it has, whatever other replicas it should get: else it would go from one to the next.
            if any(relocate(occupancy, unit, worker, OVERLOAD, aim=1) for unit in [*enough, *less]):
                continue
            if not any(_share_out(occupancy, unit) for unit in reversed(by_share)):
                break


def _share_out(occupancy: Occupancy, unit: int) -> bool:
    """One more replica takes a part of the load."""
    if len(occupancy.places[unit]) >= occupancy.units[unit].max_replicas:
        return False
    found = best_worker(occupancy, unit, WITHOUT_ROOM, aim=1)
    if found is not None:
        occupancy.add(unit, found, OVERLOAD)
    return found is not None


def _balance(occupancy: Occupancy) -> None:
    """Move replicas from busy to idle workers where that gains more than the margin."""
    for _ in range(_MOST_RELIEFS * len(occupancy.workers)):
        move = _best_exchange(occupancy)
        if move is None:
            break
        unit, source, target = move
        occupancy.add(unit, target, BALANCE)
        occupancy.remove(unit, source, BALANCE)


def _best_exchange(occupancy: Occupancy) -> tuple[int, int, int] | None:
    """The largest share of the busiest worker that another one takes with the margin to spare."""
    loads = [occupancy.relative_load(worker) for worker in range(len(occupancy.workers))]
    lowest = min(loads, default=0.0)
    for source in sorted(range(len(loads)), key=lambda worker: (-loads[worker], worker)):
        if loads[source] - lowest < occupancy.rules.margin + occupancy.rules.least_gain:
            return None
        for unit in sorted(occupancy.present[source], key=lambda each: (-occupancy.share(each), each)):
            if occupancy.share(unit) < occupancy.rules.least_gain * occupancy.workers[source].compute:
                break
            target = _calmer(occupancy, unit, source, loads)
            if target is not None:
                return unit, source, target
    return None


def _calmer(occupancy: Occupancy, unit: int, source: int, loads: list[float]) -> int | None:
    """The idlest worker as near as the present one that stays below its load by the margin."""
    nearness = occupancy.rank(unit, source)
    others = {occupancy.machines[place] for place in occupancy.places[unit] if place != source}
    best = None
    for candidate in occupancy.candidates(unit):
        target, compute = candidate.worker, occupancy.workers[candidate.worker].compute
        if not compute or candidate.rank > nearness or occupancy.machines[target] in others:
            continue
        after = loads[target] + occupancy.share_with(unit, candidate.demand, source) / compute
        if after > loads[source] - occupancy.rules.margin - ROUNDING or (best is not None and (after, target) >= best):
            continue
        if fits(occupancy, unit, target, STRICT, source):
            best = (after, target)
    return best[1] if best is not None else None
