"""The moves of a plan without detours: no replica is both added and removed. Pure.

The parts of the planner work one after the other. One may add a replica that a later one moves on, or remove one that a
later one needs again. Such a pair would cost a load for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isochrone.control.placement.plan import ADD, REMOVE, Move
from isochrone.control.placement.workers import Replicas


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the order of moves depends on."""

    #: By model: bytes of a replica, and the unit that it belongs to. Of models that are no longer served: neither.
    sizes: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    #: By worker: bytes for models; 0: unknown, not checked.
    memory: Mapping[str, int] = field(default_factory=dict)


def net_moves(moves: Sequence[Move], after: Replicas, fleet: Fleet) -> tuple[Move, ...]:
    """The moves that lead to the same replicas, ``after``, each replica added or removed at most once.

    In their order memory suffices after each of them, and a model is added before it is removed elsewhere. Where only
    the detour makes that possible, because full workers exchange models, the moves stay as they are.
    """
    times = Counter((move.model, move.worker) for move in moves)
    if all(each == 1 for each in times.values()):
        return tuple(moves)
    net: dict[tuple[str, str], Move] = {}
    for move in moves:
        pair = (move.model, move.worker)
        if times[pair] % 2:
            # At its last place: what it was undone for has come by then.
            net.pop(pair, None)
            net[pair] = move
    ordered = _ordered(list(net.values()), after, fleet)
    return tuple(moves) if ordered is None else ordered


def _ordered(moves: list[Move], after: Replicas, fleet: Fleet) -> tuple[Move, ...] | None:
    """The moves in a possible order, as near to the given one as it can be; None: there is none."""
    replicas = {model: set(names) for model, names in after.items()}
    for move in reversed(moves):
        names = replicas.setdefault(move.model, set())
        names.discard(move.worker) if move.action == ADD else names.add(move.worker)
    course = _Course(moves, replicas, fleet)
    while course.left:
        # A model keeps all of its replicas until the new ones are there; if memory does not suffice, one.
        if not (course.advance(all_added=True) or course.advance(all_added=False)):
            return None
    return tuple(course.done)


class _Course:
    """Moves, performed one after the other."""

    def __init__(self, moves: list[Move], replicas: dict[str, set[str]], fleet: Fleet) -> None:
        self.left, self.done = moves, list[Move]()
        self._replicas = replicas
        self._fleet = fleet
        self._used: Counter[str] = Counter()
        for model, names in replicas.items():
            for name in names:
                self._used[name] += fleet.sizes.get(model, 0)
        #: By model: adds that are left.
        self._adds = Counter(move.model for move in moves if move.action == ADD)

    def advance(self, all_added: bool) -> bool:
        """Perform the first possible move. Moves of one ensemble keep their order on each worker."""
        waiting: set[tuple[str, str, int]] = set()
        for at, move in enumerate(self.left):
            kin = (move.action, move.worker, self._fleet.units.get(move.model, -1))
            if kin not in waiting and self._is_possible(move, all_added):
                self._perform(self.left.pop(at))
                return True
            if kin[2] >= 0:
                waiting.add(kin)
        return False

    def _is_possible(self, move: Move, all_added: bool) -> bool:
        if move.action == REMOVE:
            left = self._adds[move.model]
            return not left or (not all_added and len(self._replicas[move.model]) > 1)
        size, memory = self._fleet.sizes.get(move.model, 0), self._fleet.memory.get(move.worker, 0)
        return not size or not memory or self._used[move.worker] + size <= memory

    def _perform(self, move: Move) -> None:
        size, names = self._fleet.sizes.get(move.model, 0), self._replicas.setdefault(move.model, set())
        if move.action == ADD:
            names.add(move.worker)
            self._adds[move.model] -= 1
            self._used[move.worker] += size
        else:
            names.discard(move.worker)
            self._used[move.worker] -= size
        self.done.append(move)
