"""Ensembles: a graph of models run inside the worker, tensors handed from step to step as they are.

A step starts as soon as its inputs are there, so independent steps run at once. Deadline and priority go with every
step. The versions of the steps are fixed when a request starts, all at once, so one request never mixes two; a request
may say itself which they are (``InferRequest.stages``), through ensembles inside ensembles too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from isochrone.clock import now_ns
from isochrone.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    IsochroneError,
    ModelFailed,
    Unavailable,
    Unsupported,
)
from isochrone.protocol.datatypes import name_of
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan
from isochrone.worker.batch import answer

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.served import ServedVersion
    from isochrone.worker.statistics import ModelStatistics

Resolve = Callable[[str, str], "ServedVersion"]


class Step:
    """One step of the graph, from the configuration."""

    __slots__ = ("inputs", "model", "outputs", "version")

    def __init__(self, step: Any) -> None:
        self.model: str = step.model_name
        self.version = "" if step.model_version in (-1, 0) else str(step.model_version)
        #: model's input → ensemble tensor; model's output → ensemble tensor.
        self.inputs: dict[str, str] = dict(step.input_map)
        self.outputs: dict[str, str] = dict(step.output_map)


class EnsembleRunner:
    """Runs the requests of one ensemble version."""

    def __init__(
        self, name: str, config: Any, resolve: Resolve, statistics: ModelStatistics, over: Callable[[], None]
    ) -> None:
        self.steps = tuple(Step(step) for step in config.ensemble_scheduling.step)
        self.outputs = tuple(output.name for output in config.output)
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


class EnsembleRun:
    """One request on its way through the graph."""

    __slots__ = ("_done", "_request", "_runner", "_started", "_tensors", "_under_way", "_versions")

    def __init__(self, runner: EnsembleRunner, request: InferRequest, versions: list[ServedVersion]) -> None:
        self._runner = runner
        self._request = request
        self._versions = versions
        self._tensors: Tensors = dict(request.inputs)
        self._started = [False] * len(versions)
        self._under_way = 0
        self._done = False

    def start(self) -> None:
        request = self._request
        request.dispatched = request.compute_start = request.infer_start = now_ns()
        self._advance()

    def _advance(self) -> None:
        """Starts every step whose inputs are there; ends when the outputs are."""
        tensors = self._tensors
        for index, step in enumerate(self._runner.steps):
            if self._started[index] or self._done:
                continue
            if all(tensor in tensors for tensor in step.inputs.values()):
                self._started[index] = True
                self._under_way += 1
                self._run_step(index, step)
        if not self._done and not self._under_way:
            self._finish()

    def _run_step(self, index: int, step: Step) -> None:
        request = self._request
        if request.cancelled:
            self._under_way -= 1
            self.fail(Cancelled("the caller has gone"))
            return
        version = self._versions[index]
        inputs = {name: self._tensors[tensor] for name, tensor in step.inputs.items()}
        plan = Plan(
            step.model,
            version.model_version,
            tuple((name, name_of(array.dtype), array.shape) for name, array in inputs.items()),
            tuple(step.outputs),
            request.plan.parameters,
            priority=request.plan.priority,
            sequence_id=request.plan.sequence_id,
            sequence_start=request.plan.sequence_start,
            sequence_end=request.plan.sequence_end,
        )
        child = StepRequest(self, index, plan, inputs, request.deadline)
        try:
            version.submit(child)
        except InvalidArgument as error:
            # What one step gives does not fit the next: the ensemble is wrong, or the model's data are.
            child.fail(InvalidArgument(f"in ensemble '{self._runner.model_name}', step '{step.model}': {error}"))
        except IsochroneError as error:
            child.fail(error)

    def step_done(self, index: int, outputs: Tensors) -> None:
        self._under_way -= 1
        if self._done:
            return
        for name, tensor in self._runner.steps[index].outputs.items():
            array = outputs.get(name)
            if array is None:
                self.fail(Internal(f"step '{self._runner.steps[index].model}' gave no output '{name}'"))
                return
            self._tensors[tensor] = array
        self._advance()

    def step_failed(self, error: IsochroneError) -> None:
        self._under_way -= 1
        self.fail(error)

    def step_dropped(self) -> None:
        """A step did not answer, because nobody waits: the caller has gone, or a sibling failed."""
        self._under_way -= 1
        self.fail(Cancelled("the caller has gone"))

    def _finish(self) -> None:
        request, runner = self._request, self._runner
        wanted = request.plan.outputs or runner.outputs
        missing = [name for name in wanted if name not in self._tensors]
        if missing:
            self.fail(Internal(f"ensemble '{runner.model_name}' gave no output '{missing[0]}'"))
            return
        self._done = True
        runner.record(request, None)
        runner.finished(self, self._versions)
        if request.cancelled:
            request.dropped()
        else:
            answer(request, {name: self._tensors[name] for name in wanted})

    def fail(self, error: IsochroneError) -> None:
        if self._done:
            return
        self._done = True
        self._runner.record(self._request, error)
        self._runner.finished(self, self._versions)
        if self._request.cancelled:
            self._request.dropped()
        else:
            self._request.fail(error)

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._request.stages

    @property
    def is_over(self) -> bool:
        return self._done or self._request.cancelled


class StepRequest(InferRequest):
    """What a step's model sees: a request whose answer goes to the next step."""

    __slots__ = ("_index", "_outputs", "_run")

    def __init__(self, run: EnsembleRun, index: int, plan: Plan, inputs: Tensors, deadline: int) -> None:
        super().__init__(plan, "", inputs, now_ns(), deadline)
        self._run = run
        self._index = index
        #: The response of a decoupled model, until it says that there is no other.
        self._outputs: Tensors | None = None

    # A sibling's failure, or the caller's leaving, drops what is still queued.
    @property
    def cancelled(self) -> bool:
        return False if getattr(self, "_run", None) is None else self._run.is_over

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        """Follows the whole run; InferRequest.__init__ sets it once."""

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._run.stages

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._run.step_done(self._index, outputs)

    def fail(self, error: IsochroneError) -> None:
        self._run.step_failed(error)

    def dropped(self) -> None:
        self._run.step_dropped()

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        if self._outputs is not None:
            # Ends the run, so whatever else the model gives is dropped.
            self._run.fail(Unsupported(f"ensemble step '{self.plan.model_name}': expected one response, given several"))
        self._outputs = outputs

    def finish(self) -> None:
        if self._outputs is None:
            self._run.step_failed(
                ModelFailed(f"ensemble step '{self.plan.model_name}': expected one response, given none")
            )
        else:
            self._run.step_done(self._index, self._outputs)
