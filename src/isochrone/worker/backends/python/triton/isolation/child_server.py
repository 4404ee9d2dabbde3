"""What the model of this process asks of the server: the worker answers over the second link."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.processes.frames import Outbox
from isochrone.worker.backends.processes.places import Packing, read_places
from isochrone.worker.backends.python.triton.failures import TritonError, TritonModelException
from isochrone.worker.backends.python.triton.isolation.messages import (
    TAKEN_AT_ONCE,
    Ask,
    Call,
    CallResponse,
    CallTaken,
    CancelCall,
    LogLine,
    Reply,
    encoded,
)
from isochrone.worker.backends.python.triton.outputs import sendable
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.worker.backends.processes.places import Bytes
    from isochrone.worker.backends.python.triton.server import Cancel, Deliver, ModelCall


class _OpenCall:
    """A call whose last response has not come."""

    __slots__ = ("_number", "_outbox", "_taken", "deliver")

    def __init__(self, number: int, deliver: Deliver, outbox: Outbox) -> None:
        self._number = number
        self.deliver = deliver
        self._outbox = outbox
        #: Counts without a lock, on whichever thread reads.
        self._taken = itertools.count(1)

    def taken(self) -> None:
        """The model has taken a response that others follow."""
        if next(self._taken) % TAKEN_AT_ONCE == 0:
            self._outbox.post(encoded(CallTaken(self._number, TAKEN_AT_ONCE)))


class ServerOverLink:
    """The ``Server`` of a model in a process of its own."""

    #: No thread here is the event loop's of the worker.
    may_block = True

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._generation = forks.generation
        self._numbers = itertools.count(1)
        #: What takes the responses of open calls, and the answers to open questions.
        self._calls: dict[int, _OpenCall] = {}
        self._questions: dict[int, SimpleQueue[Reply]] = {}

    def call(self, call: ModelCall, deliver: Deliver) -> Cancel:
        number = next(self._numbers)
        packing = Packing()
        try:
            self._check_original()
            places = packing.add({tensor.name(): sendable(tensor) for tensor in call.inputs})
            message = Call(
                call=number,
                model_name=call.model_name,
                model_version=call.model_version,
                places=places,
                outputs=sorted(call.outputs),
                request_id=call.request_id,
                correlation_id=call.correlation_id,
                flags=call.flags,
                timeout_us=call.timeout_us,
                parameters=call.parameters,
                takes_many=call.takes_many,
                deadline=call.errand.deadline,
                priority=call.errand.priority,
                chain=call.errand.chain,
            )
            frame = encoded(message, packing)
        except Exception as error:
            deliver(InferenceResponse.received([], TritonError(str(error)), ""), True)
            return _nothing
        self._calls[number] = _OpenCall(number, deliver, self._outbox)
        self._outbox.post(frame)
        return lambda: self._outbox.post(encoded(CancelCall(number)))

    def is_model_ready(self, name: str, version: str) -> bool:
        return bool(self._ask(Ask(next(self._numbers), "ready", name, version=version)))

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        given = None if files is None else {place: bytes(content) for place, content in files.items()}
        self._ask(Ask(next(self._numbers), "load", name, config=config, files=given))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._ask(Ask(next(self._numbers), "unload", name, unload_dependents=unload_dependents))

    def metric(
        self, name: str, description: str, kind: str, labels: Mapping[str, str], buckets: Sequence[float]
    ) -> MetricOverLink:
        number = next(self._numbers)
        self._ask(
            Ask(
                number,
                "metric",
                name,
                metric=number,
                description=description,
                metric_kind=kind,
                labels={str(key): str(value) for key, value in labels.items()},
                buckets=tuple(float(bound) for bound in buckets),
            )
        )
        return MetricOverLink(lambda how, by: self._change_metric(number, name, how, by))

    def _change_metric(self, number: int, name: str, how: str, by: float | None) -> float:
        return self._ask(Ask(next(self._numbers), "change", name, metric=number, how=how, by=by))

    def log(self, level: str, message: str) -> None:
        self._outbox.post(encoded(LogLine(level, str(message))))  # type: ignore[arg-type]

    def _ask(self, question: Ask) -> float:
        self._check_original()
        replies: SimpleQueue[Reply] = SimpleQueue()
        self._questions[question.question] = replies
        self._outbox.post(encoded(question))
        reply = replies.get()
        if reply.error is not None:
            raise TritonModelException(reply.error)
        return reply.value

    def _check_original(self) -> None:
        """Raises in a process that the model has forked: no thread there would take an answer."""
        if forks.generation != self._generation:
            raise TritonModelException(forks.UNREACHABLE)

    # On the thread of the second link.

    def respond(self, message: CallResponse, payload: Bytes) -> None:
        call = self._calls.pop(message.call, None) if message.is_last else self._calls.get(message.call)
        if call is None:
            return
        arrays = read_places(payload, message.places, copy=False)
        tensors = [Tensor.of_request(name, array, False) for name, array in arrays.items()]
        error = None if message.error is None else TritonError(message.error.message, message.error.code)
        response = InferenceResponse.received(tensors, error, message.parameters)
        if not message.is_last:
            response.taken = call.taken
        call.deliver(response, message.is_last)

    def reply(self, message: Reply) -> None:
        replies = self._questions.pop(message.question, None)
        if replies is not None:
            replies.put(message)


class MetricOverLink:
    """A metric of this process's model, which the worker keeps."""

    def __init__(self, change: Callable[[str, float | None], float]) -> None:
        self._change = change

    def increment(self, value: float) -> None:
        self._change("increment", float(value))

    def set(self, value: float) -> None:
        self._change("set", float(value))

    def observe(self, value: float) -> None:
        self._change("observe", float(value))

    def value(self) -> float:
        return self._change("value", None)


def _nothing() -> None:
    """There is nothing to cancel."""
