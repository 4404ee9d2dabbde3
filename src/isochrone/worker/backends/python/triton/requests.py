"""``pb_utils.InferenceRequest``: what ``execute`` is given, and what a model builds to call another model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

from isochrone.clock import MICROSECOND
from isochrone.worker.backends.python.triton.failures import TritonModelException
from isochrone.worker.backends.python.triton.responses import (
    InferenceResponse,
    InferenceResponseSender,
    Outlet,
    ResponseIterator,
    checked_parameters,
    compact_json,
)
from isochrone.worker.backends.python.triton.server import ModelCall, RunningErrands, Server
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Parameter

SEQUENCE_START, SEQUENCE_END = 1, 2
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2

_MISSING: Any = object()

#: Makes the outlet of a request that asks for these outputs; and whether its model is decoupled.
MakeOutlet = Callable[[set[str]], tuple[Outlet, bool]]


class PreferredMemory:
    """Where a caller wants the outputs of a call. It has no effect: they are in the host's memory."""

    def __init__(self, preferred_memory_type: Any, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """``request.trace()``: its context is always None, since models are not given that of the request."""

    def get_context(self) -> str | None:
        return None


_NO_TRACE = InferenceTrace()


class InferenceRequest:
    """A request; ``utilities`` makes a subclass for each model instance, bound to its server."""

    _server: ClassVar[Server]
    _errands: ClassVar[RunningErrands]

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_make_outlet",
        "_model_name",
        "_model_version",
        "_parameters",
        "_parameters_text",
        "_received",
        "_request_id",
        "_requested_output_names",
        "_sender",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] = _MISSING,
        requested_output_names: Iterable[str] = _MISSING,
        model_name: str = _MISSING,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        for argument, value in (
            ("inputs", inputs),
            ("requested_output_names", requested_output_names),
            ("model_name", model_name),
        ):
            if value is _MISSING or value is None:
                raise TypeError(f"InferenceRequest: expected the argument {argument}")
        if not isinstance(correlation_id, int | str):
            raise TritonModelException("Correlation ID must be integer or string")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs: list[Tensor] | None = list(inputs)
        self._requested_output_names = set(requested_output_names)
        self._model_name = model_name
        self._model_version = int(model_version)
        self._flags = flags
        self._timeout = timeout
        self._trace = trace or _NO_TRACE
        self._parameters = checked_parameters(parameters)
        self._parameters_text: str | None = None
        self._received: Any = None
        self._make_outlet: MakeOutlet | None = None
        self._sender: InferenceResponseSender | None = None
        self._check_parts()

    def _check_parts(self) -> None:
        place = f"request with id '{self._request_id}' and model name '{self._model_name}' should not be empty."
        for tensor in self._inputs or ():
            if tensor is None:
                raise TritonModelException(f"Input tensor for {place}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"inputs: expected Tensor objects, given a {type(tensor).__name__}")
        if "" in self._requested_output_names:
            raise TritonModelException(f"Requested output name for {place}")

    @classmethod
    def received(
        cls,
        request: InferRequest,
        outputs: set[str],
        make_outlet: MakeOutlet,
    ) -> InferenceRequest:
        """A request that the server received; ``outputs``: those it asks for; the outlet is made when it is needed."""
        self = cls.__new__(cls)
        plan = request.plan
        self._request_id = request.id
        self._correlation_id = plan.sequence_id
        self._inputs = None
        self._requested_output_names = outputs
        self._model_name = plan.model_name
        self._model_version = -1
        self._flags = plan.sequence_start * SEQUENCE_START | plan.sequence_end * SEQUENCE_END
        self._timeout = plan.timeout_ns // MICROSECOND
        self._trace = _NO_TRACE
        self._parameters = plan.parameters
        self._parameters_text = None
        self._received = request
        self._make_outlet = make_outlet
        self._sender = None
        return self

    def inputs(self) -> list[Tensor]:
        if self._inputs is None:
            received = self._received
            shared = received.shares_inputs
            self._inputs = [
                Tensor.of_request(name, array, shared and received.shares_input(name))
                for name, array in received.inputs.items()
            ]
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        return self._timeout

    def parameters(self) -> str:
        if self._parameters_text is None:
            self._parameters_text = compact_json(self._parameters)
        return self._parameters_text

    def trace(self) -> InferenceTrace:
        return self._trace

    def model_name(self) -> str:
        return self._model_name

    def requested_output_names(self) -> set[str]:
        return self._requested_output_names

    def is_cancelled(self) -> bool:
        return self._received is not None and bool(self._received.cancelled)

    def set_release_flags(self, flags: int) -> None:
        if flags == RELEASE_RESCHEDULE:
            raise TritonModelException(
                "Request rescheduling needs sequence_batching { iterative_sequence: true }, which this server does not"
                " support."
            )

    def get_response_sender(self) -> InferenceResponseSender:
        if self._sender is None:
            if self._make_outlet is None:
                raise TritonModelException(
                    "Unable to send response. Response sender has no reference to the decoupled state of the model."
                )
            self._sender = InferenceResponseSender(*self._make_outlet(self._requested_output_names))
        return self._sender

    # Calls of other models.

    def exec(self, decoupled: bool = False) -> Any:
        """Runs the request and waits for its response, or for the first of several."""
        if not self._server.may_block:
            raise TritonModelException(
                'exec() was called where the server must not wait: set the parameter inline: "false" in config.pbtxt'
            )
        responses: SimpleQueue[tuple[InferenceResponse, bool]] = SimpleQueue()
        cancel = self._server.call(self._call(decoupled), lambda *response: responses.put(response))
        first, is_last = responses.get()
        return _iterator(first, is_last, responses, cancel) if decoupled else first

    def async_exec(self, decoupled: bool = False) -> Awaitable[Any]:
        """The same, for a coroutine of the model."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        responses: SimpleQueue[tuple[InferenceResponse, bool]] = SimpleQueue()

        def arrived(response: InferenceResponse, is_last: bool) -> None:
            if not future.done():
                future.set_result(_iterator(response, is_last, responses, cancel) if decoupled else response)

        is_first = [True]

        def deliver(response: InferenceResponse, is_last: bool) -> None:
            if not is_first:
                responses.put((response, is_last))
                return
            is_first.clear()
            try:
                loop.call_soon_threadsafe(arrived, response, is_last)
            except RuntimeError:  # the model's loop has ended
                pass

        cancel = self._server.call(self._call(decoupled), deliver)
        # A coroutine that was cancelled reads nothing, and the called model must not wait for it.
        future.add_done_callback(lambda done: cancel() if done.cancelled() else None)
        return future

    def stream_exec(self) -> Any:
        """The name of ``exec(decoupled=True)`` in early versions of Triton."""
        return self.exec(decoupled=True)

    def async_stream_exec(self) -> Awaitable[Any]:
        return self.async_exec(decoupled=True)

    def _call(self, takes_many: bool) -> ModelCall:
        return ModelCall(
            model_name=self._model_name,
            model_version=self._model_version,
            inputs=self.inputs(),
            outputs=frozenset(self._requested_output_names),
            request_id=self._request_id,
            correlation_id=self._correlation_id,
            flags=self._flags,
            timeout_us=self._timeout,
            parameters=self._parameters,
            takes_many=takes_many,
            errand=self._errands.current(),
        )

    # For the server.

    @property
    def received_as(self) -> InferRequest:
        """The request of the worker that this one was made of."""
        received: InferRequest = self._received
        return received

    @property
    def sender(self) -> InferenceResponseSender | None:
        """The response sender, if the model has asked for it."""
        return self._sender

    def disown(self) -> None:
        """Its answer does not come from the model any more."""
        self._make_outlet = None

    def let_go(self) -> None:
        """The model has let go of a request without asking for its sender: nothing will answer it."""
        make_outlet, self._make_outlet = self._make_outlet, None
        if self._sender is None and make_outlet is not None:
            make_outlet(self._requested_output_names)[0].abandoned(had_sender=False)

    def __del__(self) -> None:
        if getattr(self, "_make_outlet", None) is not None:
            self.let_go()


def _iterator(
    first: InferenceResponse,
    is_last: bool,
    others: SimpleQueue[tuple[InferenceResponse, bool]],
    cancel: Callable[[], None],
) -> ResponseIterator:
    pending = [(first, is_last)]
    return ResponseIterator(lambda: pending.pop() if pending else others.get(), cancel)
