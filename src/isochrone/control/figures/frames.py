"""What one second, or several together, showed of a fleet: models, workers, gateways. Pure data.

Counts are of the frame's own seconds, not totals since a start. Frames of the same length merge into a longer one:
counts add up, levels (requests in flight, expected waits) are those of the later frame.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

#: (model, version). Version "": requests that no version was found for.
ModelKey: TypeAlias = tuple[str, str]

#: The model under which those beyond a history's limit are summed. No model can have this name.
OTHER_MODELS: Final = "*"

#: The stages of ``ModelFigures.stages``. Measured by the gateways, of answered requests that are no streams: their own
#: share, and the rest, which is the worker and the network.
GATEWAY, WORKER = "gateway", "worker"
#: As the workers report them, one value per worker and second: how long a new request would wait for an instance, and
#: how long a run with it would take.
QUEUE, COMPUTE = "queue", "compute"
STAGES: Final = (GATEWAY, WORKER, QUEUE, COMPUTE)


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The time in one stage."""

    sum_ns: int = 0
    count: int = 0

    @property
    def mean_ns(self) -> float:
        return self.sum_ns / self.count if self.count else 0.0

    def plus(self, other: StageFigures) -> StageFigures:
        return StageFigures(self.sum_ns + other.sum_ns, self.count + other.count)


NO_TIME: Final = StageFigures()


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model version at all gateways together, or several versions merged (``version`` is then "")."""

    model: str
    version: str = ""
    #: Requests that ended, by outcome as callers saw it (the gateway's ``OUTCOMES``).
    answered: int = 0
    rejected: int = 0
    deadline_exceeded: int = 0
    failed: int = 0
    cancelled: int = 0
    #: Of ``rejected``: those that count against nobody's objective, such as requests over a quota. Gateways count them
    #: by model: they are those of version "".
    excused: int = 0
    #: Durations of answered requests, as their callers saw them; of streams until the first answer. By the number of
    #: the bucket (``BUCKET_BOUNDS_NS``; the last has no upper bound); buckets without a request are left out.
    durations: Mapping[int, int] = field(default_factory=dict)
    #: The sum of these durations.
    sum_ns: int = 0
    #: By stage, where known.
    stages: Mapping[str, StageFigures] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """All that ended."""
        return self.answered + self.rejected + self.deadline_exceeded + self.failed + self.cancelled

    @property
    def deadline_misses(self) -> int:
        """Requests that were not answered by their deadlines; those that could not be, and were rejected, included."""
        return self.deadline_exceeded

    @property
    def mean_ns(self) -> float:
        return self.sum_ns / self.answered if self.answered else 0.0

    def percentile_ns(self, share: float) -> float:
        """The duration that ``share`` of the answered requests do not exceed, interpolated within its bucket.

        0 without answers; of the last bucket its lower bound.
        """
        wanted = share * sum(self.durations.values())
        passed = 0
        for bucket in sorted(self.durations):
            count = self.durations[bucket]
            if passed + count >= wanted and count:
                low, high = bucket_bounds_ns(bucket)
                return float(low) if high is None else low + (high - low) * max(0.0, wanted - passed) / count
            passed += count
        return 0.0

    def late(self, limit_ns: int) -> int:
        """Answered requests that took longer than a limit. A limit between two bounds counts as the upper one: no
        answer in time is called late."""
        last = bisect_left(BUCKET_BOUNDS_NS, limit_ns)
        return sum(count for bucket, count in self.durations.items() if bucket > last)

    def merged(self, other: ModelFigures) -> ModelFigures:
        """Both together, under this one's name; the version is kept if it is the same."""
        return ModelFigures(
            self.model,
            self.version if self.version == other.version else "",
            self.answered + other.answered,
            self.rejected + other.rejected,
            self.deadline_exceeded + other.deadline_exceeded,
            self.failed + other.failed,
            self.cancelled + other.cancelled,
            self.excused + other.excused,
            _added(self.durations, other.durations),
            self.sum_ns + other.sum_ns,
            _added_stages(self.stages, other.stages),
        )


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker as the gateways know it, by its load reports and their own counts. Levels, not counts."""

    #: As registered; the address of a worker that is not.
    name: str
    address: str = ""
    tier: str = ""
    device: str = ""
    #: Requests on it, from everybody, as it reports; at least those of the gateways.
    in_flight: int = 0
    #: Of those, requests that wait for an instance.
    queued: int = 0
    #: Until a new request would start: the longest of its models, at the gateway with the newest report.
    wait_ns: int = 0
    #: Whether all gateways that answered consider it healthy; whether any has ejected it, or sees it drain.
    is_healthy: bool = True
    is_ejected: bool = False
    is_draining: bool = False
    #: It has loaded its models and gets no requests yet.
    is_standby: bool = False
    #: Seconds over the network and back, the shortest of all gateways; None: not measured.
    round_trip_s: float | None = None


@dataclass(frozen=True, slots=True)
class GatewayFigures:
    """One gateway: all of its processes together."""

    name: str
    #: Whether it answered this time. If not, its counts are 0 here, and come with its next answer.
    is_reachable: bool = True
    #: Requests taken; attempts sent again to another worker; second copies of slow requests.
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    #: Requests under way: a level.
    in_flight: int = 0
    #: The gateway's own share of answered requests that are no streams.
    own: StageFigures = NO_TIME

    def merged(self, later: GatewayFigures) -> GatewayFigures:
        """Counts of both; the rest is of the later one."""
        return replace(
            later,
            requests=self.requests + later.requests,
            retries=self.retries + later.retries,
            hedges=self.hedges + later.hedges,
            own=self.own.plus(later.own),
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """The figures of ``seconds`` seconds from ``at`` on."""

    #: Unix second.
    at: int
    #: By (model, version): those with anything to count.
    models: Mapping[ModelKey, ModelFigures] = field(default_factory=dict)
    #: By name. Longer frames than a second, and those of a large fleet that are no longer new, have none.
    workers: Mapping[str, WorkerFigures] = field(default_factory=dict)
    #: By name; of longer frames, none.
    gateways: Mapping[str, GatewayFigures] = field(default_factory=dict)
    seconds: int = 1
    #: Every model with anything to count is there by its name: no gateway left some out, none is in ``OTHER_MODELS``.
    is_whole: bool = True
    #: ``models`` by name, made once it is asked for.
    _by_name: Mapping[str, Sequence[ModelFigures]] | None = field(default=None, init=False, repr=False, compare=False)

    def by_name(self) -> Mapping[str, Sequence[ModelFigures]]:
        """The versions of each model."""
        found = self._by_name
        if found is None:
            made: dict[str, list[ModelFigures]] = {}
            for (name, _), each in self.models.items():
                made.setdefault(name, []).append(each)
            object.__setattr__(self, "_by_name", found := made)
        return found

    def model(self, name: str, version: str | None = None) -> ModelFigures:
        """One version, or all of a model's merged (None). Without requests, figures of zeros."""
        if version is not None:
            return self.models.get((name, version), ModelFigures(name, version))
        return merged_models(name, self.by_name().get(name, ()))


def bucket_bounds_ns(bucket: int) -> tuple[int, int | None]:
    """The bounds of a bucket of ``ModelFigures.durations``: above the first, up to the second (None: no limit)."""
    low = BUCKET_BOUNDS_NS[bucket - 1] if bucket else 0
    return low, BUCKET_BOUNDS_NS[bucket] if bucket < len(BUCKET_BOUNDS_NS) else None


def merged_models(name: str, figures: Iterable[ModelFigures], version: str | None = None) -> ModelFigures:
    """Several figures of one model as one. ``version`` None: of all versions."""
    total: ModelFigures | None = None
    for each in figures:
        total = each if total is None else total.merged(each)
    return ModelFigures(name, version or "") if total is None else replace(total, model=name, version=version or "")


def merged_frames(frames: Iterable[Frame], at: int, seconds: int) -> Frame:
    """Several frames, the oldest first, as one longer frame without workers and gateways."""
    models: dict[ModelKey, ModelFigures] = {}
    is_whole = True
    for frame in frames:
        is_whole = is_whole and frame.is_whole
        for key, each in frame.models.items():
            models[key] = models[key].merged(each) if key in models else each
    return Frame(at, models, seconds=seconds, is_whole=is_whole)


def _added(one: Mapping[int, int], other: Mapping[int, int]) -> Mapping[int, int]:
    if not other:
        return one
    total = dict(one)
    for bucket, count in other.items():
        total[bucket] = total.get(bucket, 0) + count
    return total


def _added_stages(one: Mapping[str, StageFigures], other: Mapping[str, StageFigures]) -> Mapping[str, StageFigures]:
    if not other:
        return one
    total = dict(one)
    for stage, each in other.items():
        total[stage] = total[stage].plus(each) if stage in total else each
    return total
