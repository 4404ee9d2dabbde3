"""The parts of a scenario: one frozen record each. ``file`` reads them; every number has its unit here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from isochrone.settings.ranges import Amount, Count, Positive, PositiveAmount, Range
from isochrone.settings.sections import Section
from isochrone.simulate.load.costs import Constant, Cost
from isochrone.simulate.load.workloads import Workload
from isochrone.simulate.processes.antagonists import Antagonists
from isochrone.simulate.processes.failures import Failure
from isochrone.simulate.processes.network import Network

#: Rows to milliseconds, as in {1: 2.0, 8: 6.5}; interpolated linearly.
Curve = Annotated[dict[Positive, PositiveAmount], Field(min_length=1)]


class FifoWorkers(Section):
    """Fast model: first come, first served, in batches. See ``fifo_worker``."""

    model: Literal["fifo"] = "fifo"
    #: Duration of a batch of mean requests at speed 1; the largest key is the largest batch.
    batch_ms: Curve
    count: Positive = 1
    instances: Positive = 1
    speed: PositiveAmount = 1.0


class ExactWorkers(Section):
    """The real batch queue. See ``exact_worker``."""

    model: Literal["exact"] = "exact"
    batch_ms: Curve
    count: Positive = 1
    instances: Positive = 1
    speed: PositiveAmount = 1.0
    #: Time that the oldest request may wait for a larger batch.
    delay_ms: Amount = 0.0
    #: Priority classes, 1 the highest.
    levels: Positive = 1
    #: Runs take the curve's time times 1 ± this, at random.
    scatter: Annotated[float, Range(0, below=1)] = 0.02


class SharingWorkers(Section):
    """Fast model: processor sharing. See ``sharing_worker``."""

    model: Literal["sharing"] = "sharing"
    #: Core time of a mean request at speed 1.
    cpu_ms: PositiveAmount
    #: Cores that the worker is allotted; with antagonists, it may get more.
    cores: PositiveAmount = 1.0
    count: Positive = 1
    speed: PositiveAmount = 1.0


Workers = Annotated[FifoWorkers | ExactWorkers | SharingWorkers, Field(discriminator="model")]


class Requests(Section):
    """One kind of request."""

    name: str = "all"
    #: Share of all requests, relative to the other kinds.
    share: PositiveAmount = 1.0
    #: From the client's sending; None: the client waits without end.
    deadline_ms: PositiveAmount | None = None
    rows: Positive = 1
    #: 1 is the highest; 0: the model's default.
    priority: Count = 0
    #: Number of agents that send them, each with a key for affinity; 0: no keys.
    agents: Count = 0


class Gateways(Section):
    """Equal gateways; each request arrives at a random one."""

    count: Positive = 1
    #: Reject requests that no worker can answer in time.
    admission: bool = False
    #: Retry failed requests within the budget.
    retries: bool = True
    #: Eject workers that fail, or are slow compared with the others.
    outliers: bool = True
    #: Open circuit breakers of workers that fail.
    breakers: bool = True
    #: Send a second copy of slow requests.
    hedging: bool = False
    #: Time until active health checks detect that a worker stopped or recovered.
    detection_ms: Amount = 300.0


class PolicyChoice(Section):
    """A policy and its options."""

    name: str
    options: dict[str, Any] = Field(default={})
    #: Its name in tables; "": policy and options.
    label: str = ""

    @property
    def title(self) -> str:
        if self.label or not self.options:
            return self.label or self.name
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.options.items())})"


def _policy(given: Any) -> Any:
    """A policy without options may be given by its name alone."""
    return {"name": given} if isinstance(given, str) else given


class Scenario(Section):
    """One simulation."""

    workload: Workload
    workers: Annotated[list[Workers], Field(min_length=1)]
    name: str = ""
    #: The purpose of the scenario, for the reader.
    about: str = ""
    #: Simulated time; a workload of steps has its own.
    seconds: PositiveAmount = 10.0
    #: Part of it at the start that is not counted.
    warmup_seconds: Amount = 0.0
    seed: Count = 1
    #: Number of runs, with consecutive seeds from ``seed``. Results are shown for all runs together and one by one.
    seeds: Positive = 1
    policies: list[Annotated[PolicyChoice, BeforeValidator(_policy)]] = Field(
        default=[PolicyChoice(name="round_robin"), PolicyChoice(name="prequal")], min_length=1
    )
    cost: Cost = Constant()
    requests: list[Requests] = Field(default=[Requests()], min_length=1)
    network: Network = Network()
    gateways: Gateways = Gateways()
    antagonists: Antagonists | None = None
    failures: list[Failure] = Field(default=[])

    @property
    def worker_count(self) -> int:
        return sum(group.count for group in self.workers)


def capacity_per_second(scenario: Scenario) -> float:
    """The workers' highest throughput in mean requests per second, with full batches and their allotted cores."""
    total = 0.0
    for group in scenario.workers:
        if isinstance(group, SharingWorkers):
            total += group.count * group.cores * group.speed * 1000 / group.cpu_ms
        else:
            best = max(rows / milliseconds for rows, milliseconds in group.batch_ms.items())
            total += group.count * group.instances * group.speed * best * 1000
    return total
