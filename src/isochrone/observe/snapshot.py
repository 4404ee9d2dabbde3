"""What a server has counted, frozen at one instant, for whoever shows it.

The worker fills these in on the event loop's thread; metrics (and later the console) read them, perhaps on
another thread, so nothing here may change after it is made. This module must know nothing of the worker: the
arrows point here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

#: The stages a request's time is told in, in the order it passes them; ``request`` is the whole.
STAGES: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")

#: Upper bounds of the buckets in ns, 50 µs to 10 s: six to a decade (steps of ×1.33 to ×1.67), on figures
#: people read without a calculator. 50 µs because a small model's whole request takes about twice that.
BUCKET_BOUNDS_NS: Final[tuple[int, ...]] = (
    50_000,
    75_000,
    *(step * 10**exponent for exponent in range(4, 9) for step in (10, 15, 20, 30, 50, 75)),
    10_000_000_000,
)


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Durations of one stage. ``counts[i]`` is of bucket i alone; the last has no upper bound."""

    counts: npt.NDArray[np.int64]
    sum_ns: int

    @property
    def count(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True, eq=False)
class ModelSnapshot:
    """One version of one model. Counts are since it was loaded; durations are ns."""

    model_name: str
    model_version: str
    #: SHA-256 of artifact and configuration; "" where none is known.
    digest: str
    #: Waiting in the queue now.
    pending: int
    success: int
    #: Error code → requests that failed with it, once taken.
    failures: Mapping[str, int]
    #: Error code → requests turned away before they were taken (queue full, deadline out of reach).
    rejections: Mapping[str, int]
    #: Rows computed, and batches they were computed in; cache hits are in neither.
    inference_count: int
    execution_count: int
    cache_hits: int
    cache_hit_ns: int
    cache_misses: int
    cache_miss_ns: int
    #: By name, every one of STAGES. Cache hits count in ``request`` and ``queue`` only.
    stages: Mapping[str, Histogram]


@dataclass(frozen=True, slots=True, eq=False)
class WireSnapshot:
    """What the listeners of a process hold for their clients. Counts are since it started."""

    #: Open connections of clients, and those that have taken nothing of what waits for them for several seconds.
    connections: int
    stalled: int
    #: Bytes of the memory budget that are in use, were at most, and may be.
    buffered: int
    buffered_peak: int
    buffered_limit: int
    #: Requests refused because their connection held its share of the budget.
    refused: int
    #: How late the event loop ran what was due.
    loop_lag: Histogram


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """The response cache of a process. Counts are since it started, durations are ns."""

    entries: int
    bytes_used: int
    limit_bytes: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """Everything one scrape shows that only the server itself knows."""

    models: Sequence[ModelSnapshot] = field(default_factory=tuple)
    #: None where no listener runs.
    wire: WireSnapshot | None = None
    #: None where responses are not cached.
    cache: CacheSnapshot | None = None
