"""What a scenario can say: one frozen record per part. ``file`` reads them; every number has its unit here."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from isochrone.simulate.load.costs import Constant, Cost
from isochrone.simulate.load.workloads import Workload
from isochrone.simulate.processes.antagonists import Antagonists
from isochrone.simulate.processes.failures import Failure
from isochrone.simulate.processes.network import Network

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
#: Rows to milliseconds, as in {1: 2.0, 8: 6.5}; straight lines between.
Curve = Annotated[dict[Count, Positive], msgspec.Meta(min_length=1)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every part: unknown keys are errors."""


class FifoWorkers(Part, frozen=True, tag_field="model", tag="fifo"):
    """Fast model: first come, first served, in batches. See ``fifo_worker``."""

    #: How long a batch of mean requests takes at speed 1; the largest key is the largest batch.
    batch_ms: Curve
    count: Count = 1
    instances: Count = 1
    speed: Positive = 1.0


class ExactWorkers(Part, frozen=True, tag_field="model", tag="exact"):
    """The real batch queue. See ``exact_worker``."""

    batch_ms: Curve
    count: Count = 1
    instances: Count = 1
    speed: Positive = 1.0
    #: How long the oldest request may wait for company.
    delay_ms: NotNegative = 0.0
    #: Priority classes, 1 the highest.
    levels: Count = 1
    #: Runs take the curve's time times 1 ± this, at random.
    scatter: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.02


class SharingWorkers(Part, frozen=True, tag_field="model", tag="sharing"):
    """Fast model: processor sharing. See ``sharing_worker``."""

    #: Core time of a mean request at speed 1.
    cpu_ms: Positive
    #: Cores the worker is allotted; with antagonists, it may get more.
    cores: Positive = 1.0
    count: Count = 1
    speed: Positive = 1.0


Workers = FifoWorkers | ExactWorkers | SharingWorkers


class Requests(Part, frozen=True):
    """One kind of request."""

    name: str = "all"
    #: Of all requests, relative to the other kinds.
    share: Positive = 1.0
    #: As the client counts it; none: it waits for ever.
    deadline_ms: Positive | None = None
    rows: Count = 1
    #: 1 is the highest; 0: the model's default.
    priority: Annotated[int, msgspec.Meta(ge=0)] = 0
    #: So many agents send them, each with a key that affinity goes by; 0: no keys.
    agents: Annotated[int, msgspec.Meta(ge=0)] = 0


class Gateways(Part, frozen=True):
    """All alike; a request comes to one of them at random."""

    count: Count = 1
    #: Refuse at once what no worker can answer in time.
    admission: bool = False
    #: Send again what failed, within the budget.
    retries: bool = True
    #: Leave workers out that fail or are slow beside the others.
    outliers: bool = True
    #: How long active checks take to see a worker stop or come back.
    detection_ms: NotNegative = 300.0


class PolicyChoice(Part, frozen=True):
    """A policy and its options."""

    name: str
    options: dict[str, Any] = {}
    #: What the tables call it; "": its name and options.
    label: str = ""

    @property
    def title(self) -> str:
        if self.label or not self.options:
            return self.label or self.name
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.options.items())})"


class Scenario(Part, frozen=True):
    """One what-if."""

    workload: Workload
    workers: Annotated[list[Workers], msgspec.Meta(min_length=1)]
    name: str = ""
    #: What it shows, for the reader.
    about: str = ""
    #: Simulated time; steps bring their own.
    seconds: Positive = 10.0
    #: At the start, not counted.
    warmup_seconds: NotNegative = 0.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1
    #: Runs with seeds from ``seed`` on; their outcomes are put together, and told one by one.
    seeds: Count = 1
    policies: Annotated[list[PolicyChoice | str], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["round_robin", "prequal"]
    )
    cost: Cost = Constant()
    requests: Annotated[list[Requests], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [Requests()]
    )
    network: Network = Network()
    gateways: Gateways = Gateways()
    antagonists: Antagonists | None = None
    failures: list[Failure] = []

    @property
    def choices(self) -> list[PolicyChoice]:
        return [PolicyChoice(given) if isinstance(given, str) else given for given in self.policies]

    @property
    def worker_count(self) -> int:
        return sum(group.count for group in self.workers)


def capacity_per_second(scenario: Scenario) -> float:
    """What the workers can do at best, in mean requests per second: full batches, and no more than the allocation."""
    total = 0.0
    for group in scenario.workers:
        if isinstance(group, SharingWorkers):
            total += group.count * group.cores * group.speed * 1000 / group.cpu_ms
        else:
            best = max(rows / milliseconds for rows, milliseconds in group.batch_ms.items())
            total += group.count * group.instances * group.speed * best * 1000
    return total
