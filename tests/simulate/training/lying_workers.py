"""A workload made to fool the learned policy: workers whose own word is not true.

No episode of training has a liar, and no range of figures gives one away: what it tells is what a quick, idle worker
would. Prequal goes by requests in flight among workers about as quick, so it is hurt less. It stands here so that the
switch-off can be shown at work; nothing else uses it.
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

#: Of eight workers these two are slow, and say the opposite.
LIARS = (6, 7)
_HONEST_MS, _SLOWNESS = 4.0, 2.0
#: What a liar tells, as a share of what an honest, quick worker would.
_TOLD = 0.6


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
        told = honest(now)
        if now < begins:
            return told
        factor = _TOLD / _SLOWNESS
        return told._replace(wait_ns=int(told.wait_ns * factor), run_ns=int(told.run_ns * factor))

    return report
