"""The ``reshape`` option of inputs and outputs: callers see one shape, the model another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from isochrone.errors import IsochroneError, ModelFailed
from isochrone.protocol.response_outputs import ResponseOutputs, parameters_of
from isochrone.worker.backends.interface import Answer, Executable, PostingOutlet

if TYPE_CHECKING:
    from isochrone.models.signature import Signature, TensorSpec
    from isochrone.protocol.messages import InferRequest, Parameters, Tensor, Tensors


def new_shape(
    shape: tuple[int, ...], declared: tuple[int, ...], target: tuple[int, ...], batched: bool
) -> tuple[int, ...]:
    """Converts the shape of a tensor declared as ``declared`` to ``target``.

    Free sizes keep their order: validation ensures that the products of the fixed sizes between them are equal. A
    tensor whose rank differs from ``declared`` is left to numpy, which can infer one free size.
    """
    front, own = (shape[:1], shape[1:]) if batched else ((), shape)
    if -1 not in target or len(own) != len(declared):
        return (*front, *target)
    free = iter([size for size, stated in zip(own, declared, strict=True) if stated == -1])
    return (*front, *(next(free) if size == -1 else size for size in target))


def reshaped(executable: Executable, signature: Signature) -> Executable:
    """The executable itself, or a wrapper that reshapes its tensors if the configuration requires it."""
    if any(spec.reshape is not None for spec in (*signature.inputs, *signature.outputs)):
        return _Reshaping(executable, signature)
    return executable


class _Reshaping(Executable):
    def __init__(self, inner: Executable, signature: Signature) -> None:
        self._inner = inner
        self._batched = signature.max_batch_size > 0
        self._inputs = {spec.name: spec for spec in signature.inputs if spec.reshape is not None}
        self._outputs = {spec.name: spec for spec in signature.outputs if spec.reshape is not None}
        self.decoupled = inner.decoupled
        self.inline_allowed = inner.inline_allowed
        self.only_computes = inner.only_computes
        self.is_async = inner.is_async
        self.takes_requests = inner.takes_requests
        # What overlaps is called by ``execute`` here, which takes arrays of the host.
        self.takes_device_arrays = inner.takes_device_arrays and inner.takes_requests
        self.warms_up = inner.warms_up
        self.pads = inner.pads
        self.captured_graphs = inner.captured_graphs
        inner.outlet_of = self._reshaping_outlet

    def is_available(self) -> bool:
        return self._inner.is_available()

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        results = self._after(self._inner.execute(self._before(inputs), outputs))
        self.padded_rows = self._inner.padded_rows
        return results

    def stream(self, inputs: Tensors, parameters: Parameters) -> Iterator[Tensors] | AsyncIterator[Tensors]:
        responses = self._inner.stream(self._before(inputs), parameters)
        if isinstance(responses, AsyncIterator):
            return self._after_each_async(responses)
        return self._after_each(responses)

    def _after_each(self, responses: Iterator[Tensors]) -> Iterator[Tensors]:
        try:
            for outputs in responses:
                yield self._after(outputs)
        finally:
            # The model's clean-up runs when the caller disconnects, not at the next garbage collection.
            if isinstance(responses, Generator):
                responses.close()

    async def _after_each_async(self, responses: AsyncIterator[Tensors]) -> AsyncIterator[Tensors]:
        try:
            async for outputs in responses:
                yield self._after(outputs)
        finally:
            if isinstance(responses, AsyncGenerator):
                await responses.aclose()

    def execute_requests(self, requests: Sequence[InferRequest]) -> list[Answer]:
        for request in requests:
            request.inputs = self._before(request.inputs)
        return [self._reshaped_answer(answer) for answer in self._inner.execute_requests(requests)]

    def _reshaping_outlet(self, request: InferRequest) -> PostingOutlet:
        return _ReshapingOutlet(self.outlet_of(request), self._reshaped_answer)

    def _reshaped_answer(self, answer: Answer) -> Answer:
        if answer is None or isinstance(answer, IsochroneError):
            return answer
        try:
            outputs = self._after(answer)
        except ValueError as error:
            return ModelFailed(f"an output cannot be reshaped as config.pbtxt declares: {error}")
        parameters = parameters_of(answer)
        return ResponseOutputs(outputs, parameters) if parameters else outputs

    def close(self) -> None:
        self._inner.close()

    def _before(self, inputs: Tensors) -> Tensors:
        given = dict(inputs)
        for name, spec in self._inputs.items():
            if name in given:
                array = given[name]
                given[name] = array.reshape(new_shape(array.shape, spec.dims, spec.reshape or (), self._batched))
        return given

    def _after(self, outputs: Tensors) -> Tensors:
        given = dict(outputs)
        for name, spec in self._outputs.items():
            if name in given:
                given[name] = self._reshape_output(given[name], spec)
        return given

    def _reshape_output(self, array: Tensor, spec: TensorSpec) -> Tensor:
        return array.reshape(new_shape(array.shape, spec.reshape or (), spec.dims, self._batched))


class _ReshapingOutlet:
    """Reshapes the answers that an executable sends itself."""

    __slots__ = ("_outlet", "_reshaped")

    def __init__(self, outlet: PostingOutlet, reshaped: Callable[[Answer], Answer]) -> None:
        self._outlet = outlet
        self._reshaped = reshaped

    def send(self, answer: Answer, is_last: bool) -> None:
        self._outlet.send(self._reshaped(answer), is_last)

    def post(self, answer: Answer, taken: Callable[[], None]) -> None:
        self._outlet.post(self._reshaped(answer), taken)

    def is_cancelled(self) -> bool:
        return self._outlet.is_cancelled()
