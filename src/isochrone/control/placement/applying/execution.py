"""Performs a plan step by step: from the recorded replicas and what workers really hold to the next replicas. Pure.

A load begins when the worker has the memory for it, counted with everything that it holds, loads or has not unloaded
yet. An unload begins when the loads of the same model before it are ready and gateways know another replica; it never
takes the last ready replica of a model that is needed, nor a stage while an ensemble that runs it is there. Nothing
begins on a worker that has not reported. A move of a plan begins once: what follows it may undo it. So memory and
replicas depend neither on the plan being right, nor on the order in which workers finish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from isochrone.control.placement.plan import ADD, ADOPTED, FAILED, REMOVE, Move
from isochrone.control.placement.workers import Replicas

#: No model is an ensemble.
NO_STAGES: Mapping[str, Collection[str]] = {}


@dataclass(frozen=True, slots=True)
class Holding:
    """What one worker has now. A worker that has not reported has none, and nothing begins there: no load and no
    unload."""

    #: Bytes for models; 0: unknown, not checked.
    memory: int = 0
    #: By model, by version: bytes of all that it has, loads or unloads, and of those that it should have by the record.
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: Models that it can serve; that it failed to load.
    ready: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    #: Models among ``ready`` that it has had for so long that gateways know it.
    known: frozenset[str] = frozenset()
    #: By model: bytes among ``held`` of versions that it should not have, and has not unloaded yet.
    leaving: Mapping[str, int] = field(default_factory=dict)
    #: Whether it gets requests: a drained worker does not.
    serves: bool = True
    #: Whether it answered just now. What it said before justifies no unload: its process may have ended.
    answers: bool = True
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Needed:
    """What the execution needs to know of a model that the fleet serves or is about to serve."""

    #: By version: bytes that a new replica loads.
    versions: Mapping[str, int] = field(default_factory=dict)
    least: int = 1
    #: No replica is unloaded: gateways may still send requests to a version that a rollout replaces.
    is_changing: bool = False
    #: Pools that serve it, or that a rollout brings it to or takes it from.
    pools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Execution:
    """The next replicas, and what is left to do."""

    replicas: Replicas
    #: The moves that began with these replicas.
    begun: tuple[Move, ...] = ()
    #: By worker: bytes that stay free for loads that wait, and for models that are not unloaded yet.
    reserved: Mapping[str, int] = field(default_factory=dict)
    #: Whether every move has begun and every load is ready.
    is_done: bool = True
    #: Moves that have not begun, and loads that are not ready.
    left: int = 0
    #: Workers with ready models that are neither recorded there nor known to be served elsewhere: nothing is unloaded.
    undecided: frozenset[str] = frozenset()


def next_replicas(
    present: Replicas,
    moves: Iterable[Move],
    workers: Mapping[str, Holding],
    needed: Mapping[str, Needed],
    stages: Mapping[str, Collection[str]] = NO_STAGES,
    begun: Collection[Move] = (),
) -> Execution:
    """``present``: the recorded replicas, of workers that are not lost. ``stages``: by ensemble, the models that it
    runs in the committed version and in those of rollouts. ``begun``: the moves that began before."""
    return _Step(present, workers, needed, stages, begun).perform(moves)


class _Step:
    def __init__(
        self,
        present: Replicas,
        workers: Mapping[str, Holding],
        needed: Mapping[str, Needed],
        stages: Mapping[str, Collection[str]],
        begun: Collection[Move],
    ) -> None:
        self._replicas = {model: set(names) for model, names in present.items()}
        self._workers = workers
        self._needed = needed
        self._held: dict[str, dict[str, Mapping[str, int]]] = {
            name: dict(worker.held) for name, worker in workers.items()
        }
        self._stages = stages
        #: By stage: the ensembles that run it.
        self._ensembles: dict[str, list[str]] = {}
        for ensemble, names in stages.items():
            for stage in names:
                self._ensembles.setdefault(stage, []).append(ensemble)
        self._before = begun
        self._begun: list[Move] = []
        self._is_done = True
        self._left = 0
        self._undecided: set[str] = set()
        #: Models with a load that has not ended; by worker, the bytes of loads that wait for memory.
        self._loading: set[str] = set()
        self._waiting: dict[str, int] = {}

    def perform(self, moves: Iterable[Move]) -> Execution:
        self._adopt()
        for move in moves:
            if move.action == ADD:
                self._load(move)
            else:
                self._unload(move)
        self._give_up_failed()
        replicas = {model: frozenset(names) for model, names in sorted(self._replicas.items()) if names}
        return Execution(
            replicas, tuple(self._begun), self._reserved(), self._is_done, self._left, frozenset(self._undecided)
        )

    def _adopt(self) -> None:
        """Record ready replicas that are not recorded and that no recorded one stands in for. Their worker may have
        been away for longer than a lease, or have been silent when its pool became planned."""
        for name, worker in sorted(self._workers.items()):
            for model in sorted(worker.ready if worker.serves and worker.answers else ()):
                need, recorded = self._needed.get(model), self._replicas.get(model, set())
                if need is None or worker.pool not in need.pools or name in recorded:
                    continue
                if any(self._serves(model, each) for each in recorded):
                    continue
                is_coming = any(self._is_ready(model, each) and self._workers[each].serves for each in recorded)
                whole = [each for each in (model, *sorted(self._stages.get(model, ()))) if each in self._needed]
                missing = {each: self._missing(each, name) for each in whole}
                if is_coming or sum(map(_bytes, missing.values())) > self._free(name):
                    # It keeps what it has until gateways know another one.
                    self._undecided.add(name)
                    self._is_done = False
                    continue
                for each in whole:
                    if name not in self._replicas.get(each, ()):
                        self._record(each, name, missing[each])
                        self._begun.append(Move(ADD, each, name, ADOPTED))

    def _record(self, model: str, name: str, missing: Mapping[str, int]) -> None:
        self._replicas.setdefault(model, set()).add(name)
        self._held[name][model] = {**self._held[name].get(model, {}), **missing}

    def _load(self, move: Move) -> None:
        model, name = move.model, move.worker
        has = name in self._replicas.get(model, ())
        if has and self._is_ready(model, name):
            return
        if model not in self._needed or (not has and move in self._before):
            # Nothing needs it; or it has left again, by a later move, or because it could not be loaded.
            return
        self._loading.add(model)
        self._wait()
        if has:
            return
        missing = self._missing(model, name)
        if name not in self._workers or name in self._waiting or _bytes(missing) > self._free(name):
            # Later loads of this worker do not overtake it: a large model would wait for ever.
            self._waiting[name] = self._waiting.get(name, 0) + _bytes(missing)
            return
        self._record(model, name, missing)
        self._begun.append(move)

    def _unload(self, move: Move) -> None:
        model, name = move.model, move.worker
        if name not in self._replicas.get(model, ()) or move in self._before:
            return
        if name not in self._workers or self._is_run(model, name):
            # An unknown worker may have the last ready replica, or memory that is not free yet.
            self._wait()
            return
        need = self._needed.get(model)
        if need is not None and (need.is_changing or model in self._loading or not self._can_lose(model, name)):
            self._wait()
            return
        self._replicas[model].discard(name)
        self._begun.append(move)

    def _wait(self) -> None:
        """A move is left to do."""
        self._left += 1
        self._is_done = False

    def _give_up_failed(self) -> None:
        """Replicas that could not be loaded go once enough others are ready, or if they hold up another load."""
        for name, worker in sorted(self._workers.items()):
            for model in sorted(worker.failed):
                need = self._needed.get(model)
                if name not in self._replicas.get(model, ()) or need is None or need.is_changing:
                    continue
                if self._is_run(model, name):
                    continue
                others = [each for each in self._replicas[model] if each != name and self._serves(model, each)]
                if len(others) >= need.least or name in self._waiting:
                    self._replicas[model].discard(name)
                    self._begun.append(Move(REMOVE, model, name, FAILED))

    def _can_lose(self, model: str, name: str) -> bool:
        """Whether another worker serves the model, or this one certainly does not."""
        if any(each != name and self._serves(model, each) for each in self._replicas[model]):
            return True
        return self._workers[name].answers and not self._is_ready(model, name)

    def _is_run(self, model: str, name: str) -> bool:
        """Whether a worker should have, or has not unloaded yet, an ensemble that runs the model."""
        return any(
            name in self._replicas.get(ensemble, ()) or ensemble in self._held[name]
            for ensemble in self._ensembles.get(model, ())
        )

    def _is_ready(self, model: str, name: str) -> bool:
        return name in self._workers and model in self._workers[name].ready

    def _serves(self, model: str, name: str) -> bool:
        """Whether gateways send requests for the model there."""
        worker = self._workers.get(name)
        return worker is not None and model in worker.known and worker.serves and worker.answers

    def _missing(self, model: str, name: str) -> dict[str, int]:
        """By version: bytes that a load of the model takes."""
        there = self._held.get(name, {}).get(model, {})
        return {version: size for version, size in self._needed[model].versions.items() if version not in there}

    def _free(self, name: str) -> float:
        memory = self._workers[name].memory
        return memory - sum(map(_bytes, self._held[name].values())) if memory else float("inf")

    def _reserved(self) -> dict[str, int]:
        found = dict(self._waiting)
        for name, held in self._held.items():
            leaving = self._workers[name].leaving
            found[name] = found.get(name, 0) + sum(
                leaving.get(model, 0) if name in self._replicas.get(model, ()) else _bytes(each)
                for model, each in held.items()
            )
        return {name: size for name, size in sorted(found.items()) if size}


def _bytes(versions: Mapping[str, int]) -> int:
    return sum(versions.values())


def lost_replicas(present: Replicas, lost: Collection[str]) -> dict[str, frozenset[str]]:
    """The replicas that are gone with their workers."""
    found = {model: names & frozenset(lost) for model, names in present.items()}
    return {model: names for model, names in found.items() if names}
