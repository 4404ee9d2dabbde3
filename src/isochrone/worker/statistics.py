"""Statistics of a model version: requests, batches, failures, and a histogram per stage.

``record_single`` and ``record_success`` are on the hot path of some 50,000 requests a second in one thread: they only
change numbers in place, which compiled takes no memory. All calls come on the loop's thread: nothing here locks or
waits.
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
from isochrone.observe.bucket_counts import BucketCounts
from isochrone.observe.exemplars import Exemplar
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, STAGES, Histogram, ModelSnapshot
from isochrone.observe.tracing.trace_parent import parse_trace_parent, sampled_trace

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.access_lines import WorkerAccessLines
    from isochrone.worker.flight_records import WorkerFlightRecords
    from isochrone.worker.tracing.model_trace import ModelTrace

#: Of an error, that is kept of a request.
_MAX_MESSAGE: Final = 500


class _BatchTimes:
    """The batches of one size: how many, and their times in ns."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class ModelStatistics:
    """Counts of one model version, in Triton's terms, and a histogram per stage, which Triton lacks."""

    __slots__ = (
        "_alone",
        "_alone_rows",
        "_batches",
        "_cache_hit_ns",
        "_cache_hits",
        "_cache_miss_ns",
        "_cache_misses",
        "_computed",
        "_exemplars",
        "_fail_ns",
        "_failures",
        "_inference_count",
        "_infers",
        "_inputs",
        "_last_ended",
        "_last_inference_ms",
        "_outputs",
        "_queues",
        "_rejections",
        "_requests",
        "_reused",
        "_singles",
        "_wall_clock_ns",
        "_who",
        "access_lines",
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
        self.access_lines: WorkerAccessLines | None = None
        #: Off, to measure what it costs: durations of requests are not counted.
        self.counts = True
        #: Where the last requests are kept; None: they are not.
        self.flights: WorkerFlightRecords | None = None
        self._who = (model_name, model_version)
        #: Requests in the queue when the last one was rejected.
        self.waiting = 0
        #: Only for the protocol's ``last_inference``, which is a wall-clock time.
        self._wall_clock_ns = wall_clock_ns
        #: Requests answered by computing, without cache hits.
        self._computed = 0
        #: Those of them that ran alone: they have neither a gather nor a split, and count as 0 in both stages.
        self._singles = 0
        self._inference_count = 0
        #: By stage, in the order of ``STAGES``.
        self._requests = BucketCounts(BUCKET_BOUNDS_NS)
        self._queues = BucketCounts(BUCKET_BOUNDS_NS)
        self._inputs = BucketCounts(BUCKET_BOUNDS_NS)
        self._infers = BucketCounts(BUCKET_BOUNDS_NS)
        self._outputs = BucketCounts(BUCKET_BOUNDS_NS)
        #: By bucket of whole requests: the last one of a sampled trace.
        self._exemplars: dict[int, Exemplar] = {}
        #: By rows; and those of the last request that ran alone.
        self._batches: dict[int, _BatchTimes] = {}
        self._alone_rows = 0
        self._alone = _BatchTimes()
        #: When the last request that ran alone ended (monotonic); single runs do not read the wall clock.
        self._last_ended = 0
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
        self._computed += 1
        if self.counts:
            self._inference_count += rows
            self._requests.add(now - request.arrived)
            self._queues.add(request.dispatched - request.enqueued)
            self._inputs.add(request.infer_start - request.compute_start)
            self._infers.add(request.infer_end - request.infer_start)
            self._outputs.add(request.compute_end - request.infer_end)
        if self.flights is not None:
            self.flights.answered(self._who, request, now, rows)
        self._show(request, now)

    def record_single(self, request: InferRequest, now: int, rows: int) -> None:
        """Counts an answered request that ran alone: ``record_success`` and ``record_batch`` in one."""
        self._computed += 1
        if self.counts:
            started = request.infer_start
            ran = request.infer_end - started
            self._singles += 1
            self._inference_count += rows
            self._requests.add(now - request.arrived)
            self._queues.add(started - request.enqueued)
            self._infers.add(ran)
            if rows != self._alone_rows:
                self._alone_rows = rows
                self._alone = self._batch_of(rows)
            batch = self._alone
            batch.count += 1
            batch.infer_ns += ran
            self._last_ended = now
        if self.flights is not None:
            self.flights.answered_alone(self._who, request, now, rows)
        self._show(request, now)

    def _show(self, request: InferRequest, now: int) -> None:
        """Traces and logs an answered request, if that is on."""
        if self.trace is not None:
            self._trace_success(self.trace, request, now)
        elif request.trace_context is not None:
            self._note(request, now)
        if self.access_lines is not None:
            self.access_lines.finished(request, now)

    def record_batch(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Counts one execution of the model."""
        batch = self._batch_of(rows)
        batch.count += 1
        batch.input_ns += input_ns
        batch.infer_ns += infer_ns
        batch.output_ns += output_ns
        self._last_inference_ms = self._wall_clock_ns() // 1_000_000

    def _batch_of(self, rows: int) -> _BatchTimes:
        batch = self._batches.get(rows)
        if batch is None:
            batch = self._batches[rows] = _BatchTimes()
        return batch

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
        if self.access_lines is not None:
            self.access_lines.failed(request, error)
        if self.flights is not None:
            self._keep_failed(self.flights, request, error)

    def _keep_failed(self, flights: WorkerFlightRecords, request: InferRequest, error: IsochroneError) -> None:
        """The error itself would keep its traceback, and with that the request's tensors."""
        missed_by = error.missed_by_ns if isinstance(error, DeadlineExceeded) else 0
        failure = (error.code, error.message[:_MAX_MESSAGE], missed_by, self.waiting)
        flights.failed(self._who, request, now_ns(), failure, is_miss=isinstance(error, DeadlineExceeded))

    def record_cache_hit(self, request: InferRequest, now: int, lookup_ns: int) -> None:
        """Counts an answer from the cache: a success with a queue time, but without inference."""
        self._cache_hits += 1
        self._cache_hit_ns += lookup_ns
        self._answered_without_run(request, now)

    def record_reused(self, request: InferRequest, now: int) -> None:
        """Counts an answer from the activation cache: a success with a queue time, but without inference."""
        self._reused += 1
        self._answered_without_run(request, now)

    def _answered_without_run(self, request: InferRequest, now: int) -> None:
        self._requests.add(now - request.arrived)
        self._queues.add(request.dispatched - request.enqueued)
        if self.flights is not None:
            self.flights.answered_without_run(self._who, request, now)
        self._show(request, now)

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

    def _last_inference(self) -> int:
        """In ms since the epoch."""
        if self._last_ended:
            ended = self._wall_clock_ns() - (now_ns() - self._last_ended)
            self._last_ended = 0
            self._last_inference_ms = max(self._last_inference_ms, ended // 1_000_000)
        return self._last_inference_ms

    def _stages(self) -> tuple[tuple[npt.NDArray[np.int64], int], ...]:
        """Counts by bucket, and the sum, of each stage."""
        stages = (self._requests, self._queues, self._inputs, self._infers, self._outputs)
        counts = np.array([stage.counts() for stage in stages], dtype=np.int64)
        counts[2, 0] += self._singles
        counts[4, 0] += self._singles
        counts.setflags(write=False)
        return tuple((counts[row], stage.sum_ns) for row, stage in enumerate(stages))

    @property
    def execution_count(self) -> int:
        return sum(batch.count for batch in self._batches.values())

    @property
    def answered(self) -> int:
        """Requests answered well, from the caches included."""
        return self._computed + self._cache_hits + self._reused

    def to_protobuf(self) -> service_pb2.ModelStatistics:
        """The protocol's message. ``success`` and ``queue`` include cache hits, the compute stages do not."""
        failed = sum(self._failures.values()) + sum(self._rejections.values())
        answered = self.answered

        message = service_pb2.ModelStatistics(
            name=self.model_name,
            version=self.model_version,
            last_inference=self._last_inference(),
            inference_count=self._inference_count,
            execution_count=self.execution_count,
        )
        stats = message.inference_stats
        for duration, count, total_ns in (
            (stats.success, answered, self._requests.sum_ns),
            (stats.fail, failed, self._fail_ns),
            (stats.queue, answered, self._queues.sum_ns),
            (stats.compute_input, self._computed, self._inputs.sum_ns),
            (stats.compute_infer, self._computed, self._infers.sum_ns),
            (stats.compute_output, self._computed, self._outputs.sum_ns),
            (stats.cache_hit, self._cache_hits, self._cache_hit_ns),
            (stats.cache_miss, self._cache_misses, self._cache_miss_ns),
        ):
            # Present even when both are 0: perf_analyzer requires it.
            duration.SetInParent()
            duration.count = count
            duration.ns = total_ns
        for rows, times in sorted(self._batches.items()):
            batch = message.batch_stats.add(batch_size=rows)
            for duration, total_ns in (
                (batch.compute_input, times.input_ns),
                (batch.compute_infer, times.infer_ns),
                (batch.compute_output, times.output_ns),
            ):
                duration.count = times.count
                duration.ns = total_ns
        return message

    def snapshot(self, digest: str = "", pending: int = 0) -> ModelSnapshot:
        """A frozen copy for metrics, with the version's digest and the number of its queued requests."""
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
                name: Histogram(counts, sum_ns, dict(self._exemplars) if name == STAGES[0] else {})
                for name, (counts, sum_ns) in zip(STAGES, self._stages(), strict=True)
            },
        )
