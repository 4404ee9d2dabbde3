"""One request on its way through the steps of an ensemble; tensors are handed from step to step as they are.

A step starts as soon as its inputs are there, so independent steps run at once; steps that no requested output needs do
not run. Deadline, priority, id and parameters go with every step. Each response of a decoupled step goes on through the
later steps on its own, in a ``Frame``; the ensemble's responses leave in the order in which those were made.

An input that was left out, or an output that a model did not give, is None among the tensors: the steps behind it run
without it, and their signatures say whether they can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import Cancelled, InvalidArgument, IsochroneError, ModelFailed
from isochrone.protocol.messages import NO_PARAMETERS, Plan
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.ensembles.shapes import fit_shape
from isochrone.worker.ensembles.step_request import StepRequest, StreamedStep
from isochrone.worker.execution.batch import answer
from isochrone.worker.execution.reshape import new_shape

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Parameters, Tensor, Tensors
    from isochrone.worker.ensembles.graph import EnsembleGraph, Step
    from isochrone.worker.ensembles.runner import EnsembleRunner
    from isochrone.worker.served_version import ServedVersion

#: Responses of decoupled steps on their way through later steps before the model has to wait.
_FRAMES_AHEAD = 16


def _sequence(identity: int | str, start: bool, end: bool) -> Parameters:
    return {"sequence_id": identity, "sequence_start": start, "sequence_end": end}


_NO_SEQUENCE = _sequence(0, False, False)


class Frame:
    """The tensors that belong together: of the request, or of one response of a decoupled step."""

    __slots__ = ("rows", "started", "tensors")

    def __init__(self, tensors: dict[str, Tensor | None], rows: dict[str, int], started: set[int]) -> None:
        self.tensors = tensors
        #: Batch size of each tensor, 0 where its maker does not batch; only kept where steps with and without mix.
        self.rows = rows
        #: Indices of the steps that have run on these tensors, or run now.
        self.started = started

    def branch(self) -> Frame:
        return Frame(dict(self.tensors), dict(self.rows), set(self.started))


class EnsembleRun:
    """One request on its way through the graph. All on the loop's thread."""

    __slots__ = (
        "_blocked",
        "_done",
        "_graph",
        "_is_mixed",
        "_is_stream",
        "_needed",
        "_request",
        "_runner",
        "_under_way",
        "_unsent",
        "_versions",
        "_wanted",
    )

    def __init__(self, runner: EnsembleRunner, request: InferRequest, versions: list[ServedVersion]) -> None:
        graph: EnsembleGraph = runner.graph
        self._runner = runner
        self._graph = graph
        self._request = request
        self._versions = versions
        self._wanted = request.plan.outputs or tuple(graph.outputs)
        self._needed = graph.needed(request.plan.outputs or None)
        self._is_mixed = False
        for version in versions:
            if version.batched != graph.batched:
                self._is_mixed = True
        #: A decoupled step has begun for a caller that takes many responses.
        self._is_stream = False
        #: Of a stream: frames that may become responses, oldest first; None until their outputs are there.
        self._unsent: dict[Frame, Tensors | None] = {}
        #: Decoupled models that wait until frames have left.
        self._blocked: list[Callable[[], None]] = []
        self._under_way = 0
        self._done = False

    def start(self) -> None:
        request = self._request
        request.dispatched = request.compute_start = request.infer_start = now_ns()
        self._advance(self._first_frame())

    def _first_frame(self) -> Frame:
        request, graph = self._request, self._graph
        tensors: dict[str, Tensor | None] = dict(request.inputs)
        if len(tensors) < len(graph.inputs):
            for name in graph.inputs:
                tensors.setdefault(name, None)
        if graph.reshapes_inputs:
            for name, spec in graph.inputs.items():
                array = tensors[name]
                if array is not None and spec.reshape is not None:
                    tensors[name] = array.reshape(new_shape(array.shape, spec.dims, spec.reshape, graph.batched))
        rows = dict.fromkeys(tensors, request.plan.batch_size if graph.batched else 0) if self._is_mixed else {}
        return Frame(tensors, rows, set())

    def _advance(self, frame: Frame) -> None:
        """Starts every step whose inputs are there; ends when the outputs are."""
        tensors, steps = frame.tensors, self._runner.steps
        for index in self._needed:
            if self._done:
                return
            if index in frame.started:
                continue
            for tensor in steps[index].inputs.values():
                if tensor not in tensors:
                    break
            else:
                frame.started.add(index)
                self._under_way += 1
                self._run_step(index, steps[index], frame)
        if self._done:
            return
        if self._is_stream:
            self._complete_frame(frame)
        if not self._under_way and not self._done:
            self._finish(frame)

    def _run_step(self, index: int, step: Step, frame: Frame) -> None:
        request = self._request
        if request.cancelled:
            self._under_way -= 1
            self.fail(Cancelled("the caller has gone"))
            return
        version = self._versions[index]
        inputs = self._inputs(step, version, frame)
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
        if version.decoupled and request.takes_many:
            self._is_stream = True
            # What it gives becomes responses; the frame itself never will.
            self._unsent.pop(frame, None)
        child = (StreamedStep if request.takes_many else StepRequest)(self, index, plan, inputs, frame)
        try:
            version.submit(child)
        except IsochroneError as error:
            child.fail(error)

    def _inputs(self, step: Step, version: ServedVersion, frame: Frame) -> Tensors:
        inputs: Tensors = {}
        for name, tensor in step.inputs.items():
            array = frame.tensors[tensor]
            if array is None:
                continue
            if self._is_mixed:
                spec = version.signature.input_by_name.get(name)
                dims = spec.dims if spec is not None else ()
                array = array.reshape(fit_shape(array.shape, frame.rows[tensor], dims, version.batched))
            inputs[name] = array
        return inputs

    def step_done(self, child: StepRequest, outputs: Tensors) -> None:
        self._request.note_step(child.plan.model_name, now_ns() - child.arrived)
        if child.takes_many and self._versions[child.index].decoupled:
            # Its only response, all at once.
            self.step_responded(child, outputs)
            self.step_ended()
            return
        self._under_way -= 1
        if not self._done:
            self._take(child, child.frame, outputs)

    def step_responded(self, child: StepRequest, outputs: Tensors) -> None:
        """A decoupled step has given one response of several."""
        if not self._done:
            frame = child.frame.branch()
            self._unsent[frame] = None
            self._take(child, frame, outputs)

    def step_ended(self) -> None:
        """A decoupled step has given its last response."""
        self._under_way -= 1
        if not self._done and not self._under_way:
            self._end_stream()

    def _take(self, child: StepRequest, frame: Frame, outputs: Tensors) -> None:
        version = self._versions[child.index]
        rows = child.plan.batch_size if version.batched and child.plan.inputs else 0
        for name, tensor in self._runner.steps[child.index].outputs.items():
            frame.tensors[tensor] = outputs.get(name)
            if self._is_mixed:
                frame.rows[tensor] = rows
        self._advance(frame)

    def step_failed(self, error: IsochroneError) -> None:
        self._under_way -= 1
        # Not the error itself: the callers of a batch share one.
        self.fail(error.within(f"in ensemble '{self._runner.model_name}'", ", "))

    def step_dropped(self) -> None:
        """A step did not answer, because nobody waits: the caller has gone, or a sibling failed."""
        self._under_way -= 1
        self.fail(Cancelled("the caller has gone"))

    # Out.

    def _outputs(self, frame: Frame) -> Tensors | None:
        """What the caller gets; None: something is not there yet."""
        graph, outputs = self._graph, {}
        for name in self._wanted:
            if name not in frame.tensors:
                return None
            array = frame.tensors[name]
            if array is None:
                continue
            spec = graph.outputs[name]
            if self._is_mixed:
                dims = spec.dims if spec.reshape is None else spec.reshape
                array = array.reshape(fit_shape(array.shape, frame.rows[name], dims, graph.batched))
            if spec.reshape is not None:
                array = array.reshape(new_shape(array.shape, spec.reshape, spec.dims, graph.batched))
            outputs[name] = array
        return outputs

    def _finish(self, frame: Frame) -> None:
        if self._is_stream:
            self._end_stream()
            return
        request, runner = self._request, self._runner
        try:
            outputs = self._outputs(frame)
        except ValueError as error:
            self.fail(ModelFailed(f"in ensemble '{runner.model_name}', an output cannot be reshaped: {error}"))
            return
        if outputs is None:
            self.fail(self._deadlock())
            return
        self._done = True
        runner.record(request, None)
        runner.finished(self, self._versions)
        if request.cancelled:
            request.dropped()
        else:
            answer(request, outputs, self._parameters(outputs))

    def _deadlock(self) -> InvalidArgument:
        return InvalidArgument(
            f"in ensemble '{self._runner.model_name}', unexpected deadlock, at least one output is not set while no"
            " more ensemble steps can be made"
        )

    def _parameters(self, outputs: Tensors) -> Parameters:
        """Triton's: every response of an ensemble tells its sequence, unless it holds no data."""
        for array in outputs.values():
            if array.size:
                break
        else:
            return NO_PARAMETERS
        plan = self._request.plan
        if not plan.sequence_id and not plan.sequence_start and not plan.sequence_end:
            return _NO_SEQUENCE
        return _sequence(plan.sequence_id, plan.sequence_start, plan.sequence_end)

    def _complete_frame(self, frame: Frame) -> None:
        """Sends what is ready, in the order in which decoupled steps made it."""
        unsent = self._unsent
        if frame not in unsent:
            return
        try:
            outputs = self._outputs(frame)
        except ValueError as error:
            self.fail(ModelFailed(f"in ensemble '{self._runner.model_name}', an output cannot be reshaped: {error}"))
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
            if not self._request.cancelled:
                self._request.emit(ready, self._parameters(ready))
        self._unblock()

    def _end_stream(self) -> None:
        request, runner = self._request, self._runner
        if self._unsent:
            self.fail(self._deadlock())
            return
        self._done = True
        runner.record(request, None)
        runner.finished(self, self._versions)
        self._unblock()
        if request.cancelled:
            request.dropped()
        else:
            request.finish()

    def fail(self, error: IsochroneError) -> None:
        if self._done:
            return
        self._done = True
        self._runner.record(self._request, error)
        self._runner.finished(self, self._versions)
        self._unsent.clear()
        self._unblock()
        if self._request.cancelled:
            self._request.dropped()
        else:
            self._request.fail(error)

    # What steps ask.

    @property
    def id(self) -> str:
        return self._request.id

    @property
    def deadline(self) -> int:
        return self._request.deadline

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._request.stages

    @property
    def is_over(self) -> bool:
        return self._done or self._request.cancelled

    @property
    def is_congested(self) -> bool:
        return len(self._unsent) >= _FRAMES_AHEAD or self._request.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        if len(self._unsent) >= _FRAMES_AHEAD:
            self._blocked.append(callback)
        else:
            self._request.when_writable(callback)

    def _unblock(self) -> None:
        if self._blocked and (self._done or len(self._unsent) < _FRAMES_AHEAD):
            blocked, self._blocked = self._blocked, []
            for callback in blocked:
                callback()
