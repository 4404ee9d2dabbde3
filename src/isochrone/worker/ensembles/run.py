"""The run of one request through the steps of an ensemble.

A step starts as soon as its inputs exist, so independent steps run at the same time. Steps that no requested output
needs do not run. Deadline, priority, id and parameters of the request apply to every step. Each response of a decoupled
step continues through the later steps in a ``Frame`` of its own; the ensemble's responses leave in the order in which
those frames were made. Everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from isochrone.clock import now_ns
from isochrone.errors import Cancelled, InvalidArgument, IsochroneError, ModelFailed, Unsupported
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Plan
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.ensembles.frame import Frame
from isochrone.worker.execution.instances.batch import answer

if TYPE_CHECKING:
    from isochrone.protocol.messages import Parameters, Tensors
    from isochrone.worker.ensembles.graph import EnsembleGraph, Step
    from isochrone.worker.served_version import ServedVersion

#: Responses of decoupled steps that may be in later steps before the decoupled model has to wait.
_FRAMES_AHEAD = 16
_MAX_STEP_PLANS = 64


def _sequence(identity: int | str, start: bool, end: bool) -> Parameters:
    return {"sequence_id": identity, "sequence_start": start, "sequence_end": end}


_NO_SEQUENCE = _sequence(0, False, False)


class EnsembleRun:
    """One request in the graph."""

    __slots__ = (
        "_blocked",
        "_done",
        "_ended",
        "_graph",
        "_is_stream",
        "_needed",
        "_outputs",
        "_running_steps",
        "_unsent",
        "request",
        "trace_context",
        "versions",
    )

    def __init__(
        self,
        graph: EnsembleGraph,
        request: InferRequest,
        versions: list[ServedVersion],
        ended: Callable[[EnsembleRun, IsochroneError | None], None],
        trace_context: Mapping[str, str] | None = None,
    ) -> None:
        """``versions`` holds one version per step. ``ended`` is called once, before the caller gets its answer.

        ``trace_context`` is what the steps get.
        """
        self.request = request
        self.trace_context = trace_context
        self.versions = versions
        self._graph = graph
        self._ended = ended
        self._outputs = request.plan.outputs or tuple(graph.outputs)
        self._needed = graph.needed(request.plan.outputs or None)
        #: A decoupled step has started for a caller that takes many responses.
        self._is_stream = False
        #: Of a stream: frames that may become responses, oldest first; None until their outputs exist.
        self._unsent: dict[Frame, Tensors | None] = {}
        #: Decoupled models that wait until frames have left.
        self._blocked: list[Callable[[], None]] = []
        self._running_steps = 0
        self._done = False

    def start(self) -> None:
        request, graph = self.request, self._graph
        request.dispatched = request.compute_start = request.infer_start = now_ns()
        mixed = any(version.batched != graph.batched for version in self.versions)
        self._advance(Frame.of_request(graph, request, mixed=mixed))

    def _advance(self, frame: Frame) -> None:
        """Starts every step whose inputs exist; ends the run when the outputs do."""
        steps = self._graph.steps
        for index in self._needed:
            if self._done:
                return
            if index not in frame.started and frame.has_inputs(steps[index]):
                frame.started.add(index)
                self._running_steps += 1
                self._run_step(index, steps[index], frame)
        if self._done:
            return
        if self._is_stream:
            self._complete_frame(frame)
        if not self._running_steps and not self._done:
            self._finish(frame)

    def _run_step(self, index: int, step: Step, frame: Frame) -> None:
        request = self.request
        if request.cancelled:
            self.step_dropped()
            return
        version = self.versions[index]
        inputs = frame.inputs(step, version)
        plan = _step_plan(request.plan, index, step, version, inputs)
        if version.decoupled and request.takes_many:
            self._is_stream = True
            # The step's responses become responses of the ensemble; the frame itself never will.
            self._unsent.pop(frame, None)
        child = (StreamedStep if request.takes_many else StepRequest)(self, index, plan, inputs, frame)
        try:
            version.submit(child)
        except IsochroneError as error:
            child.fail(error)

    # Answers of steps.

    def step_done(self, child: StepRequest, outputs: Tensors) -> None:
        self.request.note_step(child.plan.model_name, now_ns() - child.arrived)
        if child.takes_many and self.versions[child.index].decoupled:
            # A decoupled model that answered once, without a stream.
            self.step_responded(child, outputs)
            self.step_ended()
            return
        self._running_steps -= 1
        if not self._done:
            self._take(child, child.frame, outputs)

    def step_responded(self, child: StepRequest, outputs: Tensors) -> None:
        """A decoupled step returned one response of several."""
        if not self._done:
            frame = child.frame.branch()
            self._unsent[frame] = None
            self._take(child, frame, outputs)

    def step_ended(self) -> None:
        """A decoupled step returned its last response."""
        self._running_steps -= 1
        if not self._done and not self._running_steps:
            self._end_stream()

    def _take(self, child: StepRequest, frame: Frame, outputs: Tensors) -> None:
        rows = child.plan.batch_size if self.versions[child.index].batched and child.plan.inputs else 0
        frame.add(self._graph.steps[child.index], outputs, rows)
        self._advance(frame)

    def step_failed(self, error: IsochroneError) -> None:
        self._running_steps -= 1
        # A copy: the callers of a batch share the error.
        self.fail(error.within(f"in ensemble '{self._graph.name}'", ", "))

    def step_dropped(self) -> None:
        """A step has no answer: the caller has disconnected, or another step failed."""
        self._running_steps -= 1
        self.fail(Cancelled("the caller has gone"))

    # Answers of the ensemble.

    def _finish(self, frame: Frame) -> None:
        if self._is_stream:
            self._end_stream()
            return
        try:
            outputs = frame.outputs(self._graph, self._outputs)
        except ValueError as error:
            self.fail(self._wrong_shape(error))
            return
        if outputs is None:
            self.fail(self._deadlock())
            return
        self._end(None)
        if self.request.cancelled:
            self.request.dropped()
        else:
            answer(self.request, outputs, self._parameters(outputs))

    def _end(self, error: IsochroneError | None) -> None:
        self._done = True
        self._ended(self, error)

    def _wrong_shape(self, error: ValueError) -> ModelFailed:
        return ModelFailed(f"in ensemble '{self._graph.name}', an output cannot be reshaped: {error}")

    def _deadlock(self) -> InvalidArgument:
        return InvalidArgument(
            f"in ensemble '{self._graph.name}', unexpected deadlock, at least one output is not set while no"
            " more ensemble steps can be made"
        )

    def _parameters(self, outputs: Tensors) -> Parameters:
        """As in Triton, every response of an ensemble names its sequence, unless it holds no data."""
        for array in outputs.values():
            if array.size:
                break
        else:
            return NO_PARAMETERS
        plan = self.request.plan
        if not plan.sequence_id and not plan.sequence_start and not plan.sequence_end:
            return _NO_SEQUENCE
        return _sequence(plan.sequence_id, plan.sequence_start, plan.sequence_end)

    def _complete_frame(self, frame: Frame) -> None:
        """Sends the responses that are ready, in the order in which decoupled steps made them."""
        unsent = self._unsent
        if frame not in unsent:
            return
        try:
            outputs = frame.outputs(self._graph, self._outputs)
        except ValueError as error:
            self.fail(self._wrong_shape(error))
            return
        if outputs is None:
            return
        unsent[frame] = outputs
        while unsent:
            first = next(iter(unsent))
            ready = unsent[first]
            if ready is None:
                break
            del unsent[first]
            if not self.request.cancelled:
                self.request.emit(ready, self._parameters(ready))
        self._unblock()

    def _end_stream(self) -> None:
        if self._unsent:
            self.fail(self._deadlock())
            return
        self._end(None)
        self._unblock()
        if self.request.cancelled:
            self.request.dropped()
        else:
            self.request.finish()

    def fail(self, error: IsochroneError) -> None:
        if self._done:
            return
        # A step that rejects it may follow one that has run.
        error = error.begun()
        self._end(error)
        self._unsent.clear()
        self._unblock()
        if self.request.cancelled:
            self.request.dropped()
        else:
            self.request.fail(error)

    def shares_inputs(self, index: int) -> bool:
        """Whether another step, another response or the caller may read what a step reads."""
        return self._is_stream or bool(self._graph.shared_inputs[index]) or self.request.shares_inputs

    def shares_input(self, index: int, name: str) -> bool:
        graph = self._graph
        if self._is_stream or name in graph.shared_inputs[index]:
            return True
        return self.request.shares_inputs and graph.steps[index].inputs[name] in graph.inputs

    def keeps_on_device(self, index: int, output: str) -> bool:
        """Whether an output of a step may stay on a device: everyone who reads it takes it so.

        Called on the thread of the model, and only for tensors on devices.
        """
        tensor = self._graph.steps[index].outputs.get(output)
        if tensor is None or (tensor in self._graph.outputs and not self.request.keeps_on_device(tensor)):
            return False
        return all(self.versions[reader].takes_device_arrays for reader in self._graph.readers(tensor))

    # Back-pressure.

    @property
    def is_over(self) -> bool:
        return self._done or self.request.cancelled

    @property
    def is_congested(self) -> bool:
        return len(self._unsent) >= _FRAMES_AHEAD or self.request.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        if len(self._unsent) >= _FRAMES_AHEAD:
            self._blocked.append(callback)
        else:
            self.request.when_writable(callback)

    def _unblock(self) -> None:
        if self._blocked and (self._done or len(self._unsent) < _FRAMES_AHEAD):
            blocked, self._blocked = self._blocked, []
            for callback in blocked:
                callback()


def _step_plan(plan: Plan, index: int, step: Step, version: ServedVersion, inputs: Tensors) -> Plan:
    """The plan of a step's request, memoised on the plan of the ensemble's request."""
    # An optional input may be absent.
    key = (index, version, *inputs, *[(array.shape, array.dtype) for array in inputs.values()])
    memo = plan.step_plans
    if memo is None:
        memo = plan.step_plans = {}
    known = memo.get(key)
    if known is None:
        if len(memo) >= _MAX_STEP_PLANS:
            memo.clear()
        known = memo[key] = Plan(
            step.model,
            version.model_version,
            tuple((name, name_of(array.dtype), array.shape) for name, array in inputs.items()),
            tuple(step.outputs),
            plan.parameters,
            priority=plan.priority,
            sequence_id=plan.sequence_id,
            sequence_start=plan.sequence_start,
            sequence_end=plan.sequence_end,
        )
    return known


class StepRequest(InferRequest):
    """The request that the model of a step receives; its answer goes to the run.

    This class is for a caller that takes one answer: a decoupled model must return exactly one response.
    """

    __slots__ = ("_outputs", "_run", "frame", "index")

    def __init__(self, run: EnsembleRun, index: int, plan: Plan, inputs: Tensors, frame: Frame) -> None:
        super().__init__(plan, run.request.id, inputs, now_ns(), run.request.deadline)
        self._run = run
        self.index = index
        #: The tensors that the step runs on.
        self.frame = frame
        #: The response of a decoupled model, until the model has no other.
        self._outputs: Tensors | None = None

    # If another step fails, or the caller disconnects, queued steps are dropped.
    @property
    def cancelled(self) -> bool:
        return self._run.is_over

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        """Ignored: the run decides."""

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._run.request.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self._run.trace_context

    @property
    def division(self) -> str:
        return self._run.request.division

    @property
    def shares_inputs(self) -> bool:
        return self._run.shares_inputs(self.index)

    def shares_input(self, name: str) -> bool:
        return self._run.shares_input(self.index, name)

    def keeps_on_device(self, output: str) -> bool:
        return self._run.keeps_on_device(self.index, output)

    @property
    def call_chain(self) -> tuple[Any, ...]:
        return self._run.request.call_chain

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._run.step_done(self, outputs)

    def fail(self, error: IsochroneError) -> None:
        self._run.step_failed(error)

    def dropped(self) -> None:
        self._run.step_dropped()

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        if self._outputs is not None:
            # Ends the run, so further responses of the model are dropped.
            self._run.fail(Unsupported(f"ensemble step '{self.plan.model_name}': expected one response, given several"))
        self._outputs = outputs

    def finish(self) -> None:
        if self._outputs is None:
            self._run.step_failed(
                ModelFailed(f"ensemble step '{self.plan.model_name}': expected one response, given none")
            )
        else:
            self._run.step_done(self, self._outputs)


class StreamedStep(StepRequest):
    """A step for a caller that takes many responses: a decoupled model may return any number."""

    __slots__ = ()

    takes_many: ClassVar[bool] = True

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._run.step_responded(self, outputs)

    def finish(self) -> None:
        self._run.step_ended()

    @property
    def is_congested(self) -> bool:
        return self._run.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._run.when_writable(callback)
