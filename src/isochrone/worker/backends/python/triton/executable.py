"""A Triton model inside the worker's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Answer, Executable, LoadContext
from isochrone.worker.backends.python.triton.model import TritonModel, TritonModelContext
from isochrone.worker.backends.python.triton.samples import no_outlet, sample_outputs, sample_request
from isochrone.worker.backends.python.triton.server import Server

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors


class TritonExecutable(Executable):
    """Runs the requests of the worker on the model, as they are."""

    takes_requests = True
    # Unlike our own models, Triton's are never run before the first request: they may count what they are asked.
    warms_up = False

    def __init__(
        self, context: TritonModelContext, server: Server, *, may_run_inline: bool, takes_device_arrays: bool = False
    ) -> None:
        self._model = TritonModel(context, server)
        self._name = context.model_name
        self.takes_device_arrays = takes_device_arrays
        self.decoupled = context.decoupled
        self.is_async = self._model.is_async
        # A model that calls or loads others waits for the event loop's thread, and must not run on it.
        self.inline_allowed = may_run_inline and not self.is_async and not self._model.calls_others

    def execute_requests(self, requests: Sequence[InferRequest]) -> list[Answer]:
        return self._model.execute(requests, self.outlet_of)

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        """One run without a caller: a sample of model_warmup."""
        (answer,) = self._model.execute((sample_request(self._name, inputs, outputs),), no_outlet)
        return sample_outputs(self._name, answer)

    def close(self) -> None:
        self._model.close()


def load(context: LoadContext, model_context: TritonModelContext) -> Executable:
    inline = parameters.boolean(context, "inline", True)
    # Triton's parameter. By default a model may call as_numpy() on every input.
    on_host = parameters.boolean(context, "FORCE_CPU_ONLY_INPUT_TENSORS", True)
    return TritonExecutable(model_context, context.server, may_run_inline=inline, takes_device_arrays=not on_host)
