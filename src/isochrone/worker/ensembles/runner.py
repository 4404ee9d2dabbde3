"""Runs the requests of one ensemble version: fixes the versions of its steps, then leaves each request to a ``run``.

The versions of the steps are fixed when a request starts, all at once, so one request never mixes two; a request may
say itself which they are (``InferRequest.stages``), through ensembles inside ensembles too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError, Unavailable
from isochrone.worker.ensembles.graph import EnsembleGraph, Step
from isochrone.worker.ensembles.run import EnsembleRun

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.served_version import ServedVersion
    from isochrone.worker.statistics import ModelStatistics

Resolve = Callable[[str, str], "ServedVersion"]


class EnsembleRunner:
    """Runs the requests of one ensemble version."""

    def __init__(
        self, name: str, config: Any, resolve: Resolve, statistics: ModelStatistics, over: Callable[[], None]
    ) -> None:
        self.graph = EnsembleGraph(config)
        self.steps = self.graph.steps
        self.model_name = name
        self._resolve = resolve
        self._statistics = statistics
        self._over = over
        self._running: set[EnsembleRun] = set()

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InferRequest) -> None:
        # Resolved together, before anything runs: a version change in the middle is not seen by this request.
        versions = self._versions(request.stages)
        for version in versions:
            # Not freed before its step is over, even if it is replaced while an earlier step runs.
            version.hold()
        run = EnsembleRun(self, request, versions)
        self._running.add(run)
        run.start()

    def _versions(self, stages: Mapping[str, str] | None) -> list[ServedVersion]:
        if stages is None:
            return [self._resolve(step.model, step.version) for step in self.steps]
        return [self._pinned(step, stages) for step in self.steps]

    def _pinned(self, step: Step, stages: Mapping[str, str]) -> ServedVersion:
        """The version a request asks for; what the ensemble's own configuration states stands above it."""
        asked = "" if step.version else stages.get(step.model, "")
        if not asked:
            return self._resolve(step.model, step.version)
        try:
            return self._resolve(step.model, asked)
        except IsochroneError as error:
            # Never another version in its place; and not the caller's mistake: another worker may have it.
            raise Unavailable(
                f"in ensemble '{self.model_name}': x-isochrone-stages asks for version {asked} of step '{step.model}', "
                f"which is not served here: {error}"
            ) from None

    def finished(self, run: EnsembleRun, versions: list[ServedVersion]) -> None:
        self._running.discard(run)
        for version in versions:
            version.over()
        self._over()

    def record(self, request: InferRequest, error: IsochroneError | None) -> None:
        now = now_ns()
        if error is not None:
            self._statistics.record_failure(error.code, now - request.arrived)
            return
        request.infer_end = request.compute_end = now
        self._statistics.record_batch(request.plan.batch_size, 0, now - request.infer_start, 0)
        self._statistics.record_success(request, now, request.plan.batch_size)

    def estimated_wait(self, now: int) -> int:
        waits = []
        for step in self.steps:
            try:
                waits.append(self._resolve(step.model, step.version).runner.estimated_wait(now))
            except IsochroneError:
                continue
        return max(waits, default=0)

    def estimated_run(self) -> int:
        """As if its steps ran one after the other: cautious where some run beside each other."""
        total = 0
        for step in self.steps:
            try:
                total += self._resolve(step.model, step.version).runner.estimated_run()
            except IsochroneError:
                continue
        return total

    def least_run(self) -> int:
        """Of its longest step: what can be said whatever runs beside what."""
        longest = 0
        for step in self.steps:
            try:
                longest = max(longest, self._resolve(step.model, step.version).runner.least_run())
            except IsochroneError:
                continue
        return longest

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        return "".join(version.cache_digest(stages) for version in self._versions(stages))

    def check_stuck(self, now: int) -> None:
        """Each step's own runner looks after its runs."""

    def fail_all(self, error: IsochroneError | None = None) -> None:
        for run in list(self._running):
            run.fail(error or Unavailable(f"model '{self.model_name}' is being unloaded"))

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass
