"""The worker's metrics for Prometheus: Triton's names, so that dashboards work unchanged, and histograms.

The server's state is taken as one immutable snapshot on the event loop's thread (16 µs per model). Rendering takes
about 3 ms of processor time per model, nearly all of it for histogram lines, and needs only the snapshot: it belongs on
another thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from isochrone.observe.exemplars import with_exemplars
from isochrone.observe.metrics.access_log import access_log_metrics
from isochrone.observe.metrics.activation_caches import activation_metrics
from isochrone.observe.metrics.devices import device_metrics
from isochrone.observe.metrics.divisions import division_metrics
from isochrone.observe.metrics.generation import generation_metrics
from isochrone.observe.metrics.machine import MachineCollector
from isochrone.observe.metrics.page_formats import encoder
from isochrone.observe.metrics.server import server_metrics
from isochrone.observe.metrics.traces import trace_metrics
from isochrone.observe.metrics.wire import wire_metrics
from isochrone.observe.model_metrics import counters, model_metrics
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, STAGES, ModelSnapshot, ServerSnapshot

_MODEL_LABELS: Final = ("model", "version")

_LE: Final = (*(str(bound / 1e9) for bound in BUCKET_BOUNDS_NS), "+Inf")

#: Triton's counters of one model: name, help, value. Durations are in whole microseconds.
_TRITON_COUNTERS: Final[tuple[tuple[str, str, Callable[[ModelSnapshot], int]], ...]] = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes (including cache hits)",
        lambda model: model.success,
    ),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda model: model.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda model: model.execution_count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda model: model.stages["request"].sum_ns // 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda model: model.stages["queue"].sum_ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda model: model.stages["compute_input"].sum_ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda model: model.stages["compute_infer"].sum_ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda model: model.stages["compute_output"].sum_ns // 1000,
    ),
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", lambda model: model.cache_hits),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", lambda model: model.cache_misses),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda model: model.cache_hit_ns // 1000,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert and lookup) duration per model, in microseconds",
        lambda model: model.cache_miss_ns // 1000,
    ),
)

#: Triton's four reasons of failure. isochrone_request_failures_total has our finer codes.
_TRITON_REASONS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
_REASON_OF_CODE: Final = {
    "cancelled": "CANCELED",
    "model_failed": "BACKEND",
    "queue_full": "REJECTED",
    "deadline_exceeded": "REJECTED",
}

#: Triton's counters do not end in _total, which OpenMetrics requires of counters and prometheus_client appends. So they
#: are created with unknown type, which preserves their names in both formats, and the plain text is corrected to
#: counter. (Prometheus requests OpenMetrics: a renamed series would empty the dashboards.)
_UNTYPED: Final = re.compile(rb"^(# TYPE nv_\w+) untyped$", re.MULTILINE)


class Exposition:
    """Renders scrapes. ``take`` returns the server's state, and is called on ``render``'s thread."""

    def __init__(
        self,
        take: Callable[[], ServerSnapshot],
        proc: Path = Path("/proc"),
        *,
        machine: bool = True,
        others: tuple[Collector, ...] = (),
    ) -> None:
        self.take = take
        self._process = ProcessCollector(proc=str(proc), registry=None)
        of_machine: tuple[Collector, ...] = (MachineCollector(proc),) if machine else ()
        self._others = (*of_machine, *others, self._process)

    def families(self, snapshot: ServerSnapshot) -> Iterator[Metric]:
        """What a page is made of, for another format."""
        return _Families(snapshot, self._others).collect()

    def render(self, accept: str = "", snapshot: ServerSnapshot | None = None) -> tuple[bytes, str]:
        """(body, content type) in the format of the Accept header: OpenMetrics or plain text.

        To render off the event loop's thread, call ``take`` on it and pass the snapshot here.
        """
        encode, content_type = encoder(accept)
        taken = self.take() if snapshot is None else snapshot
        body = encode(_Families(taken, self._others))
        if content_type.startswith("text/plain"):
            body = _UNTYPED.sub(rb"\1 counter", body)
            for name in map(str.encode, counters(taken.of_models)):
                body = body.replace(b"# TYPE %s untyped\n" % name, b"# TYPE %s counter\n" % name)
        return body, content_type


class _Families(Collector):
    """The metric families of one scrape, generated while they are encoded."""

    def __init__(self, snapshot: ServerSnapshot, others: tuple[Collector, ...]) -> None:
        self._snapshot = snapshot
        self._others = others

    def collect(self) -> Iterator[Metric]:
        models = self._snapshot.models
        for name, documentation, value in _TRITON_COUNTERS:
            counter = UnknownMetricFamily(name, documentation, labels=_MODEL_LABELS)
            for model in models:
                counter.add_metric((model.model_name, model.model_version), value(model))
            yield counter
        yield from self._failures()
        yield from self._gauges()
        yield self._histogram()
        yield from generation_metrics(self._snapshot.generation)
        snapshot = self._snapshot
        yield from activation_metrics(snapshot.activations)
        yield from division_metrics(snapshot.divided)
        yield from trace_metrics(snapshot.traces)
        yield from access_log_metrics(snapshot.access_log)
        yield from device_metrics(snapshot.device_memory, snapshot.padded_rows, snapshot.captured_graphs)
        yield from model_metrics(self._snapshot.of_models)
        for collector in self._others:
            yield from collector.collect()

    def _failures(self) -> Iterator[Metric]:
        by_reason = UnknownMetricFamily(
            "nv_inference_request_failure",
            "Number of failed inference requests, all batch sizes",
            labels=(*_MODEL_LABELS, "reason"),
        )
        by_code = CounterMetricFamily(
            "isochrone_request_failures",
            "Requests answered with an error, by its code; taken says whether they were let into the queue",
            labels=(*_MODEL_LABELS, "code", "taken"),
        )
        for model in self._snapshot.models:
            labels = (model.model_name, model.model_version)
            # Every reason from the start: the rate of a series that starts with its first failure misses that failure.
            reasons = dict.fromkeys(_TRITON_REASONS, 0)
            reasons["REJECTED"] += sum(model.rejections.values())
            for code, count in model.failures.items():
                reasons[_REASON_OF_CODE.get(code, "OTHER")] += count
            for reason, count in reasons.items():
                by_reason.add_metric((*labels, reason), count)
            for taken, failures in (("true", model.failures), ("false", model.rejections)):
                for code, count in failures.items():
                    by_code.add_metric((*labels, code, taken), count)
        yield by_reason
        yield by_code

    def _gauges(self) -> Iterator[Metric]:
        pending = GaugeMetricFamily(
            "nv_inference_pending_request_count",
            "Instantaneous number of pending requests awaiting execution per-model.",
            labels=_MODEL_LABELS,
        )
        info = InfoMetricFamily(
            "isochrone_model", "Versions being served, and the SHA-256 of each", labels=_MODEL_LABELS
        )
        for model in self._snapshot.models:
            labels = (model.model_name, model.model_version)
            pending.add_metric(labels, model.pending)
            info.add_metric(labels, {"digest": model.digest})
        yield pending
        yield info
        yield from server_metrics(self._snapshot.cache)
        if self._snapshot.wire is not None:
            yield from wire_metrics(self._snapshot.wire)

    def _histogram(self) -> Metric:
        histogram = HistogramMetricFamily(
            "isochrone_request_duration_seconds",
            "Time of answered requests, whole and by stage",
            labels=(*_MODEL_LABELS, "stage"),
        )
        for model in self._snapshot.models:
            for stage in STAGES:
                durations = model.stages[stage]
                # Python's ints in one pass: numpy scalars would each be converted again.
                cumulative = accumulate(durations.counts.tolist())
                histogram.add_metric(
                    (model.model_name, model.model_version, stage),
                    buckets=with_exemplars(list(zip(_LE, cumulative, strict=True)), durations.exemplars),
                    sum_value=durations.sum_ns / 1e9,
                )
        return histogram
