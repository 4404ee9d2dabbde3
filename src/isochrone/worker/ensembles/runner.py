"""The runner of one ensemble version: it resolves the versions of the steps, then starts a ``run`` per request.

All versions are resolved together when a request starts, so a request never sees two versions of one model. A request
may pin them itself (``InferRequest.stages``), also for ensembles inside ensembles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError, Unavailable
from isochrone.worker.ensembles.graph import EnsembleGraph, Step
from isochrone.worker.ensembles.pins import Resolve, resolve_pinned
from isochrone.worker.ensembles.run import EnsembleRun

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.served_version import RequestRunner, ServedVersion
    from isochrone.worker.statistics import ModelStatistics


class EnsembleRunner:
    """Runs the requests of one ensemble version."""

    def __init__(
        self, name: str, config: Any, resolve: Resolve, statistics: ModelStatistics, request_ended: Callable[[], None]
    ) -> None:
        self._name = name
        self._graph = EnsembleGraph(name, config)
        self._steps = self._graph.steps
        self._resolve = resolve
        self._statistics = statistics
        self._request_ended = request_ended
        self._running: set[EnsembleRun] = set()

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InferRequest) -> None:
        versions = self._versions(request.stages)
        for version in versions:
            # It stays loaded until the run ends, even if it is replaced while an earlier step runs.
            version.hold()
        trace = self._statistics.trace
        context = request.trace_context if trace is None else trace.begin(request)
        run = EnsembleRun(self._graph, request, versions, self._ended, context)
        self._running.add(run)
        run.start()

    def _versions(self, stages: Mapping[str, str] | None) -> list[ServedVersion]:
        if stages is None:
            return [self._resolve(step.model, step.version) for step in self._steps]
        return [self._pinned(step, stages) for step in self._steps]

    def _pinned(self, step: Step, stages: Mapping[str, str]) -> ServedVersion:
        """The version that the request pins, unless the ensemble's configuration states one."""
        if step.version:
            return self._resolve(step.model, step.version)
        return resolve_pinned(self._resolve, step.model, stages, f"in ensemble '{self._name}'")

    def _ended(self, run: EnsembleRun, error: IsochroneError | None) -> None:
        request, now = run.request, now_ns()
        if error is not None:
            self._statistics.record_failure(error.code, now - request.arrived)
            self._statistics.trace_failure(request, error)
        else:
            request.infer_end = request.compute_end = now
            self._statistics.record_batch(request.plan.batch_size, 0, now - request.infer_start, 0)
            self._statistics.record_success(request, now, request.plan.batch_size)
        self._running.discard(run)
        for version in run.versions:
            version.request_ended()
        self._request_ended()

    def estimated_wait(self, now: int) -> int:
        return max((runner.estimated_wait(now) for runner in self._runners()), default=0)

    def estimated_run(self) -> int:
        """As if the steps ran one after the other: an upper bound where some run at the same time."""
        return sum(runner.estimated_run() for runner in self._runners())

    def least_run(self) -> int:
        """The time of the longest step: a lower bound whatever runs at the same time."""
        return max((runner.least_run() for runner in self._runners()), default=0)

    def step_versions(self) -> list[ServedVersion]:
        """The versions that a request without pins would run; those that are not served are left out."""
        found = []
        for step in self._steps:
            try:
                found.append(self._resolve(step.model, step.version))
            except IsochroneError:
                continue
        return found

    def _runners(self) -> Iterator[RequestRunner]:
        """The runners of the steps that are served."""
        for version in self.step_versions():
            yield version.runner

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        return "".join(version.cache_digest(stages) for version in self._versions(stages))

    def check_stuck(self, now: int) -> None:
        """Nothing to do: the runners of the steps check their own runs."""

    def fail_all(self, error: IsochroneError | None = None) -> None:
        for run in list(self._running):
            run.fail(error or Unavailable(f"model '{self._name}' is being unloaded"))

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass
