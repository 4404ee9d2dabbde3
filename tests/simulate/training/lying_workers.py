"""A workload that deceives the learned policy: workers with false load reports.

No episode of training has such a worker, and its reports are within the trained ranges: they are those of a fast, idle
worker. Prequal compares requests in flight among workers of similar latency, so it is affected less.
"""

from __future__ import annotations

from collections.abc import Callable

from isochrone.clock import SECOND
from isochrone.gateway.replicas import LoadReport
from isochrone.simulate.engine import START_NS
from isochrone.simulate.fleet import Fleet, PolicyFactory
from isochrone.simulate.load.costs import Lognormal
from isochrone.simulate.load.workloads import Poisson
from isochrone.simulate.scenario.records import FifoWorkers, Gateways, Scenario

#: Of eight workers, these two are slow and report the opposite.
LIARS = (6, 7)
_HONEST_MS, _SLOWNESS = 4.0, 2.0
#: Times that a lying worker reports, relative to those of an honest, fast one.
_REPORTED = 0.6


def scenario(seconds: float) -> Scenario:
    """Eight workers, two of them at half the speed, at six tenths of what they can do."""
    workers = [
        FifoWorkers(batch_ms={1: _HONEST_MS}, count=8 - len(LIARS)),
        FifoWorkers(batch_ms={1: _HONEST_MS}, count=len(LIARS), speed=1 / _SLOWNESS),
    ]
    return Scenario(
        name="liars",
        workload=Poisson(rate=1050.0),
        workers=list(workers),
        seconds=seconds,
        warmup_seconds=1.0,
        cost=Lognormal(cv=0.3),
        gateways=Gateways(outliers=False),
    )


def lying_fleet(make_policy: PolicyFactory, seconds: float, seed: int, lies_from: float = 0.0) -> Fleet:
    """The scenario's fleet, whose liars begin to lie after so many seconds."""
    made = Fleet(scenario(seconds), make_policy, seed)
    for number in LIARS:
        worker = made.workers[number]
        worker.report = _lying(worker.report, START_NS + int(lies_from * SECOND))  # type: ignore[assignment, method-assign]
    return made


def _lying(honest: Callable[[int], LoadReport], begins: int) -> Callable[[int], LoadReport]:
    def report(now: int) -> LoadReport:
        true = honest(now)
        if now < begins:
            return true
        factor = _REPORTED / _SLOWNESS
        return true._replace(wait_ns=int(true.wait_ns * factor), run_ns=int(true.run_ns * factor))

    return report
