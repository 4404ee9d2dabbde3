"""One run: builds a scenario's fleet for one policy and one seed, and feeds it the requests.

Every random number comes from a stream named after its purpose, so that all policies meet the same requests,
antagonists and failures.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import repeat
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.gateway.placement.admission import AdmissionRules
from isochrone.gateway.policies.base import Policy
from isochrone.gateway.resilience.breaker import BreakerRules
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.resilience.outliers import OutlierRules
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.simulate.draws import endless, plain_random, stream
from isochrone.simulate.engine import START_NS, Engine
from isochrone.simulate.load.workloads import arrivals, duration
from isochrone.simulate.processes.exact_worker import ExactWorker
from isochrone.simulate.processes.failures import schedule
from isochrone.simulate.processes.fifo_worker import FifoWorker
from isochrone.simulate.processes.gateways import Gateway, RequestKind
from isochrone.simulate.processes.sharing_worker import SharingWorker
from isochrone.simulate.processes.upkeep import Upkeep
from isochrone.simulate.processes.worker import Worker
from isochrone.simulate.results.tally import Tally
from isochrone.simulate.scenario.records import ExactWorkers, FifoWorkers, Gateways, Scenario, SharingWorkers, Workers
from isochrone.worker.scheduling.batch_queue import LevelPolicy, QueueRules

if TYPE_CHECKING:
    from isochrone.simulate.draws import Floats

PolicyFactory = Callable[[Random], Policy]
#: Called during a run with the simulated seconds so far, and their total.
Progress = Callable[[float, float], None]


class Fleet:
    """The processes of one run."""

    def __init__(self, scenario: Scenario, make_policy: PolicyFactory, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self.engine = engine = Engine()
        self.seconds = duration(scenario.workload, scenario.seconds)
        network = scenario.network
        delay = network.delays(stream(seed, "network"))
        self.workers: list[Worker] = []
        for index, group in enumerate(scenario.workers):
            scatter = stream(seed, f"scatter/{index}")
            for _ in range(group.count):
                self.workers.append(_worker(group, len(self.workers), engine, delay, scatter))
        #: Cores or instances of each worker: ns of compute per ns.
        self._allotted = [
            group.cores if isinstance(group, SharingWorkers) else float(group.instances)
            for group in scenario.workers
            for _ in range(group.count)
        ]
        client_ns = int(2 * network.client_one_way_ms * MILLISECOND)
        rules = scenario.gateways
        self.gateways: list[Gateway] = []
        for number in range(rules.count):
            seed_of_gateway = plain_random(seed, f"gateway/{number}").getrandbits(63)
            self.gateways.append(
                Gateway(engine, self.workers, make_policy, client_ns, gateway_rules(rules), seed_of_gateway)
            )
        self.kinds = [
            RequestKind(
                index,
                given.name,
                NEVER if given.deadline_ms is None else int(given.deadline_ms * MILLISECOND),
                given.rows,
                given.priority,
                given.agents,
            )
            for index, given in enumerate(scenario.requests)
        ]
        #: Outcomes by phase and kind of request.
        self.tallies = [[Tally() for _ in self.kinds] for _ in scenario.workload.phases]
        #: Outcomes of requests that arrived during warm-up.
        self.warmup = Tally()
        self._attach()

    def _attach(self) -> None:
        """Schedule the periodic events, antagonists and failures."""
        scenario, engine = self.scenario, self.engine
        if scenario.antagonists is not None:
            sharing = [worker for worker in self.workers if isinstance(worker, SharingWorker)]
            scenario.antagonists.attach(engine, sharing, stream(self.seed, "antagonists"))
        schedule(scenario.failures, engine, self.workers, self.gateways, scenario.gateways.detection_ms)
        upkeep = Upkeep(engine, self.workers, self.gateways, self._allotted)
        upkeep.attach(is_watched=bool(scenario.failures) or scenario.gateways.outliers)

    def run(self, progress: Progress | None = None) -> None:
        """Send all requests, and wait until each has an outcome."""
        # Nothing here forms reference cycles, and searching 100,000 replicas for them took a quarter of a run.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._run(progress)
        finally:
            if collecting:
                gc.enable()

    def _run(self, progress: Progress | None) -> None:
        scenario, engine, gateways, kinds = self.scenario, self.engine, self.gateways, self.kinds
        advance = engine.advance
        counted_from = START_NS + int(scenario.warmup_seconds * SECOND)
        workload = stream(self.seed, "workload")
        works = scenario.cost.draw(stream(self.seed, "cost"))
        mix = stream(self.seed, "mix")
        shares = np.cumsum([given.share for given in scenario.requests])
        keyed = any(kind.keys for kind in kinds)
        next_report = 0.0
        for phase, instants in arrivals(scenario.workload, self.seconds, START_NS, workload):
            count = len(instants)
            picks = mix.integers(0, len(gateways), count).tolist()
            kind_of = np.searchsorted(shares, mix.random(count) * shares[-1], side="right").tolist()
            agents = mix.integers(0, 1 << 62, count).tolist() if keyed else repeat(0, count)
            tallies = self.tallies[phase]
            costs = works(count).tolist()
            for now, work, pick, number, agent in zip(instants, costs, picks, kind_of, agents, strict=True):
                advance(now)
                kind = kinds[number]
                key = kind.keys[agent % len(kind.keys)] if kind.keys else b""
                tally = tallies[number] if now >= counted_from else self.warmup
                gateways[pick].arrive(now, work, kind, tally, key)
            passed = (engine.now - START_NS) / SECOND
            if progress is not None and passed >= next_report:
                progress(passed, self.seconds)
                next_report = passed + self.seconds / 200
        # A request without a deadline that was sent to a permanently stalled worker would never end.
        patience = START_NS + int((10 * self.seconds + 60) * SECOND) if scenario.failures else NEVER
        while any(gateway.open for gateway in gateways) and engine.now < patience and engine.step():
            pass
        for gateway in gateways:
            gateway.close(engine.now)
        if progress is not None:
            progress(self.seconds, self.seconds)

    @property
    def counted_seconds(self) -> float:
        return self.seconds - self.scenario.warmup_seconds


def _worker(
    group: Workers, number: int, engine: Engine, delay: Callable[[], int], scatter: np.random.Generator
) -> Worker:
    if isinstance(group, FifoWorkers):
        return FifoWorker(number, engine, delay, batch_times(group.batch_ms), group.instances, group.speed)
    if isinstance(group, ExactWorkers):
        times = batch_times(group.batch_ms)
        rules = QueueRules(
            max_rows=len(times) - 1,
            delay_ns=int(group.delay_ms * MILLISECOND),
            levels=group.levels,
            default_level=group.levels,
            policies=(LevelPolicy(),) * group.levels,
        )
        draws = endless(lambda count: scatter.uniform(1 - group.scatter, 1 + group.scatter, count))
        return ExactWorker(number, engine, delay, times, rules, draws, group.instances, group.speed)
    return SharingWorker(number, engine, delay, group.cpu_ms * MILLISECOND, group.cores, group.speed)


def gateway_rules(given: Gateways) -> GatewayRules:
    """The rules of a gateway as a scenario asks for them."""
    model = ModelRules(
        admission=AdmissionRules(enabled=given.admission),
        retries=RetryRules(enabled=given.retries),
        hedge=HedgeRules(enabled=given.hedging),
        breaker=BreakerRules(enabled=given.breakers),
    )
    return GatewayRules(defaults=model, outliers=OutlierRules(enabled=given.outliers))


def batch_times(milliseconds: dict[int, float]) -> list[float]:
    """ns by number of rows, interpolated linearly between the given sizes; index 0 is unused."""
    sizes = sorted(milliseconds)
    rows = np.arange(sizes[-1] + 1)
    times: Floats = np.interp(rows, sizes, [milliseconds[size] * MILLISECOND for size in sizes])
    return times.tolist()  # type: ignore[no-any-return]
