"""Random fleets and workloads for the training and the evaluation of the learned policy.

Kinds for training and held-out kinds are disjoint. A held-out kind combines the same parts (worker models, antagonists,
failures) in another way than every episode. All draws come from the given ``Random``, so a seed determines the whole
training.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from isochrone.simulate.load.costs import Cost, Lognormal, Normal, Pareto
from isochrone.simulate.load.workloads import Diurnal, Gamma, Minutes, Poisson, Steps, Workload
from isochrone.simulate.processes.antagonists import Antagonists
from isochrone.simulate.processes.failures import Failure
from isochrone.simulate.processes.network import Network
from isochrone.simulate.scenario.records import (
    ExactWorkers,
    FifoWorkers,
    Gateways,
    Requests,
    Scenario,
    SharingWorkers,
    Workers,
    capacity_per_second,
)

#: Requests of one episode: enough for a meaningful p99, few enough for many episodes.
REQUESTS = 12_000
_NETWORK = Network(one_way_ms=0.1, jitter_ms=0.02)
_ALIKE = Lognormal(cv=0.1)
Kind = Callable[[Random, int], Scenario]


def _scenario(
    name: str,
    workers: list[Workers],
    workload: Callable[[float], Workload],
    load: float,
    requests: int,
    *,
    cost: Cost,
    gateways: int = 1,
    deadline_ms: float | None = None,
    failures: Callable[[float], list[Failure]] | None = None,
    antagonists: Antagonists | None = None,
    outliers: bool = True,
    large_rows: int = 0,
) -> Scenario:
    """A fleet at the given share of its capacity, for as long as ``requests`` take."""
    bare = Scenario(workload=Poisson(rate=1.0), workers=workers)
    kinds = [Requests(deadline_ms=deadline_ms)]
    if large_rows:
        kinds.append(Requests(name="large", share=0.3, deadline_ms=deadline_ms, rows=large_rows))
    rate = load * capacity_per_second(bare)
    seconds = requests / rate
    return Scenario(
        name=name,
        workload=workload(rate),
        workers=workers,
        seconds=seconds,
        warmup_seconds=seconds / 10,
        cost=cost,
        requests=kinds,
        network=_NETWORK,
        gateways=Gateways(count=gateways, outliers=outliers),
        failures=failures(seconds) if failures else [],
        antagonists=antagonists,
    )


def _poisson(rate: float) -> Workload:
    return Poisson(rate=rate)


def equal(random: Random, requests: int) -> Scenario:
    """Equal workers and Poisson load: the case in which no policy can gain much."""
    run_ms = random.choice((1.0, 2.0, 5.0, 20.0))
    workers: list[Workers] = [FifoWorkers(batch_ms={1: run_ms}, count=random.choice((3, 4, 6, 8, 12)))]
    load, cost = random.uniform(0.4, 0.85), Lognormal(cv=random.uniform(0.1, 1.0))
    return _scenario("equal workers", workers, _poisson, load, requests, cost=cost, gateways=random.choice((1, 1, 2)))


def one_slow(random: Random, requests: int) -> Scenario:
    """One worker loses most of its speed for a while."""
    run_ms, count = random.choice((2.0, 5.0, 10.0)), random.randint(4, 10)
    workers: list[Workers] = [FifoWorkers(batch_ms={1: run_ms}, count=count)]
    factor = random.uniform(0.2, 0.7)
    begun, whole = random.uniform(0.15, 0.3), random.uniform(0.3, 0.5)
    load, slack = random.uniform(0.35, 0.7), random.choice((4, 10, 40))

    def slow(seconds: float) -> list[Failure]:
        at, length = begun * seconds, whole * seconds
        return [Failure(kind="slow", at=at, workers=[random.randrange(count)], seconds=length, factor=factor)]

    return _scenario(
        "one slow", workers, _poisson, load, requests, cost=Lognormal(cv=0.3), deadline_ms=slack * run_ms, failures=slow
    )


def mixed(random: Random, requests: int) -> Scenario:
    """Two or three generations of hardware."""
    run_ms = random.choice((2.0, 4.0, 10.0))
    workers: list[Workers] = [
        FifoWorkers(batch_ms={1: run_ms}, count=random.randint(1, 5), speed=random.uniform(0.3, 1.5))
        for _ in range(random.choice((2, 3)))
    ]
    load, cost = random.uniform(0.4, 0.85), Lognormal(cv=random.uniform(0.2, 1.0))
    return _scenario("mixed hardware", workers, _poisson, load, requests, cost=cost, gateways=random.choice((1, 1, 3)))


def bursts(random: Random, requests: int) -> Scenario:
    """Bursts of requests; workers run batches."""
    run_ms = random.choice((3.0, 6.0))
    curve = {1: run_ms, 4: run_ms * 1.7, 8: run_ms * 2.7}
    workers: list[Workers] = [
        FifoWorkers(batch_ms=curve, count=random.randint(2, 5)),
        FifoWorkers(batch_ms=curve, count=random.randint(1, 3), speed=random.uniform(0.4, 0.9)),
    ]
    cv, load = random.uniform(1.5, 4.0), random.uniform(0.25, 0.6)
    deadline_ms = random.choice((None, 5 * run_ms, 10 * run_ms, 30 * run_ms))
    return _scenario(
        "bursts",
        workers,
        lambda rate: Gamma(rate=rate, cv=cv),
        load,
        requests,
        cost=Lognormal(cv=0.5),
        deadline_ms=deadline_ms,
    )


def neighbours(random: Random, requests: int) -> Scenario:
    """Machines shared with antagonists; fleets smaller and larger than Prequal's pool."""
    count = random.choice((8, 12, 24, 40))
    workers: list[Workers] = [SharingWorkers(cpu_ms=20, cores=2, count=count)]
    low = random.uniform(0.5, 0.8)
    antagonists = Antagonists(machine_cores=20, level=(low, 1.05), swing=0.08, change_seconds=random.uniform(0.3, 1.0))
    load = random.uniform(0.7, 1.25)
    return _scenario(
        "antagonists",
        workers,
        _poisson,
        load,
        requests,
        cost=Normal(cv=1.0),
        deadline_ms=2000,
        antagonists=antagonists,
        gateways=random.choice((1, 2)),
        outliers=False,
    )


def park(random: Random, requests: int) -> Scenario:
    """Park's load_balance: ten speeds, sizes of infinite variance."""
    workers: list[Workers] = [FifoWorkers(batch_ms={1: 30}, speed=0.15 + 0.1 * number) for number in range(10)]
    load = random.uniform(0.6, 0.91)
    return _scenario("park", workers, _poisson, load, requests, cost=Pareto(shape=1.5), outliers=False)


def large(random: Random, requests: int) -> Scenario:
    """A fleet so large that only probes inform about it, with two speeds."""
    workers: list[Workers] = [
        FifoWorkers(batch_ms={1: 5.0}, count=random.randint(20, 60)),
        FifoWorkers(batch_ms={1: 5.0}, count=random.randint(5, 30), speed=random.uniform(0.4, 0.9)),
    ]
    load = random.uniform(0.5, 0.85)
    return _scenario("large fleet", workers, _poisson, load, requests, cost=Lognormal(cv=random.uniform(0.3, 1.0)))


def sized(random: Random, requests: int) -> Scenario:
    """The real batch queue, requests of one row and of several, two speeds."""
    curve = {1: 2.0, 4: 3.2, 16: 8.0}
    workers: list[Workers] = [
        ExactWorkers(batch_ms=curve, count=random.randint(2, 4)),
        ExactWorkers(batch_ms=curve, count=random.randint(1, 3), speed=random.uniform(0.5, 0.9)),
    ]
    load, deadline_ms = random.uniform(0.15, 0.3), random.choice((15.0, 30.0, 100.0))
    rows = random.choice((4, 8, 12))
    return _scenario(
        "sizes, batch queue", workers, _poisson, load, requests, cost=_ALIKE, deadline_ms=deadline_ms, large_rows=rows
    )


def swell(random: Random, requests: int) -> Scenario:
    """Held out: the load of a day, on the real batch queue."""
    curve = {1: 1.7, 2: 2.1, 4: 2.8, 8: 4.4}
    workers: list[Workers] = [ExactWorkers(batch_ms=curve, count=3), ExactWorkers(batch_ms=curve, count=2, speed=0.6)]

    def day(rate: float) -> Workload:
        return Diurnal(rate=rate, swing=0.6, day_seconds=requests / rate)

    return _scenario(
        "a day, real batch queue",
        workers,
        day,
        random.uniform(0.4, 0.55),
        requests,
        cost=Lognormal(cv=0.1),
        deadline_ms=50,
    )


def minutes(random: Random, requests: int) -> Scenario:
    """Held out: per-minute counts with single minutes of several times the level."""
    curve = {1: 6.0, 4: 10.0, 8: 16.0}
    workers: list[Workers] = [FifoWorkers(batch_ms=curve, count=6), FifoWorkers(batch_ms=curve, count=2, speed=0.5)]

    def trace(rate: float) -> Workload:
        level = rate * 60
        counts = [int(level * (random.uniform(2.0, 2.6) if minute % 7 == 5 else 0.8)) for minute in range(30)]
        return Minutes(counts=counts, cv=2.0, minute_seconds=min(60.0, requests / rate / 30))

    return _scenario(
        "minutes of a trace", workers, trace, 0.35, requests, cost=Lognormal(cv=0.5), deadline_ms=200, gateways=3
    )


def ramp(random: Random, requests: int) -> Scenario:
    """Held out: the load steps of Prequal's testbed, 50 workers beside antagonists."""
    workers: list[Workers] = [SharingWorkers(cpu_ms=80, cores=2, count=50)]
    factors = [0.75, 0.926, 1.143, 1.411]

    def steps(rate: float) -> Workload:
        return Steps(rate=rate, factors=factors, step_seconds=requests / rate / len(factors) / 1.05)

    antagonists = Antagonists(machine_cores=20, level=(0.6, 1.05), swing=0.06, change_seconds=random.uniform(2, 5))
    return _scenario(
        "prequal's steps",
        workers,
        steps,
        1.0,
        requests,
        cost=Normal(cv=1.0),
        deadline_ms=5000,
        antagonists=antagonists,
        gateways=5,
        outliers=False,
    )


def trouble(random: Random, requests: int) -> Scenario:
    """Held out: one worker stops, one stalls, one fails every request, one runs at a tenth of its speed."""
    workers: list[Workers] = [FifoWorkers(batch_ms={1: 2.0}, count=8)]

    def failures(seconds: float) -> list[Failure]:
        each = seconds / 5
        return [
            Failure(kind="stop", at=0.8 * each, workers=[0], seconds=each / 2),
            Failure(kind="stall", at=1.8 * each, workers=[1], seconds=each / 2),
            Failure(kind="errors", at=2.8 * each, workers=[2], seconds=each / 2),
            Failure(kind="slow", at=3.8 * each, workers=[3], seconds=each / 2, factor=0.1),
        ]

    load = random.uniform(0.4, 0.6)
    return _scenario(
        "failures",
        workers,
        _poisson,
        load,
        requests,
        cost=Lognormal(cv=0.3),
        deadline_ms=250,
        gateways=2,
        failures=failures,
    )


TRAINING: tuple[Kind, ...] = (equal, one_slow, mixed, bursts, neighbours, park, large, sized)
HELD_OUT: tuple[Kind, ...] = (swell, minutes, ramp, trouble)
