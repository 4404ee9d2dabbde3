"""One run of a situation: its workers with their models, its gateways with their real rules, and Poisson arrivals.

Every model has its own streams of random numbers. Two situations therefore get the same requests wherever they agree,
and twice the load is the same requests in half the time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.control.what_if.answers import ModelOutcome, WorkerOutcome
from isochrone.control.what_if.situation import Situation, SituationModel, SituationWorker
from isochrone.errors import InvalidArgument
from isochrone.gateway.rules.file import examine_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.simulate.draws import endless, plain_random, stream
from isochrone.simulate.engine import START_NS, Engine
from isochrone.simulate.processes.gateways import Gateway, RequestKind
from isochrone.simulate.processes.models_worker import ModelPart, ModelsWorker
from isochrone.simulate.processes.upkeep import Upkeep
from isochrone.simulate.results.tally import Tally
from isochrone.simulate.what_if.curves import batch_times, points_for
from isochrone.worker.scheduling.batch_queue import QueueRules

if TYPE_CHECKING:
    from isochrone.simulate.draws import Floats

#: The share of a run at its start that is not counted: queues fill and policies learn.
_WARMUP = 0.2
#: Runs take the measured time times 1 ± this.
_SCATTER = 0.02
#: Arrivals between two looks at the clock.
_LOOK_EVERY = 256


class OutOfTime(Exception):
    """The run took longer than it may."""


class Simulation:
    """One run. ``is_over``: whether it has taken too long; it is asked a few times a second."""

    def __init__(self, situation: Situation, seed: int, seconds: float, is_over: Callable[[], bool]) -> None:
        self._situation = situation
        self._seed = seed
        self._seconds = seconds
        self._is_over = is_over
        self._engine = Engine()
        self._models = {model.name: model for model in situation.models}
        self._scatter = {name: _scatter(seed, name) for name in self._models}
        self._times: dict[tuple[str, str], list[float]] = {}
        self.workers = {
            worker.name: self._worker(number, worker)
            for number, worker in enumerate(each for each in situation.workers if each.models)
        }
        self._served = {model for worker in self.workers.values() for model in worker.models}
        rules = rules_of(situation)
        workers = list(self.workers.values())
        self._gateways = [
            Gateway(self._engine, workers, None, 0, rules, plain_random(seed, f"gateway/{number}").getrandbits(63))
            for number in range(situation.gateways)
        ]
        allotted = [sum(self._models[model].instances for model in worker.models) for worker in workers]
        Upkeep(self._engine, workers, self._gateways, allotted).attach(is_watched=True)
        self.tallies = {name: Tally() for name in self._models}
        #: By worker and model: ns of compute, when counting begins and when arrivals end.
        self._used: list[dict[tuple[str, str], float]] = []
        self._answers: list[dict[str, int]] = []

    def _worker(self, number: int, given: SituationWorker) -> ModelsWorker:
        way = round(given.way_ms * MILLISECOND)
        parts = {
            name: self._part(self._models[name], number, given, lambda: way) for name in dict.fromkeys(given.models)
        }
        return ModelsWorker(number, self._engine, parts, given.tier, given.device)

    def _part(self, model: SituationModel, number: int, worker: SituationWorker, delay: Callable[[], int]) -> ModelPart:
        times = self._times.get((model.name, worker.device))
        if times is None:
            times = batch_times(points_for(model.curves, worker.device), model.max_rows)
            self._times[model.name, worker.device] = times
        rules = QueueRules(max_rows=model.max_rows, delay_ns=round(model.delay_ms * MILLISECOND))
        speed = worker.speeds.get(model.name, 1.0)
        return ModelPart(number, self._engine, delay, times, rules, self._scatter[model.name], model.instances, speed)

    def run(self) -> None:
        """Send all requests, and wait until each has an outcome. Raises ``OutOfTime``."""
        collecting = gc.isenabled()
        gc.disable()  # as in ``simulate.fleet``: nothing here forms cycles
        try:
            self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> None:
        engine, gateways = self._engine, self._gateways
        counted_from = START_NS + int(_WARMUP * self._seconds * SECOND)
        engine.at(counted_from, self._note)
        warmup = Tally()
        kinds, tallies = self._kinds(), list(self.tallies.values())
        for done, (now, number, pick) in enumerate(zip(*self._arrivals(), strict=True)):
            if not done % _LOOK_EVERY and self._is_over():
                raise OutOfTime
            kind = kinds[number]
            tally = tallies[number] if now >= counted_from else warmup
            if kind is None:
                tally.offered += 1
                tally.failed += 1
                continue
            engine.advance(now)
            gateways[pick].arrive(now, 1.0, kind, tally)
        engine.advance(START_NS + int(self._seconds * SECOND))
        self._note(engine.now, None)
        steps = 0
        while any(gateway.open for gateway in gateways) and engine.step():
            steps += 1
            if not steps % (8 * _LOOK_EVERY) and self._is_over():
                raise OutOfTime
        for gateway in gateways:
            gateway.close(engine.now)

    def _kinds(self) -> list[RequestKind | None]:
        """By model; None: no worker has it."""
        return [
            RequestKind(
                index,
                name,
                int(model.deadline_ms * MILLISECOND) if model.deadline_ms else NEVER,
                min(model.rows, model.max_rows),
                model=name,
            )
            if name in self._served
            else None
            for index, (name, model) in enumerate(self._models.items())
        ]

    def _arrivals(self) -> tuple[list[int], list[int], list[int]]:
        """Instants of all requests, sorted; the number of the model and of the gateway of each."""
        every: list[Any] = []
        numbers: list[Any] = []
        picks: list[Any] = []
        for number, model in enumerate(self._situation.models):
            instants = _poisson(stream(self._seed, f"arrivals/{model.name}"), model.rate, self._seconds)
            every.append(START_NS + np.rint(instants * SECOND).astype(np.int64))
            numbers.append(np.full(len(instants), number))
            gateways = stream(self._seed, f"gateways/{model.name}")
            picks.append(gateways.integers(0, self._situation.gateways, len(instants)))
        if not every:
            return [], [], []
        instants = np.concatenate(every)
        order = np.argsort(instants, kind="stable")
        return (
            instants[order].tolist(),
            np.concatenate(numbers)[order].tolist(),
            np.concatenate(picks)[order].tolist(),
        )

    def _note(self, now: int, _: object) -> None:
        parts = [(name, part) for name, worker in self.workers.items() for part in worker.parts.items()]
        self._used.append({(name, model): part.used for name, (model, part) in parts})
        self._answers.append({name: worker.answers for name, worker in self.workers.items()})

    # Results.

    @property
    def requests(self) -> int:
        return sum(tally.offered for tally in self.tallies.values())

    def _busy(self, worker: str, model: str) -> float:
        """The share of the counted time that a model's instances on a worker are busy."""
        used = self._used[-1][worker, model] - self._used[0][worker, model]
        # A batch counts when it starts: at the end of a run, more may be counted than was done.
        return min(1.0, used / (self._counted * self._models[model].instances * SECOND))

    @property
    def _counted(self) -> float:
        return self._seconds * (1 - _WARMUP)

    def of_model(self, name: str) -> ModelOutcome:
        figures = self.tallies[name].figures(self._counted)
        workers = [worker for worker, each in self.workers.items() if name in each.parts]
        busy = sum(self._busy(worker, name) for worker in workers) / len(workers) if workers else 0.0
        return ModelOutcome(
            round(figures["offered"] / self._counted, 3),
            figures["goodput_per_s"],
            figures["p50_ms"],
            figures["p99_ms"],
            figures["mean_ms"],
            figures["missed_share"],
            figures["rejected_share"],
            figures["failed_share"],
            round(busy, 4),
            len(workers),
        )

    def of_worker(self, name: str) -> WorkerOutcome:
        worker = self.workers[name]
        answers = self._answers[-1][name] - self._answers[0][name]
        return WorkerOutcome(
            round(answers / self._counted, 3),
            round(worker.latency.percentile(0.5) / MILLISECOND, 4),
            round(worker.latency.percentile(0.99) / MILLISECOND, 4),
            round(max(self._busy(name, model) for model in worker.parts), 4),
        )


def rules_of(situation: Situation) -> GatewayRules:
    """The rules of the gateways, without those that go by what a simulated request does not have: callers, bytes,
    other versions."""
    rules, problems = examine_rules(situation.rules)
    if problems:
        where = ".".join(map(str, problems[0].path))
        raise InvalidArgument(f"rules.{where}: expected {problems[0].expected}, given {problems[0].given}")
    base = ModelRules()

    def kept(given: ModelRules) -> ModelRules:
        return replace(
            given,
            memory_bytes=0,
            digest="",
            canary=base.canary,
            shadow=base.shadow,
            quota=base.quota,
            division=base.division,
            waiting_room=base.waiting_room,
        )

    models = {name: kept(each) for name, each in rules.models.items()}
    return replace(rules, defaults=kept(rules.defaults), models=models, quota=GatewayRules().quota)


def _scatter(seed: int, model: str) -> Any:
    random = stream(seed, f"scatter/{model}")
    return endless(lambda count: random.uniform(1 - _SCATTER, 1 + _SCATTER, count))


def _poisson(random: np.random.Generator, rate: float, seconds: float) -> Floats:
    """Instants in seconds. Another rate has the same draws on another scale."""
    if not rate:
        return np.zeros(0)
    wanted = ceil(rate * seconds * 1.1) + 64
    points = np.cumsum(random.exponential(1.0, wanted))
    while points[-1] < rate * seconds:
        points = np.concatenate([points, points[-1] + np.cumsum(random.exponential(1.0, wanted))])
    instants: Floats = points[: int(np.searchsorted(points, rate * seconds))] / rate
    return instants
