"""Plans performed step by step on workers that load, fail and vanish: memory, and the last replica of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from placement_cases import model_needs, worker_offers

from isochrone.control.placement.applying.execution import Execution, Holding, Needed, lost_replicas, next_replicas
from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import ADD, COLD, FAILED, REMOVE, RESTORE, RETIRED, Move
from isochrone.control.placement.planning.planner import plan_placement
from isochrone.control.placement.workers import LOST, SERVING, Replicas, WorkerOffer


def holding_of(
    memory: int = 0,
    held: Mapping[str, int] | None = None,
    ready: frozenset[str] = frozenset(),
    failed: frozenset[str] = frozenset(),
    known: frozenset[str] = frozenset(),
    serves: bool = True,
) -> Holding:
    """``held``: by model, bytes of its only version."""
    versions = {model: {"1": size} for model, size in (held or {}).items()}
    return Holding(memory, versions, ready, failed, known, serves=serves)


def needed_of(size: int = 0, least: int = 1, is_changing: bool = False) -> Needed:
    return Needed({"1": size}, least, is_changing)


ONE = {"m": needed_of(4)}


def load(model: str, worker: str) -> Move:
    return Move(ADD, model, worker, RESTORE)


def unload(model: str, worker: str, reason: str = COLD) -> Move:
    return Move(REMOVE, model, worker, reason)


def on(*workers: str, model: str = "m") -> dict[str, frozenset[str]]:
    return {model: frozenset(workers)}


def there() -> Holding:
    """A worker with the model, known to all gateways."""
    return holding_of(8, {"m": 4}, frozenset("m"), known=frozenset("m"))


def test_a_load_begins_when_memory_is_free() -> None:
    workers = {"a": holding_of(8, {"old": 5})}
    needed = {"m": needed_of(4), "old": needed_of(5)}
    waits = next_replicas({}, [load("m", "a")], workers, needed)
    assert (waits.replicas, waits.begun, waits.is_done) == ({}, (), False)
    assert waits.reserved == {"a": 4 + 5}, "for the load, and for what is not recorded there"
    begins = next_replicas({}, [load("m", "a")], {"a": holding_of(8, {"old": 4})}, needed)
    assert (begins.replicas, begins.begun, begins.is_done) == (on("a"), (load("m", "a"),), False)
    assert begins.reserved == {"a": 4}
    assert next_replicas(on("a"), [load("m", "a")], {"a": holding_of(8, {"m": 4}, frozenset("m"))}, needed).is_done


def test_unknown_memory_is_not_checked_and_a_silent_worker_waits() -> None:
    assert next_replicas({}, [load("m", "a")], {"a": holding_of(0, {"x": 99})}, ONE).replicas == on("a")
    assert next_replicas({}, [load("m", "a")], {}, ONE).replicas == {}


def test_a_small_load_does_not_overtake_a_large_one() -> None:
    needed = {"large": needed_of(6), "small": needed_of(1)}
    workers = {"a": holding_of(8, {"old": 4})}
    assert not next_replicas({}, [load("large", "a"), load("small", "a")], workers, needed).begun


def test_an_unload_waits_for_its_replacement() -> None:
    moves = [load("m", "b"), unload("m", "a")]
    ready, loading = there(), holding_of(8, {"m": 4})
    assert next_replicas(on("a"), moves, {"a": ready, "b": holding_of(8)}, ONE).replicas == on("a", "b")
    assert next_replicas(on("a", "b"), moves, {"a": ready, "b": loading}, ONE).replicas == on("a", "b")
    unknown = replace(ready, known=frozenset())
    assert next_replicas(on("a", "b"), moves, {"a": ready, "b": unknown}, ONE).replicas == on("a", "b")
    assert next_replicas(on("a", "b"), moves, {"a": ready, "b": ready}, ONE).replicas == on("b")


def test_the_last_ready_replica_stays_unless_the_model_is_retired() -> None:
    ready = there()
    drained = replace(ready, serves=False)
    for workers in ({"a": ready, "b": holding_of(8, {"m": 4})}, {"a": ready, "b": drained}):
        assert next_replicas(on("a", "b"), [unload("m", "a")], workers, ONE).replicas == on("a", "b")
    retired = next_replicas(on("a"), [unload("m", "a", RETIRED)], {"a": ready}, {})
    assert (retired.replicas, retired.reserved) == ({}, {"a": 4})


def test_a_load_takes_the_versions_that_are_not_there() -> None:
    both = {"m": Needed({"2": 4, "3": 4})}
    old = {"a": Holding(12, {"m": {"1": 4, "2": 4}}, frozenset("m"))}
    assert next_replicas({}, [load("m", "a")], old, both).replicas == on("a")
    small = {"a": replace(old["a"], memory=11)}
    waits = next_replicas({}, [load("m", "a")], small, both)
    assert (waits.replicas, waits.reserved) == ({}, {"a": 4 + 8}), "version 1 has not left, and 3 takes as much"


def test_nothing_leaves_a_worker_that_has_not_reported() -> None:
    for needed in (ONE, {}):
        step = next_replicas(on("a", "b"), [unload("m", "a")], {"b": there()}, needed)
        assert (step.replicas, step.is_done) == (on("a", "b"), False)


def test_a_model_in_a_rollout_is_unloaded_nowhere() -> None:
    ready = there()
    changing = {"m": needed_of(4, is_changing=True)}
    step = next_replicas(on("a", "b"), [unload("m", "a")], {"a": ready, "b": ready}, changing)
    assert (step.replicas, step.is_done) == (on("a", "b"), False)


def test_a_failed_replica_goes_when_others_are_ready_or_wait_for_its_memory() -> None:
    failed, ready = holding_of(8, {"m": 4}, failed=frozenset("m")), there()
    gone = Move(REMOVE, "m", "a", FAILED)
    assert next_replicas(on("a"), [], {"a": failed}, ONE).replicas == on("a"), "it is tried again"
    assert next_replicas(on("a", "b"), [], {"a": failed, "b": ready}, ONE).begun == (gone,)
    two = {"m": needed_of(4, least=2)}
    assert next_replicas(on("a", "b"), [], {"a": failed, "b": ready}, two).replicas == on("a", "b")
    both = {**ONE, "n": needed_of(6)}
    assert next_replicas(on("a"), [load("n", "a")], {"a": failed}, both).begun == (gone,)


def test_a_ready_replica_that_is_not_recorded_stays_until_another_one_is_known() -> None:
    needed = {"m": replace(needed_of(4), pools=frozenset("p"))}
    known = replace(there(), pool="p")
    ready = replace(known, known=frozenset())
    loading = replace(holding_of(8, {"m": 4}), pool="p")
    assert next_replicas(on("b"), [], {"a": ready, "b": loading}, needed).replicas == on("a", "b")
    waits = next_replicas(on("b"), [], {"a": ready, "b": ready}, needed)
    assert (waits.replicas, waits.undecided) == (on("b"), frozenset("a"))
    assert next_replicas(on("b"), [], {"a": ready, "b": known}, needed) == Execution(on("b"), (), {"a": 4})
    # Not where another pool should have it, nor without the memory for what a rollout brings.
    assert not next_replicas({}, [], {"a": replace(ready, pool="q")}, needed).replicas
    more = {"m": replace(needed["m"], versions={"1": 4, "2": 5})}
    assert next_replicas({}, [], {"a": ready}, more).undecided == frozenset("a")


def test_a_stage_stays_while_an_ensemble_that_runs_it_is_there() -> None:
    needed, stages = {"e": needed_of(2), "s": needed_of(2)}, {"e": {"s"}}
    both = {"e": frozenset("ab"), "s": frozenset("ab")}
    ready = holding_of(8, {"e": 2, "s": 2}, frozenset("es"), known=frozenset("es"))
    loading = holding_of(8, {"e": 2, "s": 2}, frozenset("s"), known=frozenset("s"))
    moves = [unload("s", "a"), unload("e", "a")]
    assert next_replicas(both, moves, {"a": ready, "b": loading}, needed, stages).replicas == both
    first = next_replicas(both, moves, {"a": ready, "b": ready}, needed, stages)
    assert (first.replicas, first.is_done) == ({"e": frozenset("b"), "s": frozenset("ab")}, False)
    waits = next_replicas(first.replicas, moves, {"a": ready, "b": ready}, needed, stages)
    assert waits.replicas == first.replicas, "the ensemble is not unloaded yet"
    without = holding_of(8, {"s": 2}, frozenset("s"), known=frozenset("s"))
    last = next_replicas(first.replicas, moves, {"a": without, "b": ready}, needed, stages)
    assert last.replicas == {"e": frozenset("b"), "s": frozenset("b")}
    # Nor does one whose other stages cannot be loaded lose this one, or a stage that failed before its ensemble did.
    failed = holding_of(8, {"e": 2, "s": 2}, failed=frozenset("s"))
    assert next_replicas(both, [], {"a": failed, "b": ready}, needed, stages).replicas == both


def test_replicas_are_lost_with_their_workers() -> None:
    assert lost_replicas({"m": frozenset("ab"), "n": frozenset("b")}, ["a"]) == {"m": frozenset("a")}


# Any fleet, any course of events.


@dataclass
class Worker:
    """A worker that does what the record says, late: loads and unloads end when the test lets them."""

    offer: WorkerOffer
    #: By model: bytes, and whether it is ready.
    held: dict[str, int] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class Fleet:
    """The leader's part and the workers'."""

    def __init__(self, needs: list[ModelNeeds], offers: list[WorkerOffer]) -> None:
        self.needs = {each.name: each for each in needs}
        self.workers = {each.name: Worker(each) for each in offers if each.state != LOST}
        self.replicas: Replicas = {}
        self.moves: tuple[Move, ...] = ()
        #: Workers that have not reported to this leader.
        self.silent: set[str] = set()
        self.stages = {each.name: each.together for each in needs}

    @property
    def needed(self) -> Mapping[str, Needed]:
        return {name: needed_of(each.memory + each.incoming, each.min_replicas) for name, each in self.needs.items()}

    def holding(self, worker: Worker) -> Holding:
        recorded = {
            model: self.needed[model].versions["1"]
            for model, names in self.replicas.items()
            if worker.offer.name in names and model in self.needs
        }
        held = {**recorded, **worker.held}
        serves = worker.offer.state == SERVING
        ready = frozenset(worker.ready)
        return holding_of(worker.offer.memory, held, ready, frozenset(worker.failed), ready, serves)

    def plan(self) -> None:
        offers = [replace(each.offer, rejected=each.offer.rejected | each.failed) for each in self.workers.values()]
        standing = {
            model: frozenset(name for name in names if name in self.workers and model not in self.workers[name].failed)
            for model, names in self.replicas.items()
        }
        self.moves = plan_placement(self.needs.values(), offers, standing).moves

    def step(self) -> bool:
        """One step of the leader; whether anything is left to do."""
        served = self.served()
        present = {model: frozenset(names & self.workers.keys()) for model, names in self.replicas.items()}
        holdings = {name: self.holding(worker) for name, worker in self.workers.items() if name not in self.silent}
        execution = next_replicas(present, self.moves, holdings, self.needed, self.stages)
        for ensemble, stages in self.stages.items():
            for name in self.workers:
                if ensemble in self.workers[name].ready:
                    lost = [
                        each for each in stages if self.has(each, name) and name not in execution.replicas.get(each, ())
                    ]
                    assert not lost, f"stages of {ensemble} leave from under it"
        self.replicas = execution.replicas
        for model in served:
            assert any(self.serves(model, name) for name in self.replicas.get(model, ())), f"{model} lost its last one"
        return not execution.is_done

    def serves(self, model: str, name: str) -> bool:
        return model in self.workers[name].ready and self.workers[name].offer.state == SERVING

    def has(self, model: str, name: str) -> bool:
        return name in self.replicas.get(model, ())

    def served(self) -> set[str]:
        return {
            model
            for model, names in self.replicas.items()
            if model in self.needs and any(name in self.workers and self.serves(model, name) for name in names)
        }

    def begin(self) -> None:
        """Workers begin what the record says; what they hold counts from here on."""
        for name, worker in self.workers.items():
            for model, names in self.replicas.items():
                if name in names and model not in worker.held:
                    worker.held[model] = self.needed[model].versions["1"]
        self.check()

    def end(self, name: str, failing: set[str]) -> None:
        """Loads and unloads of one worker end."""
        worker = self.workers[name]
        for model in list(worker.held):
            if name not in self.replicas.get(model, ()):
                del worker.held[model]
                worker.ready.discard(model)
                worker.failed.discard(model)
            elif model not in worker.ready:
                if model in failing:
                    worker.failed.add(model)
                else:
                    worker.ready.add(model)
                    worker.failed.discard(model)
        worker.failed &= set(worker.held)
        self.check()

    def check(self) -> None:
        for worker in self.workers.values():
            if worker.offer.memory:
                assert sum(worker.held.values()) <= worker.offer.memory, "memory is over-committed"


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_over_any_course_memory_suffices_and_no_model_loses_its_last_replica(data: st.DataObject) -> None:
    fleet = Fleet(data.draw(model_needs()), data.draw(worker_offers(least=2, states=(SERVING,))))
    fleet.plan()
    events = st.sampled_from(("end", "end", "end", "fail", "lose", "drain", "retire", "plan", "lead", "report"))
    for event in data.draw(st.lists(events, max_size=25)):
        fleet.step()
        fleet.begin()
        name = data.draw(st.sampled_from(sorted(fleet.workers)))
        if event in ("end", "fail"):
            fleet.end(
                name, {data.draw(st.sampled_from(sorted(fleet.needs)))} if event == "fail" and fleet.needs else set()
            )
        elif event == "lose" and len(fleet.workers) > 1:
            del fleet.workers[name]
            fleet.replicas = {model: names - {name} for model, names in fleet.replicas.items()}
            fleet.plan()
        elif event == "drain":
            worker = fleet.workers[name]
            worker.offer = replace(worker.offer, state="draining")
            fleet.plan()
        elif event == "retire" and len(fleet.needs) > 1:
            del fleet.needs[data.draw(st.sampled_from(sorted(fleet.needs)))]
            fleet.plan()
        elif event == "lead":
            fleet.silent = set(fleet.workers)
            fleet.plan()
        elif event == "report":
            fleet.silent.discard(name)
        elif event == "plan":
            fleet.plan()


@given(st.randoms(use_true_random=True))
@settings(max_examples=200, deadline=None)
def test_any_list_of_moves_keeps_memory_and_the_last_replica(chance: Random) -> None:
    names, models = ("w0", "w1", "w2"), ("m0", "m1", "m2")
    needs = [ModelNeeds(name, memory=chance.randint(1, 4), together=("m0",) if name == "m2" else ()) for name in models]
    fleet = Fleet(needs, [WorkerOffer(name, memory=chance.randint(4, 9)) for name in names])

    def move() -> Move:
        return Move(chance.choice((ADD, REMOVE)), chance.choice(models), chance.choice(names), COLD)

    for _ in range(25):
        fleet.step()
        fleet.begin()
        name = chance.choice(names)
        match chance.choice(("end", "end", "lead", "report", "moves", "moves")):
            case "end":
                fleet.end(name, set())
            case "lead":
                fleet.silent = set(names)
            case "report":
                fleet.silent.discard(name)
            case _:
                fleet.moves = tuple(move() for _ in range(chance.randint(0, 6)))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_plan_is_reached(data: st.DataObject) -> None:
    fleet = Fleet(data.draw(model_needs()), data.draw(worker_offers(least=2, states=(SERVING,))))
    fleet.plan()
    reached: Replicas = plan_placement(
        fleet.needs.values(), [each.offer for each in fleet.workers.values()], {}
    ).replicas
    for _ in range(40):
        busy = fleet.step()
        fleet.begin()
        for name in fleet.workers:
            fleet.end(name, set())
        if not busy:
            break
    assert not busy
    assert fleet.replicas == reached
    # And another one, from there: a worker drains.
    name = data.draw(st.sampled_from(sorted(fleet.workers)))
    fleet.workers[name].offer = replace(fleet.workers[name].offer, state="draining")
    offers = [each.offer for each in fleet.workers.values()]
    reached = plan_placement(fleet.needs.values(), offers, fleet.replicas).replicas
    fleet.plan()
    for _ in range(80):
        busy = fleet.step()
        fleet.begin()
        for each in fleet.workers:
            fleet.end(each, set())
        if not busy:
            break
    assert not busy
    assert fleet.replicas == reached
