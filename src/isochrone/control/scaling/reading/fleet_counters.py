"""What gateways and workers have counted, at one instant. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class RequestCounts(NamedTuple):
    """Requests for one model in one gateway: totals since the gateway's start, and those that wait now."""

    #: All that arrived: answered, rejected or still under way. Requests that wait are among them.
    received: int = 0
    #: Rejected because no worker could take them, or none in time.
    refused: int = 0
    #: Rejected for reasons that more workers would not change, such as quotas.
    turned_away: int = 0
    #: In the waiting room now.
    waiting: int = 0


class BatchCounts(NamedTuple):
    """Batches of one size."""

    executions: int
    #: Of all of them: copying the inputs, inference, and copying the outputs.
    compute_ns: int


class ModelConfiguration(NamedTuple):
    """What the configuration of a model version says about its statistics."""

    instances: int = 1
    #: Of an ensemble: the models that its steps run, each as often as it runs.
    steps: tuple[str, ...] = ()
    #: Whether the times are those of batches. Those of a stream of responses last from its start to its end, however
    #: many others run beside it, and say nothing about the capacity.
    has_batch_times: bool = True
    #: Rows of the largest batch that requests may share; 1: each request is a batch of its own. How long the oldest may
    #: wait for others.
    max_rows: int = 1
    delay_ns: int = 0


class VersionStatistics(NamedTuple):
    """One model version on one worker; totals since it was loaded."""

    #: By rows.
    batches: Mapping[int, BatchCounts]
    #: Time in the queue of all requests that were answered, and their number.
    queue_ns: int = 0
    queue_count: int = 0
    successes: int = 0
    #: None: not known yet.
    configuration: ModelConfiguration | None = None
    #: With those that were rejected on arrival.
    failures: int = 0

    @property
    def executions(self) -> int:
        return sum(counts.executions for counts in self.batches.values())

    def has_begun_again(self, last: VersionStatistics) -> bool:
        """Whether the version was loaded again since: its counters are lower."""
        if self.successes < last.successes or self.queue_count < last.queue_count:
            return True
        for rows, (executions, _) in last.batches.items():
            counts = self.batches.get(rows)
            if counts is None or counts[0] < executions:
                return True
        return False


@dataclass(frozen=True, slots=True)
class GatewayCounts:
    """One gateway. The incarnation differs from one start to the next."""

    incarnation: str
    #: Those that have received a request.
    models: Mapping[str, RequestCounts]
    #: Of the monotonic clock, when the page arrived; None: the instant of the reading.
    instant: float | None = None
    #: By worker: seconds to it and back, where the gateway has measured them.
    round_trips: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker. The incarnation differs from one start to the next."""

    incarnation: str
    #: By model, by version.
    models: Mapping[str, Mapping[str, VersionStatistics]]
    #: Of the monotonic clock, when the page arrived; None: the instant of the reading.
    instant: float | None = None
    #: Requests and streams that are not answered yet, of all models; None: it does not say.
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class FleetReading:
    """All registered gateways, and the workers that were asked, by name; None: it did not say."""

    #: Of the monotonic clock, at the start of the reading.
    instant: float
    gateways: Mapping[str, GatewayCounts | None]
    workers: Mapping[str, WorkerStatistics | None]
    #: Gateways that have no metrics page.
    without_page: frozenset[str] = frozenset()

    def instant_of(self, page: GatewayCounts | WorkerStatistics) -> float:
        return self.instant if page.instant is None else page.instant
