"""What the model of a step sees: a request whose answer goes to the ensemble's run, and from there to the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError, ModelFailed, Unsupported
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.ensembles.run import EnsembleRun, Frame


class StepRequest(InferRequest):
    """For a caller that takes one answer: a decoupled model must give one response."""

    __slots__ = ("_outputs", "_run", "frame", "index")

    def __init__(self, run: EnsembleRun, index: int, plan: Plan, inputs: Tensors, frame: Frame) -> None:
        super().__init__(plan, run.id, inputs, now_ns(), run.deadline)
        self._run = run
        self.index = index
        #: The tensors it runs on.
        self.frame = frame
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
        self._run.step_done(self, outputs)

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
            self._run.step_done(self, self._outputs)


class StreamedStep(StepRequest):
    """For a caller that takes many responses: a decoupled model gives as many as it likes."""

    __slots__ = ()

    takes_many = True

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._run.step_responded(self, outputs)

    def finish(self) -> None:
        self._run.step_ended()

    @property
    def is_congested(self) -> bool:
        return self._run.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._run.when_writable(callback)
