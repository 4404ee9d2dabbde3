"""The request of one model to another: the called model's answer goes back to the thread of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from isochrone.clock import NEVER, SECOND, now_ns
from isochrone.errors import Cancelled, DeadlineExceeded
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Plan
from isochrone.worker.backends.python.triton.failures import triton_error
from isochrone.worker.backends.python.triton.responses import InferenceResponse, compact_json
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import Parameters, Tensors
    from isochrone.worker.backends.python.triton.server import Deliver


#: Responses of one call that its caller has not taken yet before the called model has to wait.
_RESPONSES_UNREAD = 64


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

    def cancel(self) -> None:
        """The caller does not wait any more. From any thread."""
        self.cancelled = True

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._send(self._response(outputs, parameters), is_last=True)

    def fail(self, error: IsochroneError) -> None:
        self._send(InferenceResponse.received([], triton_error(error), ""), is_last=True)

    def refuse(self, response: InferenceResponse) -> None:
        """The called model did not take the request."""
        self._send(response, is_last=True)

    def dropped(self) -> None:
        self.fail(Cancelled("the call was cancelled"))

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._send(self._response(outputs, parameters), is_last=False)

    def finish(self) -> None:
        # As in Triton: a last response that came without tensors is one without tensors.
        self._send(InferenceResponse.received([], None, ""), is_last=True)

    def finish_with(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._send(self._response(outputs, parameters), is_last=True)

    def _response(self, outputs: Tensors, parameters: Parameters) -> InferenceResponse:
        """The caller may write to it: a model that passes an input on shares it with the caller's own tensor."""
        tensors = []
        for name, array in outputs.items():
            is_shared = any(np.may_share_memory(array, given) for given in self.inputs.values())
            tensors.append(Tensor.of_request(name, array, is_shared))
        return InferenceResponse.received(tensors, None, compact_json(parameters))

    def _send(self, response: InferenceResponse, *, is_last: bool) -> None:
        if not self._is_over:
            self._is_over = is_last
            self._deliver(response, is_last)


class CalledStream(CalledRequest):
    """A call whose caller takes any number of responses, one after another, from a thread of its own.

    It ends at its deadline: while its caller reads nothing, the called model waits, and so do the next callers.
    """

    __slots__ = ("_expiry", "_loop", "_unread", "_waiting")

    takes_many: ClassVar[bool] = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = asyncio.get_running_loop()
        self._unread = 0
        self._waiting: list[Callable[[], None]] = []
        self._expiry: asyncio.TimerHandle | None = None
        if self.deadline != NEVER:
            self._expiry = self._loop.call_later(max(0, self.deadline - now_ns()) / SECOND, self._expired)

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        response = self._response(outputs, parameters)
        response.taken = self._taken
        self._unread += 1
        self._send(response, is_last=False)

    @property
    def is_congested(self) -> bool:
        return self._unread >= _RESPONSES_UNREAD and not self.cancelled

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)

    # From any thread.

    def _taken(self) -> None:
        self._on_loop(self._one_less)

    def cancel(self) -> None:
        super().cancel()
        self._on_loop(self._caught_up)

    def _on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            pass

    # On the loop's thread.

    def _expired(self) -> None:
        self.fail(DeadlineExceeded("the deadline of the call passed before its last response"))
        self.cancel()

    def _send(self, response: InferenceResponse, *, is_last: bool) -> None:
        super()._send(response, is_last=is_last)
        if is_last and self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _one_less(self) -> None:
        self._unread -= 1
        if not self.is_congested:
            self._caught_up()

    def _caught_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
