"""Tracing of a worker: attaches a ``ModelTrace`` to the versions of each model that its settings trace.

On the event loop's thread, except ``start`` and ``stop``, which wait for the exporter's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from isochrone.clock import now_ns
from isochrone.observe.failure_limit import FailureLimit
from isochrone.observe.snapshot import TraceSnapshot
from isochrone.observe.tracing.exporter import Sink, TraceExporter
from isochrone.observe.tracing.otlp import OtlpSink, missing_package
from isochrone.observe.tracing.record import TraceQueue
from isochrone.observe.tracing.settings import EXPORT_OPTIONS, OPENTELEMETRY, ExportSettings, SamplingSettings
from isochrone.observe.tracing.spans import spans_of
from isochrone.observe.tracing.tail_sampling import TraceShare
from isochrone.worker.trace_settings import TraceSettings
from isochrone.worker.tracing.model_trace import ModelTrace

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest

Changes = Mapping[str, list[str] | None]


class TracedStatistics(Protocol):
    """The statistics of one version (``worker.statistics``)."""

    model_name: str
    trace: ModelTrace | None


class WorkerTracing:
    """The traces of one worker."""

    def __init__(
        self,
        given: Mapping[str, list[str]],
        statistics: Callable[[], Iterable[TracedStatistics]],
        sink: Callable[[ExportSettings], Sink] = OtlpSink,
        process: tuple[int, int] = (0, 1),
    ) -> None:
        """``given``: the settings of the command line. ``statistics``: of every version that is served.

        ``process``: the number of this process, from 0, among so many that serve as one. Counts are divided.
        """
        self._process = process
        self._settings = TraceSettings(given)
        self._statistics = statistics
        self._exporter: TraceExporter | None = None
        #: Why traces cannot be exported, as a sentence that names the remedy; "": they can.
        self.problem = ""
        if given.get("trace_mode") == [OPENTELEMETRY]:
            export = ExportSettings.read({name: given[name] for name in EXPORT_OPTIONS if name in given})
            self._queue = TraceQueue(export.bsp_max_queue_size)
            self._failures = FailureLimit(export.failures_per_second, now_ns())
            self._exporter = TraceExporter(self._queue, export, lambda: sink(export), spans_of)
            if sink is OtlpSink and (package := missing_package(export)):
                self.problem = (
                    f"--trace-config mode=opentelemetry needs the package {package}: pip install isochrone[tracing]"
                )
        #: Of models without settings of their own.
        self._shared = TraceShare(0, 0)
        #: Of each model with settings of its own.
        self._shares: dict[str, TraceShare] = {}
        #: Of every model that was traced at some time.
        self._models: dict[str, ModelTrace] = {}
        #: For requests that reach no model; None: they are not traced.
        self._unknown: ModelTrace | None = None
        self._share_settings("")
        self._attach_all()

    @property
    def is_on(self) -> bool:
        """Whether requests to any model are traced."""
        return self._unknown is not None or any(trace.is_on for trace in self._models.values())

    @property
    def exports(self) -> bool:
        """Whether traces go anywhere: the mode is ``opentelemetry``."""
        return self._exporter is not None

    # Settings.

    def apply(self, model_name: str, changes: Changes) -> dict[str, list[str]]:
        """Applies changes (None clears a key) and returns the settings, with the traces that are left to be kept."""
        settings = self._settings.apply(model_name, changes)
        if changes and self._exporter is not None:
            self._share_settings(model_name)
            self._attach_all(model_name)
        share = self._shares.get(model_name, self._shared)
        if self._exporter is not None and settings["trace_count"] != ["-1"]:
            settings = {**settings, "trace_count": [str(share.left)]}
        return settings

    def _share_settings(self, model_name: str) -> None:
        """Restarts the counts of the settings that were changed."""
        if self._exporter is None:
            return
        if not model_name:
            self._shared = self._share(self._sampling(""))
            # Their settings may inherit what has changed.
            self._shares = {model: self._share(self._sampling(model)) for model in self._shares}
        elif self._settings.has_own(model_name):
            self._shares[model_name] = self._share(self._sampling(model_name))
        else:
            self._shares.pop(model_name, None)

    def _sampling(self, model_name: str) -> SamplingSettings:
        return SamplingSettings.read(self._settings.apply(model_name, {}))

    # Models.

    def _attach_all(self, model_name: str = "") -> None:
        """By new settings of a model, or of all."""
        now = now_ns()
        for model in [model_name] if model_name else [*self._models]:
            self._configure(model, now)
        if not model_name:
            self._unknown = self._made("", now) if self._is_traced("") else None
        for each in self._statistics():
            if not model_name or each.model_name == model_name:
                self.attach(each)

    def _configure(self, model: str, now: int) -> None:
        """New settings for what a model has, its versions that drain included."""
        trace = self._models.get(model)
        if trace is None:
            return
        if self._is_traced(model):
            trace.turn_on(self._shares.get(model, self._shared), now)
        else:
            trace.turn_off(now)

    def attach(self, statistics: TracedStatistics) -> None:
        """A version is served, or the settings of its model have changed."""
        model = statistics.model_name
        statistics.trace = None
        if self._is_traced(model):
            trace = self._models.get(model)
            if trace is None:
                trace = self._models[model] = self._made(model, now_ns())
            elif not trace.is_on:
                trace.turn_on(self._shares.get(model, self._shared), now_ns())
            statistics.trace = trace

    def _is_traced(self, model: str) -> bool:
        return self._exporter is not None and self._sampling(model).is_on

    def _made(self, model: str, now: int) -> ModelTrace:
        return ModelTrace(self._shares.get(model, self._shared), self._queue, now, self._failures)

    def _share(self, sampling: SamplingSettings) -> TraceShare:
        """This process's own: counts of all processes add up to that of the settings."""
        number, processes = self._process
        count = sampling.count
        if count > 0:
            count = count // processes + (number < count % processes)
        return TraceShare(sampling.rate, count)

    # Requests.

    def rejected(self, request: InferRequest, error: IsochroneError) -> None:
        """A request reached no version: its model is unknown, or it does not fit the model."""
        model = request.plan.model_name
        trace = self._models.get(model)
        if (trace is None or not trace.is_on) and not self._settings.has_own(model):
            trace = self._unknown
        if trace is not None:
            trace.failed(request, error)

    def tick(self, now: int) -> None:
        for trace in self._models.values():
            trace.tick(now)

    # The exporter.

    def start(self) -> None:
        if self._exporter is not None:
            self._exporter.start()

    def stop(self, seconds: float) -> None:
        if self._exporter is not None:
            self._exporter.stop(seconds)

    def close(self) -> None:
        """Hands the last records to the exporter. Before ``stop``, on the loop's thread."""
        now = now_ns()
        for trace in self._models.values():
            trace.close(now)

    def snapshot(self) -> TraceSnapshot | None:
        """None: traces go nowhere."""
        if self._exporter is None:
            return None
        queue = self._queue
        return TraceSnapshot(dict(queue.kept), queue.dropped, self._exporter.failed, self._failures.dropped)
