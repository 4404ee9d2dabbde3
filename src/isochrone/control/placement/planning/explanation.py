"""Why a model is where it is, why it is not elsewhere, and what is missing where it fits nowhere, in figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.planning.eligibility import Obstacle
from isochrone.control.placement.planning.occupancy import ROUNDING, Occupancy
from isochrone.control.placement.planning.rules import PlacementRules
from isochrone.control.placement.planning.search import expected_share
from isochrone.control.placement.planning.units import units_of
from isochrone.control.placement.workers import LOST, Replicas, WorkerOffer
from isochrone.errors import NotFound
from isochrone.suggestions import suggestion


@dataclass(frozen=True, slots=True)
class WorkerVerdict:
    """One model on one worker."""

    worker: str
    has: bool
    #: The first rule that keeps it off the worker, or that it breaks there; "": none.
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One model on all workers."""

    model: str
    #: Models that are placed with it, itself included.
    together: tuple[str, ...]
    workers: tuple[WorkerVerdict, ...]
    #: What is missing, in one sentence; "": nothing.
    missing: str


def explain(
    model: str,
    needs: Iterable[ModelNeeds],
    workers: Iterable[WorkerOffer],
    replicas: Replicas,
    rules: PlacementRules,
) -> Explanation:
    """Of a model in the given state: of a fleet as it is, or after a plan."""
    units, offers = units_of(needs), list(workers)
    unit = next((at for at, each in enumerate(units) if model in each.names), None)
    if unit is None:
        known = sorted(name for each in units for name in each.names)
        expected = suggestion(model, known, "model") if known else "a model, but the fleet has none"
        raise NotFound(f"model '{model}': expected {expected}")
    occupancy = Occupancy(units, offers, replicas, rules)
    verdicts = [_verdict(occupancy, unit, at, model) for at in range(len(occupancy.workers))]
    verdicts += [
        WorkerVerdict(offer.name, False, "lost", "it does not answer") for offer in offers if offer.state == LOST
    ]
    lack = lacking(occupancy, unit) if occupancy.places[unit] else ""
    if not occupancy.places[unit] and units[unit].least:
        lack = missing(occupancy, unit)
    ordered = tuple(sorted(verdicts, key=lambda verdict: (not verdict.has, verdict.worker)))
    return Explanation(model, units[unit].names, ordered, lack)


def obstacle(occupancy: Occupancy, unit: int, worker: int) -> Obstacle | None:
    """The first rule that keeps a unit off a worker that does not have it. The same rules as ``search.fits``."""
    one, offer = occupancy.units[unit], occupancy.workers[worker]
    if (excluded := occupancy.judged(unit, worker)[0]) is not None:
        return excluded
    if failed := sorted(offer.rejected.intersection(one.names)):
        return Obstacle("load failure", f"it could not load {failed[0]}")
    names = [occupancy.units[other].name for other in sorted(occupancy.present[worker] - {unit})]
    names += sorted(set(occupancy.strays[worker]) - set(one.names))
    if occupancy.isolated[worker]:
        alone = next(other for other in occupancy.present[worker] if occupancy.units[other].isolated)
        return Obstacle("isolation", f"it belongs to {occupancy.units[alone].name} alone")
    if one.isolated and names:
        return Obstacle("isolation", f"it has {_some(names)}, and {one.name} needs a worker of its own")
    near = [each for each in occupancy.places[unit] if occupancy.machines[each] == occupancy.machines[worker]]
    if one.apart and near:
        return Obstacle("apart", f"{occupancy.workers[near[0]].name} on the same machine has it")
    return _shortage(occupancy, unit, worker)


def _shortage(occupancy: Occupancy, unit: int, worker: int) -> Obstacle | None:
    offer, needed = occupancy.workers[worker], occupancy.missing_bytes(unit, worker)
    free = offer.memory - occupancy.used[worker]
    if offer.memory and needed > free:
        return Obstacle("memory", f"{_size(free)} of {_size(offer.memory)} are free; {_size(needed)} are needed")
    room = occupancy.room_after(unit, worker)
    if offer.memory and needed + room > free:
        return Obstacle(
            "rollout room",
            f"{_size(free)} of {_size(offer.memory)} are free; {_size(needed)} are needed, and {_size(room)} for a "
            "rollout of the largest model there",
        )
    share = expected_share(occupancy, unit, worker)
    most = occupancy.rules.busy * offer.compute
    if share and occupancy.load[worker] + share > most + ROUNDING:
        return Obstacle(
            "compute",
            f"it is busy {_percent(occupancy.relative_load(worker))} of the time; {_percent(share / offer.compute)} "
            f"more would exceed {_percent(occupancy.rules.busy)}"
            if offer.compute
            else "it has no compute",
        )
    return None


def missing(occupancy: Occupancy, unit: int) -> str:
    """Why a unit fits nowhere, or nowhere else, with the figures of the worker that comes nearest."""
    one, found = occupancy.units[unit], {}
    others = [worker for worker in range(len(occupancy.workers)) if worker not in occupancy.places[unit]]
    for worker in others:
        blocked = obstacle(occupancy, unit, worker)
        if blocked is not None:
            found[worker] = blocked
    if not occupancy.workers:
        return "no worker is serving"
    if not others:
        return "every worker has it"
    memory = [worker for worker, each in found.items() if each.rule == "memory"]
    if memory:
        best = max(memory, key=lambda worker: (occupancy.workers[worker].memory - occupancy.used[worker], -worker))
        offer, needed = occupancy.workers[best], occupancy.missing_bytes(unit, best)
        free = offer.memory - occupancy.used[best]
        return (
            f"no allowed worker has {_size(needed)} free: the most is {_size(free)} of {_size(offer.memory)} on "
            f"{offer.name}, {_size(needed - free)} short"
        )
    counts: dict[str, int] = {}
    for each in found.values():
        counts[each.rule] = counts.get(each.rule, 0) + 1
    first = {each.rule: f"{occupancy.workers[worker].name}: {each.detail}" for worker, each in reversed(found.items())}
    parts = [f"{count} by {rule} ({first[rule]})" for rule, count in sorted(counts.items())]
    if parts:
        other = "other " if occupancy.places[unit] else ""
        return f"no {other}worker may have {one.name}: " + ", ".join(parts)
    if occupancy.places[unit]:
        return "a plan would place another"
    return f"{one.name} has no replica yet; a plan would place it"


def lacking(occupancy: Occupancy, unit: int) -> str:
    """What the replicas of a unit lack; "": nothing."""
    one, places = occupancy.units[unit], occupancy.places[unit]
    broken = [(worker, rule) for worker in places if (rule := occupancy.broken_rule(unit, worker)) is not None]
    if broken:
        worker, rule = broken[0]
        return f"it is on {occupancy.workers[worker].name} against the rule {rule.rule}: {rule.detail}"
    if 0 < len(places) < one.least:
        return f"it has {len(places)} of {one.least} replicas: {missing(occupancy, unit)}"
    if places and occupancy.is_hot(unit):
        busy = occupancy.share(unit) / occupancy.limit(unit) if occupancy.limit(unit) else 1.0
        if len(places) >= one.max_replicas:
            return f"its replicas are busy {_percent(busy)} of the time, and it has max_replicas of them"
        return f"its replicas are busy {_percent(busy)} of the time: {missing(occupancy, unit)}"
    crowded = [worker for worker in places if occupancy.is_overloaded(worker)]
    if crowded and occupancy.share(unit):
        name, load = occupancy.workers[crowded[0]].name, occupancy.relative_load(crowded[0])
        return f"worker {name} is busy {_percent(load)} of the time, and no other worker can take a part of it"
    return ""


def _verdict(occupancy: Occupancy, unit: int, worker: int, model: str) -> WorkerVerdict:
    name = occupancy.workers[worker].name
    if model in occupancy.strays[worker]:
        others = [other for other in occupancy.units[unit].names if other not in occupancy.strays[worker]]
        return WorkerVerdict(name, True, "together", f"it has {model} without {_some(others)}")
    if unit in occupancy.present[worker]:
        broken = occupancy.broken_rule(unit, worker)
        if broken is not None:
            return WorkerVerdict(name, True, broken.rule, broken.detail)
        takes = f"it takes {_size(occupancy.units[unit].bytes)}"
        if share := occupancy.share(unit):
            takes += f" and {_percent(share / (occupancy.workers[worker].compute or 1.0))} of the time"
        return WorkerVerdict(name, True, "", takes)
    blocked = obstacle(occupancy, unit, worker)
    if blocked is not None:
        return WorkerVerdict(name, False, blocked.rule, blocked.detail)
    count = len(occupancy.places[unit])
    return WorkerVerdict(name, False, "", f"it could have it; {count} {'is' if count == 1 else 'are'} enough")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _size(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB" if abs(amount) >= 2**30 else f"{amount / 2**20:.0f} MiB"
