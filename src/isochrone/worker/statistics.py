"""Statistics of a model version: requests, batches, failures, and a histogram per stage.

``record_success`` is on the hot path of some 50,000 requests a second in one thread, so it only extends a list of plain
ints. numpy folds the list into sums and histograms, 512 requests at a time or when the statistics are read. All calls
come on the loop's thread: nothing here locks or waits.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from isochrone.clock import now_ns
from isochrone.errors import DeadlineExceeded
from isochrone.observe.exemplars import Exemplar
from isochrone.observe.flights.ring import Flights
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, STAGES, Histogram, ModelSnapshot
from isochrone.observe.tracing.trace_parent import parse_trace_parent, sampled_trace

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.access import WorkerAccess
    from isochrone.worker.tracing.model_trace import ModelTrace

#: Ints per request: eight timestamps and its rows.
_WIDTH: Final = 9
#: Requests between two folds. A fold of 512 stalls the loop for some 0.2 ms; its fixed cost, about 20 µs of numpy
#: calls, speaks against a smaller number.
_FOLD_EVERY: Final = 512
_FOLD_AT: Final = _FOLD_EVERY * _WIDTH
#: Of an error, and of an id, that is kept of a request.
_MAX_MESSAGE: Final = 500
_MAX_ID: Final = 200

_BOUNDS: Final = np.array(BUCKET_BOUNDS_NS, dtype=np.int64)
_BUCKETS: Final = len(BUCKET_BOUNDS_NS) + 1
#: Gives the buckets of each stage a range of their own, so that one bincount serves all five.
_STAGE_OFFSETS: Final = np.arange(len(STAGES), dtype=np.int64)[:, None] * _BUCKETS

# Columns of the timestamps, in the order of record_success. A stage is the difference of two of them.
_ARRIVED, _ENQUEUED, _DISPATCHED, _COMPUTE_START = range(4)
_INFER_START, _INFER_END, _COMPUTE_END, _NOW, _ROWS = range(4, _WIDTH)
_STAGE_ENDS: Final = np.array([_NOW, _DISPATCHED, _INFER_START, _INFER_END, _COMPUTE_END])
_STAGE_STARTS: Final = np.array([_ARRIVED, _ENQUEUED, _COMPUTE_START, _INFER_START, _INFER_END])


class ModelStatistics:
    """Counts of one model version, in Triton's terms, and a histogram per stage, which Triton lacks."""

    __slots__ = (
        "_batches",
        "_cache_hit_ns",
        "_cache_hits",
        "_cache_miss_ns",
        "_cache_misses",
        "_computed",
        "_counts",
        "_exemplars",
        "_fail_ns",
        "_failures",
        "_inference_count",
        "_last_inference_ms",
        "_pending_hits",
        "_pending_times",
        "_rejections",
        "_reused",
        "_sums",
        "_wall_clock_ns",
        "_who",
        "access",
        "counts",
        "flights",
        "model_name",
        "model_version",
        "trace",
        "waiting",
    )

    def __init__(self, model_name: str, model_version: str, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.model_name = model_name
        self.model_version = model_version
        #: Records requests of a model that is traced; None: it is not.
        self.trace: ModelTrace | None = None
        #: Logs requests; None: they are not logged.
        self.access: WorkerAccess | None = None
        #: Off, to measure what it costs: durations of requests are not counted.
        self.counts = True
        #: Where the last requests are kept; None: they are not. See ``worker.flights`` for the records.
        self.flights: Flights | None = None
        self._who = (model_name, model_version)
        #: Requests in the queue when the last one was rejected.
        self.waiting = 0
        #: Only for the protocol's ``last_inference``, which is a wall-clock time.
        self._wall_clock_ns = wall_clock_ns
        self._pending_times: list[int] = []
        #: Total and queue ns of hits of either cache.
        self._pending_hits: list[int] = []
        #: Requests answered by computing, without cache hits.
        self._computed = 0
        self._inference_count = 0
        self._counts: npt.NDArray[np.int64] = np.zeros((len(STAGES), _BUCKETS), dtype=np.int64)
        self._sums: npt.NDArray[np.int64] = np.zeros(len(STAGES), dtype=np.int64)
        #: By bucket of whole requests: the last one of a sampled trace.
        self._exemplars: dict[int, Exemplar] = {}
        #: Rows → [batches, input ns, infer ns, output ns].
        self._batches: dict[int, list[int]] = {}
        self._last_inference_ms = 0
        self._failures: dict[str, int] = {}
        self._fail_ns = 0
        self._rejections: dict[str, int] = {}
        self._cache_hits = self._cache_hit_ns = 0
        #: Answers of the activation cache.
        self._reused = 0
        self._cache_misses = self._cache_miss_ns = 0

    def record_success(self, request: InferRequest, now: int, rows: int) -> None:
        """Counts an answered request. A stage without a timestamp counts as zero."""
        # One flat list: numpy reads it twice as fast as a list of tuples, and the garbage collector visits no tuples.
        stamps = (
            request.arrived,
            request.enqueued,
            request.dispatched,
            request.compute_start,
            request.infer_start,
            request.infer_end,
            request.compute_end,
            now,
            rows,
        )
        if self.counts:
            times = self._pending_times
            times += stamps
            if len(times) >= _FOLD_AT:
                self.fold()
        else:
            self._computed += 1
        if self.flights is not None:
            named = request.id or request.caller_id
            if len(named) > _MAX_ID:
                named = named[:_MAX_ID]
            record = (self._who, stamps, named, request.deadline, request.plan.priority)
            self.flights.latest.add(record)
            if now > request.deadline:
                self.flights.missed.add(record)
        if self.trace is not None:
            self._trace_success(self.trace, request, now)
        elif request.trace_context is not None:
            self._note(request, now)
        if self.access is not None:
            self.access.finished(request, now)

    def record_single(self, request: InferRequest, now: int, rows: int) -> None:
        """Counts an answered request that ran alone: ``record_success`` and ``record_batch`` in one."""
        started, ended = request.infer_start, request.infer_end
        stamps = (request.arrived, request.enqueued, started, started, started, ended, ended, now, rows)
        if self.counts:
            batch = self._batches.get(rows)
            if batch is None:
                batch = self._batches[rows] = [0, 0, 0, 0]
            batch[0] += 1
            batch[2] += ended - started
            times = self._pending_times
            times += stamps
            if len(times) >= _FOLD_AT:
                self.fold()
        else:
            self._computed += 1
        if self.flights is not None:
            named = request.id or request.caller_id
            if len(named) > _MAX_ID:
                named = named[:_MAX_ID]
            record = (self._who, stamps, named, request.deadline, request.plan.priority)
            self.flights.latest.add(record)
            if now > request.deadline:
                self.flights.missed.add(record)
        if self.trace is not None:
            self._trace_success(self.trace, request, now)
        elif request.trace_context is not None:
            self._note(request, now)
        if self.access is not None:
            self.access.finished(request, now)

    def record_batch(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Counts one execution of the model."""
        batch = self._batches.get(rows)
        if batch is None:
            batch = self._batches[rows] = [0, 0, 0, 0]
        batch[0] += 1
        batch[1] += input_ns
        batch[2] += infer_ns
        batch[3] += output_ns
        self._last_inference_ms = self._wall_clock_ns() // 1_000_000

    def note_batch(self, began: int, rows: int, requests: int, expected: int, waiting: int, instance: int) -> None:
        """Keeps what its requests do not know of a batch, for as long as they may be asked about."""
        if self.flights is not None:
            self.flights.batches.add((self._who, began, rows, requests, expected, waiting, instance))

    def record_failure(self, reason: str, duration_ns: int) -> None:
        """Counts an accepted request that failed; ``reason`` is the error's code."""
        self._failures[reason] = self._failures.get(reason, 0) + 1
        self._fail_ns += duration_ns

    def record_rejected(self, reason: str) -> None:
        """Counts a request that was rejected on arrival; as in Triton, ``fail`` includes it."""
        self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def trace_failure(self, request: InferRequest, error: IsochroneError) -> None:
        """Records a request that failed or was rejected, beside its count."""
        if self.trace is not None:
            self.trace.failed(request, error)
        if self.access is not None:
            self.access.failed(request, error)
        if self.flights is not None:
            self._keep_failed(self.flights, request, error)

    def _keep_failed(self, flights: Flights, request: InferRequest, error: IsochroneError) -> None:
        """The error itself would keep its traceback, and with that the request's tensors."""
        stamps = (
            request.arrived,
            request.enqueued,
            request.dispatched,
            request.compute_start,
            request.infer_start,
            request.infer_end,
            request.compute_end,
            now_ns(),
            request.plan.batch_size,
        )
        missed_by = error.missed_by_ns if isinstance(error, DeadlineExceeded) else 0
        failure = (error.code, error.message[:_MAX_MESSAGE], missed_by, self.waiting)
        named = request.id or request.caller_id
        record = (self._who, stamps, named[:_MAX_ID], request.deadline, request.plan.priority, failure)
        if isinstance(error, DeadlineExceeded) or stamps[7] > request.deadline:
            flights.add_missed(record)
        else:
            flights.latest.add(record)

    def record_cache_hit(self, request: InferRequest, now: int, lookup_ns: int) -> None:
        """Counts an answer from the cache: a success with a queue time, but without inference."""
        self._cache_hits += 1
        self._cache_hit_ns += lookup_ns
        waits = self._pending_hits
        waits += (now - request.arrived, request.dispatched - request.enqueued)
        if len(waits) >= _FOLD_AT:
            self.fold()
        if self.flights is not None:
            self._keep_hit(self.flights, request, now)
        if self.trace is not None:
            self._trace_success(self.trace, request, now)
        elif request.trace_context is not None:
            self._note(request, now)
        if self.access is not None:
            self.access.finished(request, now)

    def record_reused(self, request: InferRequest, now: int) -> None:
        """Counts an answer from the activation cache: a success with a queue time, but without inference."""
        self._reused += 1
        waits = self._pending_hits
        waits += (now - request.arrived, request.dispatched - request.enqueued)
        if len(waits) >= _FOLD_AT:
            self.fold()
        if self.flights is not None:
            self._keep_hit(self.flights, request, now)
        if self.trace is not None:
            self._trace_success(self.trace, request, now)
        elif request.trace_context is not None:
            self._note(request, now)
        if self.access is not None:
            self.access.finished(request, now)

    def _keep_hit(self, flights: Flights, request: InferRequest, now: int) -> None:
        stamps = (request.arrived, request.enqueued, request.dispatched, 0, 0, 0, 0, now, request.plan.batch_size)
        named = (request.id or request.caller_id)[:_MAX_ID]
        flights.latest.add((self._who, stamps, named, request.deadline, request.plan.priority))

    def record_cache_miss(self, lookup_ns: int, insert_ns: int) -> None:
        """Counts a miss, in addition to the success of the computed answer."""
        self._cache_misses += 1
        self._cache_miss_ns += lookup_ns + insert_ns

    def _trace_success(self, trace: ModelTrace, request: InferRequest, now: int) -> None:
        trace_id = trace.finished(request)
        if trace_id:
            self._keep_exemplar(trace_id, request, now)

    def _note(self, request: InferRequest, now: int) -> None:
        """Keeps the trace of a request that its caller samples: this worker exports none."""
        parent = parse_trace_parent((request.trace_context or {}).get("traceparent", ""))
        trace_id = sampled_trace(parent)
        if trace_id:
            self._keep_exemplar(trace_id, request, now)

    def _keep_exemplar(self, trace_id: str, request: InferRequest, now: int) -> None:
        duration = now - request.arrived
        self._exemplars[bisect_left(BUCKET_BOUNDS_NS, duration)] = Exemplar(trace_id, duration, self._wall_clock_ns())

    def fold(self) -> None:
        """Adds the recorded timestamps to sums and histograms."""
        times, waits = self._pending_times, self._pending_hits
        if times:
            # Single runs do not read the wall clock: the end of the last one follows from its monotonic timestamp.
            ended = self._wall_clock_ns() - (now_ns() - times[_NOW - _WIDTH])
            self._last_inference_ms = max(self._last_inference_ms, ended // 1_000_000)
            table = np.fromiter(times, np.int64, len(times)).reshape(-1, _WIDTH).T
            times.clear()
            self._add_durations(table[_STAGE_ENDS] - table[_STAGE_STARTS])
            self._computed += table.shape[1]
            self._inference_count += int(table[_ROWS].sum())
        if waits:
            # A hit has the first two stages, request and queue.
            durations = np.fromiter(waits, np.int64, len(waits)).reshape(-1, 2).T.copy()
            waits.clear()
            self._add_durations(durations)

    def _add_durations(self, durations: npt.NDArray[np.int64]) -> None:
        """``durations`` has one row per stage, from the first stage on."""
        stages = len(durations)
        # A missing timestamp is 0, and the difference far below zero.
        np.maximum(durations, 0, out=durations)
        buckets = _BOUNDS.searchsorted(durations)
        buckets += _STAGE_OFFSETS[:stages]
        counts = self._counts[:stages]
        counts += np.bincount(buckets.ravel(), minlength=counts.size).reshape(counts.shape)
        self._sums[:stages] += durations.sum(axis=1)

    @property
    def execution_count(self) -> int:
        return sum(batch[0] for batch in self._batches.values())

    @property
    def answered(self) -> int:
        """Requests answered well, from the caches included."""
        return self._computed + len(self._pending_times) // _WIDTH + self._cache_hits + self._reused

    def to_protobuf(self) -> service_pb2.ModelStatistics:
        """The protocol's message. ``success`` and ``queue`` include cache hits, the compute stages do not."""
        self.fold()
        request_ns, queue_ns, *compute_ns = (int(total) for total in self._sums)
        failed = sum(self._failures.values()) + sum(self._rejections.values())
        answered = self.answered

        message = service_pb2.ModelStatistics(
            name=self.model_name,
            version=self.model_version,
            last_inference=self._last_inference_ms,
            inference_count=self._inference_count,
            execution_count=self.execution_count,
        )
        stats = message.inference_stats
        for duration, count, total_ns in (
            (stats.success, answered, request_ns),
            (stats.fail, failed, self._fail_ns),
            (stats.queue, answered, queue_ns),
            (stats.compute_input, self._computed, compute_ns[0]),
            (stats.compute_infer, self._computed, compute_ns[1]),
            (stats.compute_output, self._computed, compute_ns[2]),
            (stats.cache_hit, self._cache_hits, self._cache_hit_ns),
            (stats.cache_miss, self._cache_misses, self._cache_miss_ns),
        ):
            # Present even when both are 0: perf_analyzer requires it.
            duration.SetInParent()
            duration.count = count
            duration.ns = total_ns
        for rows, (count, input_ns, infer_ns, output_ns) in sorted(self._batches.items()):
            batch = message.batch_stats.add(batch_size=rows)
            for duration, total_ns in (
                (batch.compute_input, input_ns),
                (batch.compute_infer, infer_ns),
                (batch.compute_output, output_ns),
            ):
                duration.count = count
                duration.ns = total_ns
        return message

    def snapshot(self, digest: str = "", pending: int = 0) -> ModelSnapshot:
        """A frozen copy for metrics, with the version's digest and the number of its queued requests."""
        self.fold()
        counts = self._counts.copy()
        counts.setflags(write=False)
        return ModelSnapshot(
            model_name=self.model_name,
            model_version=self.model_version,
            digest=digest,
            pending=pending,
            success=self.answered,
            failures=dict(self._failures),
            rejections=dict(self._rejections),
            inference_count=self._inference_count,
            execution_count=self.execution_count,
            cache_hits=self._cache_hits,
            cache_hit_ns=self._cache_hit_ns,
            cache_misses=self._cache_misses,
            cache_miss_ns=self._cache_miss_ns,
            stages={
                stage: Histogram(counts[row], int(self._sums[row]), {} if row else dict(self._exemplars))
                for row, stage in enumerate(STAGES)
            },
        )
