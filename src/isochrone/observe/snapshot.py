"""Snapshots of a server's counters.

The worker creates them on the event loop's thread; metrics read them, perhaps on another thread, so they are immutable.
This module must not import the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from isochrone.observe.exemplars import Exemplars
from isochrone.observe.model_metrics import FamilySnapshot

#: The stages of a request, in order; ``request`` is the total.
STAGES: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")

#: Upper bounds of the buckets in ns, 50 µs to 10 s: six per decade (steps of ×1.33 to ×1.67), at round numbers. From
#: 50 µs, because a request to a small model takes about twice that.
BUCKET_BOUNDS_NS: Final[tuple[int, ...]] = (
    50_000,
    75_000,
    *(step * 10**exponent for exponent in range(4, 9) for step in (10, 15, 20, 30, 50, 75)),
    10_000_000_000,
)


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Durations of one stage. ``counts[i]`` is the count of bucket i, not cumulative; the last has no upper bound."""

    counts: npt.NDArray[np.int64]
    sum_ns: int
    exemplars: Exemplars = field(default_factory=dict)

    @property
    def count(self) -> int:
        return int(self.counts.sum())


def sum_histograms(histograms: Sequence[Histogram]) -> Histogram:
    """At least one."""
    counts = np.sum([each.counts for each in histograms], axis=0)
    return Histogram(counts, sum(each.sum_ns for each in histograms))


@dataclass(frozen=True, slots=True, eq=False)
class ModelSnapshot:
    """One version of one model. Counts start at its load; durations are in ns."""

    model_name: str
    model_version: str
    #: SHA-256 of artifact and configuration; "": unknown.
    digest: str
    #: Requests in the queue.
    pending: int
    success: int
    #: Error code → requests that failed after they were accepted.
    failures: Mapping[str, int]
    #: Error code → requests that were rejected before they were queued (queue full, deadline out of reach).
    rejections: Mapping[str, int]
    #: Computed rows and batches; neither includes cache hits.
    inference_count: int
    execution_count: int
    cache_hits: int
    cache_hit_ns: int
    cache_misses: int
    cache_miss_ns: int
    #: By name, for all STAGES. Cache hits count in ``request`` and ``queue`` only.
    stages: Mapping[str, Histogram]


@dataclass(frozen=True, slots=True, eq=False)
class WireSnapshot:
    """The connections and buffers of a process's listeners. Counts start with the process."""

    #: Open client connections, and those whose client has read none of the unsent bytes for several seconds.
    connections: int
    stalled: int
    #: Bytes of the memory budget: in use, the peak, and the limit.
    buffered: int
    buffered_peak: int
    buffered_limit: int
    #: Requests rejected because their connection held its share of the budget.
    rejected: int
    #: The event loop's lag.
    loop_lag: Histogram
    #: When the first certificate of a listener expires, in seconds since 1970; None: no TLS, or it cannot be read.
    certificate_expires: float | None = None


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """The response cache of a process. Counts start with the process; durations are in ns."""

    entries: int
    bytes_used: int
    limit_bytes: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class ActivationSnapshot:
    """The activation cache of one version of a model. Counts start at its load; durations are in ns."""

    model_name: str
    model_version: str
    #: By scope: temporal, spatial.
    hits: Mapping[str, int]
    #: By reason, every reason from the start.
    misses: Mapping[str, int]
    entries: int
    bytes_used: int
    limit_bytes: int
    evictions: int
    #: The time of computing what was reused, and that of all comparisons.
    saved_ns: int
    comparison_ns: int
    #: Hits that were computed to measure the error, and those over the budget each by itself.
    samples: int
    samples_over_budget: int
    #: The relative error of outputs: the running estimate, and the largest of one sample.
    error: float
    largest_error: float
    error_budget: float
    is_alarmed: bool


@dataclass(frozen=True, slots=True, eq=False)
class DividedSnapshot:
    """One version of a divided model. Counts start at its load; times are in seconds."""

    model_name: str
    model_version: str
    #: The division of requests that name none.
    present: str
    #: By division, every division from the start.
    requests: Mapping[str, int]
    #: By division, those that are offered.
    late_seconds: Mapping[str, float]
    #: By reason, every reason from the start.
    moves: Mapping[str, int]
    #: Requests that ran on the edge after the core failed.
    fallbacks: int
    core_answers: bool
    round_trip: float
    jitter: float
    #: Infinite: too fast to be measured.
    bytes_per_second: float


@dataclass(frozen=True, slots=True, eq=False)
class GenerationSnapshot:
    """One version of a model that generates tokens. Counts start at its load."""

    model_name: str
    model_version: str
    #: Tokens of answers; of prompts; and of prompts that were found in the cache.
    generated_tokens: int
    prompt_tokens: int
    reused_tokens: int
    #: Tokens of answers that came after their deadline.
    late_tokens: int
    steps: int
    preemptions: int
    #: Error code → requests refused for their deadline or the queue's bound.
    refusals: Mapping[str, int]
    #: Sequences that are computed now, and that wait for blocks or a row.
    running: int
    waiting: int
    #: Blocks of the cache, and those that sequences hold.
    blocks: int
    blocks_in_use: int
    #: From arrival to the first token, and from each token to the next.
    first_token: Histogram
    between_tokens: Histogram


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device that one instance holds."""

    device: str
    model_name: str
    model_version: str
    instance: int
    #: For what: weights, graphs, slots, cache.
    holding: str
    size: int


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """Rows that one version on a device computed for nobody, since its load."""

    model_name: str
    model_version: str
    rows: int


@dataclass(frozen=True, slots=True)
class CapturedGraphs:
    """CUDA graphs that the instances of one version on a device have captured."""

    model_name: str
    model_version: str
    graphs: int


@dataclass(frozen=True, slots=True)
class TraceSnapshot:
    """Traces of requests. Counts start with the process."""

    #: By the reason for which they are kept, every reason from the start.
    kept: Mapping[str, int]
    #: Kept, and dropped since the queue to the exporter was full.
    dropped: int
    #: Kept, and lost since the collector did not take them.
    failed: int
    #: Deadline misses and errors that were not kept: there were too many per second.
    limited: int = 0


@dataclass(frozen=True, slots=True)
class AccessLogSnapshot:
    """The access log. Counts start with the process."""

    written: int
    #: Since the queue to the thread that writes was full, or a write failed.
    dropped: int
    #: Failures that were not logged: there were too many per second.
    limited: int


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """The server's own part of a scrape."""

    models: Sequence[ModelSnapshot] = field(default_factory=tuple)
    #: None: no listener is running.
    wire: WireSnapshot | None = None
    #: None: responses are not cached.
    cache: CacheSnapshot | None = None
    #: Families of metrics that models define themselves.
    of_models: Sequence[FamilySnapshot] = ()
    #: Models that generate tokens; they are among ``models``, too.
    generation: Sequence[GenerationSnapshot] = ()
    device_memory: Sequence[DeviceMemory] = ()
    padded_rows: Sequence[PaddedRows] = ()
    captured_graphs: Sequence[CapturedGraphs] = ()
    #: Models with an activation cache.
    activations: Sequence[ActivationSnapshot] = ()
    divided: Sequence[DividedSnapshot] = ()
    #: None: traces are not exported.
    traces: TraceSnapshot | None = None
    #: None: requests are not logged.
    access_log: AccessLogSnapshot | None = None
