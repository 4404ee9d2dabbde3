"""The best worker for one more replica of a unit, and ways to make room for it by moving others."""

from __future__ import annotations

from isochrone.control.placement.plan import ROOM
from isochrone.control.placement.planning.occupancy import ROUNDING, Occupancy

#: What a worker must have for a new replica besides memory, which it always must: room for a rollout and compute;
#: compute; nothing. A model that is served without room for a rollout is better than one that is not served.
STRICT, WITHOUT_ROOM, WITHOUT_COMPUTE = 0, 1, 2

#: Workers that are tried when others must move first.
_TRIED = 12
#: Loads of workers that are closer than this are equally good: then the fullest memory is taken, which leaves large
#: gaps for large models.
_LOAD_STEPS = 10
#: Bytes that a worker loads in about a second. Workers load side by side: models that come back spread over them.
_LOADED_AT_ONCE = 2**30


def fits(occupancy: Occupancy, unit: int, worker: int, level: int, leaving: int = -1, aim: int = 0) -> bool:
    """Whether a worker that the unit may have by its kind can take it now.

    ``leaving``: the replica that it replaces. ``aim``: the replicas that it will have soon, if that is decided.
    """
    one, offer = occupancy.units[unit], occupancy.workers[worker]
    if unit in occupancy.present[worker]:
        return False
    if occupancy.isolated[worker] or (one.isolated and not _is_free(occupancy, unit, worker)):
        return False
    if one.apart and _shares_machine(occupancy, unit, worker, leaving):
        return False
    if offer.memory:
        after = occupancy.used[worker] + occupancy.missing_bytes(unit, worker)
        if after > offer.memory:
            return False
        if level == STRICT and after + occupancy.room_after(unit, worker) > offer.memory:
            return False
    if level == WITHOUT_COMPUTE:
        return True
    share = expected_share(occupancy, unit, worker, leaving, aim)
    return not share or occupancy.load[worker] + share <= occupancy.rules.busy * offer.compute + ROUNDING


def expected_share(occupancy: Occupancy, unit: int, worker: int, leaving: int = -1, aim: int = 0) -> float:
    """Compute that a new replica will take on a worker once the unit has all the replicas that it needs.

    They come one by one: the first must not be judged as if it were the only one.
    """
    needed = occupancy.judged(unit, worker)[1]
    if not needed:
        return 0.0
    aim = aim or occupancy.replicas_for(unit, needed, occupancy.workers[worker].compute)
    return min(occupancy.share_with(unit, needed, leaving), needed / aim)


def best_worker(occupancy: Occupancy, unit: int, level: int, leaving: int = -1, aim: int = 0) -> int | None:
    """The worker for one more replica: on another machine, near, with little load, with little memory left.

    A unit whose rate is not measured goes where the fewest units are: any of them may have callers.
    """
    taken = {occupancy.machines[place] for place in occupancy.places[unit] if place != leaving}
    is_measured = occupancy.units[unit].rate is not None
    best: tuple[bool, tuple[int, int], int, int, int, int, int, int] | None = None
    for candidate in occupancy.candidates(unit):
        worker = candidate.worker
        if worker == leaving:
            continue
        offer, used = occupancy.workers[worker], occupancy.used[worker]
        load = 0
        if offer.compute:
            share = occupancy.share_with(unit, candidate.demand, leaving)
            load = int((occupancy.load[worker] + share) / offer.compute * _LOAD_STEPS + ROUNDING)
        left = offer.memory - used if offer.memory else used
        is_beside = occupancy.machines[worker] in taken
        loading = occupancy.loading[worker] // _LOADED_AT_ONCE
        crowd = 0 if is_measured else len(occupancy.present[worker])
        missing = occupancy.missing_bytes(unit, worker)
        score = (is_beside, candidate.rank, missing, load, loading, crowd, left, worker)
        # The score is cheaper than the rules: most workers are out by it.
        if (best is None or score < best) and fits(occupancy, unit, worker, level, leaving, aim):
            best = score
    return best[-1] if best is not None else None


def relocate(occupancy: Occupancy, unit: int, worker: int, reason: str, aim: int = 0) -> bool:
    """Move a replica to another worker: first the load, then the unload."""
    for level in (STRICT, WITHOUT_ROOM):
        found = best_worker(occupancy, unit, level, worker, aim)
        if found is not None:
            occupancy.add(unit, found, reason)
            occupancy.remove(unit, worker, reason)
            return True
    return False


def make_room(occupancy: Occupancy, unit: int, level: int, most: int, leaving: int = -1) -> int | None:
    """Move up to ``most`` replicas of others away from one worker so that the unit fits there; the worker, or None.

    All of them find a place, or none is moved.
    """
    for worker in _promising(occupancy, unit, most, leaving)[:_TRIED]:
        mark = occupancy.mark()
        if _clear(occupancy, unit, worker, most) and fits(occupancy, unit, worker, level, leaving):
            return worker
        occupancy.undo(mark)
    return None


def evacuate_others(occupancy: Occupancy, unit: int, worker: int) -> bool:
    """Leave a worker to one unit alone; all others find a place, or none is moved."""
    mark = occupancy.mark()
    for other in sorted(occupancy.present[worker] - {unit}):
        if not relocate(occupancy, other, worker, ROOM):
            occupancy.undo(mark)
            return False
    return True


def _promising(occupancy: Occupancy, unit: int, most: int, leaving: int) -> list[int]:
    """Workers that would have enough memory without some of their units, the least to move first."""
    one, found = occupancy.units[unit], []
    for candidate in occupancy.candidates(unit):
        worker, offer = candidate.worker, occupancy.workers[candidate.worker]
        present = occupancy.present[worker]
        if worker == leaving or unit in present or occupancy.isolated[worker]:
            continue
        if one.apart and _shares_machine(occupancy, unit, worker, leaving):
            continue
        lack = _lack(occupancy, unit, worker)
        movable = sorted((occupancy.units[each].bytes for each in present), reverse=True)
        if one.isolated:
            # The worker must also be large enough for the unit alone.
            if len(present) <= most and not (offer.memory and one.bytes > offer.memory):
                found.append((len(movable), sum(movable), candidate.rank, worker))
        elif 0 < lack <= sum(movable[:most]):
            found.append((1, lack, candidate.rank, worker))
    return [worker for _, _, _, worker in sorted(found)]


def _clear(occupancy: Occupancy, unit: int, worker: int, most: int) -> bool:
    """Move others away until the unit's memory suffices."""
    if occupancy.units[unit].isolated:
        return evacuate_others(occupancy, unit, worker)
    by_size = sorted(occupancy.present[worker], key=lambda each: (occupancy.units[each].bytes, each))
    lack = _lack(occupancy, unit, worker)
    for other in by_size:
        # One move is better than several: the smallest that suffices.
        if occupancy.units[other].bytes >= lack and relocate(occupancy, other, worker, ROOM):
            return True
    moved = 0
    for other in reversed(by_size):
        if moved == most:
            break
        if occupancy.units[other].bytes and relocate(occupancy, other, worker, ROOM):
            moved += 1
            if _lack(occupancy, unit, worker) <= 0:
                return True
    return False


def _lack(occupancy: Occupancy, unit: int, worker: int) -> int:
    """Bytes that are missing on a worker; 0 or less: none."""
    memory = occupancy.workers[worker].memory
    return occupancy.used[worker] + occupancy.missing_bytes(unit, worker) - memory if memory else 0


def _is_free(occupancy: Occupancy, unit: int, worker: int) -> bool:
    """Whether no model of others is on a worker."""
    return not occupancy.present[worker] - {unit} and not set(occupancy.strays[worker]) - set(
        occupancy.units[unit].names
    )


def _shares_machine(occupancy: Occupancy, unit: int, worker: int, leaving: int) -> bool:
    machine = occupancy.machines[worker]
    return any(occupancy.machines[place] == machine for place in occupancy.places[unit] if place != leaving)
