"""The request of one model to another: the called model's answer goes back to the thread of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from isochrone.clock import now_ns
from isochrone.errors import Cancelled
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Plan
from isochrone.worker.backends.python.triton.failures import triton_error
from isochrone.worker.backends.python.triton.responses import InferenceResponse, compact_json
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import Parameters, Tensors
    from isochrone.worker.backends.python.triton.server import Deliver


class CalledRequest(InferRequest):
    """For a caller that takes one response. On the loop's thread."""

    __slots__ = ("_chain", "_deliver", "_is_over")

    def __init__(
        self, plan: Plan, request_id: str, inputs: Tensors, deadline: int, chain: tuple[Any, ...], deliver: Deliver
    ) -> None:
        super().__init__(plan, request_id, inputs, now_ns(), deadline)
        self._chain = chain
        self._deliver = deliver
        self._is_over = False

    @property
    def shares_inputs(self) -> bool:
        """The caller keeps its tensors."""
        return True

    @property
    def call_chain(self) -> tuple[Any, ...]:
        return self._chain

    def endpoint(self) -> str:
        return "BLS"

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._send(_response(outputs, parameters), is_last=True)

    def fail(self, error: IsochroneError) -> None:
        self._send(InferenceResponse.received([], triton_error(error), ""), is_last=True)

    def refuse(self, response: InferenceResponse) -> None:
        """The called model did not take the request."""
        self._send(response, is_last=True)

    def dropped(self) -> None:
        self.fail(Cancelled("the call was cancelled"))

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._send(_response(outputs, parameters), is_last=False)

    def finish(self) -> None:
        # As in Triton: a last response that came without tensors is one without tensors.
        self._send(InferenceResponse.received([], None, ""), is_last=True)

    def finish_with(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._send(_response(outputs, parameters), is_last=True)

    def _send(self, response: InferenceResponse, *, is_last: bool) -> None:
        if not self._is_over:
            self._is_over = is_last
            self._deliver(response, is_last)


class CalledStream(CalledRequest):
    """A call whose caller takes any number of responses."""

    __slots__ = ()

    takes_many: ClassVar[bool] = True


def _response(outputs: Tensors, parameters: Parameters) -> InferenceResponse:
    tensors = [Tensor.of_request(name, array, is_shared=False) for name, array in outputs.items()]
    return InferenceResponse.received(tensors, None, compact_json(parameters))
