"""Memory and compute of every worker while a plan is made, move by move.

The state after each recorded move is one that workers really pass through: memory is free only once the unload that
frees it is in the list. So an order in which memory suffices at every moment needs no search afterwards.

A model's requests are shared so that each of its replicas is busy for the same share of time: a faster device takes
more of them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Hashable, Iterable, Sequence

from isochrone.control.placement.plan import ADD, REMOVE, Move
from isochrone.control.placement.planning.eligibility import Obstacle, demand, exclusion, tier_rank, worker_class
from isochrone.control.placement.planning.rules import PlacementRules
from isochrone.control.placement.planning.units import Unit
from isochrone.control.placement.workers import LOST, Replicas, WorkerOffer

#: Sums of shares in another order differ by less than this.
ROUNDING = 1e-9
#: Round trips that differ by less than this many seconds are equally good.
_NEAR = 0.001


class Candidate:
    """A worker that a unit may have, with what does not change while a plan is made."""

    __slots__ = ("demand", "rank", "worker")

    def __init__(self, worker: int, rank: tuple[int, int], needed: float) -> None:
        self.worker = worker
        #: Order of its tier, and its round trip in steps of a millisecond.
        self.rank = rank
        self.demand = needed


class Occupancy:
    """Units and workers are known by their index in ``units`` and ``workers``."""

    def __init__(
        self, units: Sequence[Unit], workers: Iterable[WorkerOffer], replicas: Replicas, rules: PlacementRules
    ) -> None:
        self.units = units
        self.rules = rules
        self.workers = sorted((each for each in workers if each.state != LOST), key=lambda worker: worker.name)
        self.machines = [each.machine or f"\0{each.name}" for each in self.workers]
        count = len(self.workers)
        #: By worker: bytes in use, compute in use, units that it has.
        self.used = [0] * count
        self.load = [0.0] * count
        self.present: list[set[int]] = [set() for _ in range(count)]
        self.isolated = [0] * count
        #: By worker: bytes that the moves so far load.
        self.loading = [0] * count
        #: By worker: the bytes that its largest rollout would load, and those of each group that changes together.
        self.room = [0] * count
        self._groups: list[dict[str, int]] = [{} for _ in range(count)]
        #: By worker: bytes of models that it has without the rest of their unit, or that are no longer served.
        self.strays: list[dict[str, int]] = [{} for _ in range(count)]
        #: By unit: its workers, ascending, and their speeds together.
        self.places: list[list[int]] = [[] for _ in units]
        self._speeds = [0.0] * len(units)
        self.moves: list[Move] = []
        self._log: list[tuple[bool, int, int, dict[str, int], int]] = []
        classes: dict[Hashable, int] = {}
        self._class = [classes.setdefault(worker_class(each), len(classes)) for each in self.workers]
        self._class_sizes = [self._class.count(each) for each in range(len(classes))]
        self._class_first = [self._class.index(each) for each in range(len(classes))]
        self._judged: list[dict[int, tuple[Obstacle | None, float]]] = [{} for _ in units]
        self._candidates: dict[int, list[Candidate]] = {}
        self._settle(replicas)

    def _settle(self, replicas: Replicas) -> None:
        """Take the standing replicas."""
        index = {worker.name: at for at, worker in enumerate(self.workers)}
        known: dict[str, int] = {}
        for at, unit in enumerate(self.units):
            common: set[str] | None = None
            for member in unit.members:
                known[member.name] = member.memory + member.incoming
                here = replicas.get(member.name, frozenset())
                common = set(here) if common is None else common & here
            for name in sorted(common or ()):
                if name in index:
                    self._put(at, index[name])
        for model, names in sorted(replicas.items()):
            for name in sorted(names):
                worker = index.get(name)
                if worker is not None and not self._is_whole(model, worker):
                    # Of a model that is no longer served nothing is known; its unload comes first.
                    self.strays[worker][model] = known.get(model, 0)
                    self.used[worker] += known.get(model, 0)

    def _is_whole(self, model: str, worker: int) -> bool:
        return any(model in self.units[unit].names for unit in self.present[worker])

    # What a unit would be on a worker.

    def judged(self, unit: int, worker: int) -> tuple[Obstacle | None, float]:
        """The rule that keeps a unit off workers of this kind, and the compute that all its requests take there."""
        kind = self._class[worker]
        found = self._judged[unit].get(kind)
        if found is None:
            one, other = self.units[unit], self.workers[worker]
            found = self._judged[unit][kind] = (exclusion(one, other), demand(one, other))
        return found

    def allowed_workers(self, unit: int) -> int:
        """How many workers it may have by their kind."""
        first, sizes = self._class_first, self._class_sizes
        return sum(size for at, size in zip(first, sizes, strict=True) if self.judged(unit, at)[0] is None)

    def candidates(self, unit: int) -> list[Candidate]:
        """The workers that it may have by their kind, and that did not fail to load it."""
        found = self._candidates.get(unit)
        if found is None:
            found = self._candidates[unit] = []
            names = self.units[unit].names
            for at, worker in enumerate(self.workers):
                obstacle, needed = self.judged(unit, at)
                if obstacle is None and not (worker.rejected and worker.rejected.intersection(names)):
                    rank = (tier_rank(self.units[unit], worker), int(worker.round_trip / _NEAR))
                    found.append(Candidate(at, rank, needed))
        return found

    def rank(self, unit: int, worker: int) -> tuple[int, int]:
        return tier_rank(self.units[unit], self.workers[worker]), int(self.workers[worker].round_trip / _NEAR)

    def missing_bytes(self, unit: int, worker: int) -> int:
        """Bytes that adding it would load: some of its models may be there already."""
        strays = self.strays[worker]
        there = sum(strays.get(name, 0) for name in self.units[unit].names) if strays else 0
        return self.units[unit].bytes - there

    def room_after(self, unit: int, worker: int) -> int:
        """Bytes of the largest rollout on a worker that also has this unit."""
        one = self.units[unit]
        if not one.shares_rollouts:
            return max(self.room[worker], one.rollout_bytes)
        groups = self._groups[worker]
        return max([self.room[worker], *(groups.get(group, 0) + size for group, size in one.rollouts.items())])

    def broken_rule(self, unit: int, worker: int) -> Obstacle | None:
        """The rule that a standing replica breaks. Memory and load are not among them: those are of the worker."""
        if (excluded := self.judged(unit, worker)[0]) is not None:
            return excluded
        one = self.units[unit]
        if one.isolated and (len(self.present[worker]) > 1 or self.strays[worker]):
            return Obstacle("isolation", f"{one.name} needs a worker of its own")
        if one.apart:
            earlier = [each for each in self.places[unit] if each < worker]
            for each in earlier:
                if self.machines[each] == self.machines[worker]:
                    return Obstacle("apart", f"{self.workers[each].name} on the same machine has it, too")
        return None

    # Compute.

    def share(self, unit: int) -> float:
        """Compute that each replica of a unit takes."""
        return 1 / self._speeds[unit] if self._speeds[unit] else 0.0

    def share_with(self, unit: int, needed: float, leaving: int = -1) -> float:
        """The same with one more replica, where all its requests would take ``needed``, and without one."""
        if not needed:
            return 0.0
        speed = self._speeds[unit] + 1 / needed
        return 1 / (speed - 1 / self.judged(unit, leaving)[1] if leaving >= 0 else speed)

    def replicas_for(self, unit: int, needed: float, compute: float) -> int:
        """Replicas that a unit needs on workers where all its requests would take ``needed``."""
        most = self.rules.busy * min(self.units[unit].instances, compute)
        return max(1, math.ceil(needed / most - ROUNDING)) if most else 1

    def share_without(self, unit: int, worker: int) -> float:
        """The same without one of its replicas, which is not the last."""
        needed = self.judged(unit, worker)[1]
        return 1 / (self._speeds[unit] - 1 / needed) if needed else 0.0

    def limit(self, unit: int, without: int = -1) -> float:
        """Compute that a replica can take: of the worker with the least."""
        there = [self.workers[worker].compute for worker in self.places[unit] if worker != without]
        return min([self.units[unit].instances, *there])

    def is_hot(self, unit: int) -> bool:
        return self.share(unit) > self.rules.busy * self.limit(unit) + ROUNDING

    def is_overloaded(self, worker: int) -> bool:
        return self.load[worker] > self.rules.busy * self.workers[worker].compute + ROUNDING

    def relative_load(self, worker: int) -> float:
        compute = self.workers[worker].compute
        return self.load[worker] / compute if compute else 0.0

    def recount(self) -> None:
        """Sum the loads again: rounding must not depend on the moves before."""
        self.load = [0.0] * len(self.workers)
        for unit, places in enumerate(self.places):
            needed = [self.judged(unit, worker)[1] for worker in places]
            self._speeds[unit] = sum(1 / each for each in needed if each)
            share = self.share(unit)
            for worker in places:
                self.load[worker] += share

    # Moves.

    def add(self, unit: int, worker: int, reason: str) -> None:
        strays = self.strays[worker]
        taken = {name: strays.pop(name) for name in self.units[unit].names if name in strays} if strays else {}
        self._log.append((True, unit, worker, taken, len(self.moves)))
        for name in self.units[unit].names:
            if name not in taken:
                self.moves.append(Move(ADD, name, self.workers[worker].name, reason))
        self.used[worker] -= sum(taken.values())
        self.loading[worker] += self.units[unit].bytes - sum(taken.values())
        self._put(unit, worker)

    def remove(self, unit: int, worker: int, reason: str) -> None:
        self._log.append((False, unit, worker, {}, len(self.moves)))
        for name in reversed(self.units[unit].names):
            self.moves.append(Move(REMOVE, name, self.workers[worker].name, reason))
        self._take(unit, worker)

    def remove_stray(self, model: str, worker: int, reason: str) -> None:
        """Never undone: no trial removes strays."""
        self.used[worker] -= self.strays[worker].pop(model)
        self.moves.append(Move(REMOVE, model, self.workers[worker].name, reason))

    def mark(self) -> int:
        return len(self._log)

    def undo(self, mark: int) -> None:
        """Take back all moves since a mark."""
        while len(self._log) > mark:
            added, unit, worker, taken, moves = self._log.pop()
            del self.moves[moves:]
            if added:
                self._take(unit, worker)
                self.strays[worker].update(taken)
                self.used[worker] += sum(taken.values())
                self.loading[worker] -= self.units[unit].bytes - sum(taken.values())
            else:
                self._put(unit, worker)

    def replicas(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {name: set() for unit in self.units for name in unit.names}
        for unit, places in zip(self.units, self.places, strict=True):
            for name in unit.names:
                found[name].update(self.workers[worker].name for worker in places)
        for worker, strays in zip(self.workers, self.strays, strict=True):
            for name in strays:
                found.setdefault(name, set()).add(worker.name)
        return {name: frozenset(workers) for name, workers in sorted(found.items()) if workers}

    def _put(self, unit: int, worker: int) -> None:
        one = self.units[unit]
        self.used[worker] += one.bytes
        self.present[worker].add(unit)
        self.isolated[worker] += one.isolated
        groups = self._groups[worker]
        for group, size in one.rollouts.items():
            groups[group] = groups.get(group, 0) + size
            self.room[worker] = max(self.room[worker], groups[group])
        self._spread(unit, worker, added=True)

    def _take(self, unit: int, worker: int) -> None:
        one = self.units[unit]
        self.used[worker] -= one.bytes
        self.present[worker].remove(unit)
        self.isolated[worker] -= one.isolated
        groups = self._groups[worker]
        for group, size in one.rollouts.items():
            left = groups.pop(group, 0) - size
            if left:
                groups[group] = left
        self.room[worker] = max(groups.values(), default=0)
        self._spread(unit, worker, added=False)

    def _spread(self, unit: int, worker: int, added: bool) -> None:
        """Share the requests of a unit over one replica more or less."""
        before, places = self.share(unit), self.places[unit]
        needed = self.judged(unit, worker)[1]
        if added:
            insort(places, worker)
        else:
            places.remove(worker)
            self.load[worker] -= before
        if not needed:
            return
        # From the beginning, not by a difference: the last replica leaves exactly nothing.
        self._speeds[unit] = sum(1 / self.judged(unit, each)[1] for each in places)
        after = self.share(unit)
        for each in places:
            self.load[each] += after - (before if not (added and each == worker) else 0.0)
