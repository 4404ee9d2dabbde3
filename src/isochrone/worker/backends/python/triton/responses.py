"""``pb_utils.InferenceResponse``, its sender, and the iterator over the responses of a decoupled model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from isochrone.worker.backends.python.triton.failures import TritonError, TritonModelException
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import Parameter

COMPLETE_FINAL = 1


class InferenceResponse:
    """The answer to one request, or one of several."""

    __slots__ = ("_error", "_output_tensors", "_parameters", "_parameters_text", "taken")

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        self._output_tensors = list(output_tensors)
        for tensor in self._output_tensors:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"output_tensors: expected Tensor objects, given a {type(tensor).__name__}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error: expected a TritonError, given a {type(error).__name__}")
        self._error = error
        self._parameters = checked_parameters(parameters)
        self._parameters_text: str | None = None
        #: Called when the caller of another model takes one of several responses.
        self.taken: Callable[[], None] | None = None

    @classmethod
    def received(cls, tensors: list[Tensor], error: TritonError | None, parameters: str) -> InferenceResponse:
        """The response of another model; ``parameters``: as JSON."""
        response = cls(tensors, error)
        response._parameters_text = parameters
        return response

    def output_tensors(self) -> list[Tensor]:
        return self._output_tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self._parameters) if self._parameters_text is None else self._parameters_text

    # For the server.

    @property
    def given_parameters(self) -> Mapping[str, Parameter]:
        return self._parameters


_NONE: Mapping[str, Any] = {}


def checked_parameters(parameters: Mapping[str, Parameter] | None) -> Mapping[str, Parameter]:
    """Parameters that a model gives: of the types that the protocol has."""
    if not parameters:
        return _NONE
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)


def compact_json(parameters: Mapping[str, Parameter]) -> str:
    """As Triton's server writes parameters."""
    return json.dumps(dict(parameters), separators=(",", ":"), ensure_ascii=False) if parameters else "{}"


class Outlet(Protocol):
    """Where the responses to one request go. Called from any thread; may block while the caller reads slowly."""

    def send(self, response: InferenceResponse | None, is_last: bool) -> None: ...

    def is_cancelled(self) -> bool: ...

    def abandoned(self, *, had_sender: bool) -> None:
        """The model let go of the sender without a last response, or of the request without asking for its sender."""

    def fail(self, error: IsochroneError) -> None: ...


class InferenceResponseSender:
    """``request.get_response_sender()``: sends responses while ``execute`` runs, and after it returned."""

    def __init__(self, outlet: Outlet, is_decoupled: bool) -> None:
        self._outlet = outlet
        self._is_decoupled = is_decoupled
        self._lock = threading.Lock()
        self._sent = 0
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send: expected an InferenceResponse, given a {type(response).__name__}")
        is_last = flags == COMPLETE_FINAL
        self.count(response is not None, is_last)
        try:
            self._outlet.send(response, is_last)
        except BaseException:
            self.take_back(is_last)
            raise

    def is_cancelled(self) -> bool:
        return self._outlet.is_cancelled()

    # For the server.

    def count(self, has_response: bool, is_last: bool) -> None:
        """Checks that a response may be sent now."""
        with self._lock:
            if not self._is_decoupled:
                if has_response and self._sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if not has_response and not self._sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a"
                        " response."
                    )
            if self._is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._is_closed = is_last
            self._sent += 1

    def take_back(self, is_last: bool) -> None:
        """A response that was counted has not been sent."""
        with self._lock:
            self._sent -= 1
            if is_last:
                self._is_closed = False

    @property
    def has_answered(self) -> bool:
        """Whether the caller has all that it will get: nothing else may answer the request."""
        return self._is_closed or (self._sent > 0 and not self._is_decoupled)

    def fail(self, error: IsochroneError) -> bool:
        """The model failed: the error is the last response. False: it has sent that already."""
        with self._lock:
            is_over, self._is_closed = self.has_answered, True
        if not is_over:
            self._outlet.fail(error)
        return not is_over

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self._outlet.abandoned(had_sender=True)


class ResponseIterator:
    """The responses of a decoupled model that a model called, in the order in which they came. It can be repeated."""

    def __init__(self, next_response: Callable[[], tuple[InferenceResponse, bool]], cancel: Callable[[], None]) -> None:
        self._next_response = next_response
        self._cancel = cancel
        self._seen: list[InferenceResponse] = []
        self._position = 0
        self._is_finished = False

    def __iter__(self) -> ResponseIterator:
        if self._is_finished and self._position >= len(self._seen):
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._position < len(self._seen):
            self._position += 1
            return self._seen[self._position - 1]
        if self._is_finished:
            raise StopIteration("Iteration is done for the responses.")
        response, self._is_finished = self._next_response()
        if response.taken is not None:
            response.taken()
        self._seen.append(response)
        self._position = len(self._seen)
        return response

    def cancel(self) -> None:
        if not self._is_finished:
            self._cancel()

    def __del__(self) -> None:
        # Nobody reads the others: the called model need not make them.
        if not getattr(self, "_is_finished", True):
            self._cancel()
