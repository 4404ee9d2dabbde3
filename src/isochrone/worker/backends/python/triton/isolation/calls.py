"""What the process of a model asks of the worker: calls of other models, loads, unloads, readiness, log lines."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isochrone.worker.backends.processes.frames import Frame, LinkBroken
from isochrone.worker.backends.processes.places import BadPlace, Packing, read_places
from isochrone.worker.backends.python.triton.isolation.messages import Ask, Call, CallResponse, Error, Reply, encoded
from isochrone.worker.backends.python.triton.outputs import sendable
from isochrone.worker.backends.python.triton.server import Errand, ModelCall
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.worker.backends.processes.places import Bytes
    from isochrone.worker.backends.python.triton.responses import InferenceResponse
    from isochrone.worker.backends.python.triton.server import Cancel, Server


class _OpenCall:
    """A call whose last response has not come."""

    __slots__ = ("cancel", "unread")

    def __init__(self) -> None:
        #: None until it has begun.
        self.cancel: Cancel | None = None
        #: For each response that the process's model has not taken yet, what to call when it does. The called model
        #: waits while there are many.
        self.unread: deque[Callable[[], None]] = deque()


class CallsOfChild:
    """Carries out the calls of one process. On the link's thread, except where responses come from."""

    def __init__(self, server: Server, post: Callable[[Frame], None]) -> None:
        self._server = server
        self._post = post
        self._open: dict[int, _OpenCall] = {}
        #: The metrics of the process's model, which end with it.
        self._metrics: dict[int, Any] = {}

    def start(self, message: Call, payload: Bytes) -> None:
        try:
            arrays = read_places(payload, message.places, copy=False)
        except BadPlace as error:
            raise LinkBroken(str(error)) from error
        number = message.call
        call = ModelCall(
            model_name=message.model_name,
            model_version=message.model_version,
            inputs=[Tensor.of_request(name, array, False) for name, array in arrays.items()],
            outputs=frozenset(message.outputs),
            request_id=message.request_id,
            correlation_id=message.correlation_id,
            flags=message.flags,
            timeout_us=message.timeout_us,
            parameters=message.parameters,
            takes_many=message.takes_many,
            errand=Errand(message.deadline, message.priority, message.chain),
        )
        begun = self._open[number] = _OpenCall()
        begun.cancel = self._server.call(call, lambda response, is_last: self._respond(number, response, is_last))

    def _respond(self, number: int, response: InferenceResponse, is_last: bool) -> None:
        """On the thread of the event loop, or on this one."""
        call = self._open.pop(number, None) if is_last else self._open.get(number)
        if call is not None and response.taken is not None:
            call.unread.append(response.taken)
        packing = Packing()
        error = response.error()
        try:
            places = packing.add({tensor.name(): sendable(tensor) for tensor in response.output_tensors()})
            failed = None if error is None else Error(error.code(), error.message())
            self._post(encoded(CallResponse(number, places, failed, response.parameters(), is_last), packing))
        except Exception as problem:
            failed = Error(1, f"the response cannot be passed on: {problem}")
            self._post(encoded(CallResponse(number, [], failed, "", is_last)))

    def cancel(self, number: int) -> None:
        call = self._open.get(number)
        if call is not None and call.cancel is not None:
            call.cancel()

    def taken(self, number: int, count: int) -> None:
        """The process's model has taken responses: the called model may send as many more."""
        call = self._open.get(number)
        if call is not None:
            # Never more than it was sent: the process is not trusted.
            for _ in range(min(count, len(call.unread))):
                call.unread.popleft()()

    def cancel_all(self) -> None:
        """The process has gone."""
        for number in list(self._open):
            self.cancel(number)
        self._open.clear()

    def log(self, level: str, message: str) -> None:
        self._server.log(level, message)

    def ask(self, message: Ask) -> None:
        if message.kind in ("metric", "change"):
            self._answer(message)
            return
        # A load takes seconds, and meanwhile the link must be read.
        threading.Thread(target=self._answer, args=(message,), name="model-control", daemon=True).start()

    def _answer(self, message: Ask) -> None:
        value, problem = 1.0, None
        try:
            value = self._carry_out(message)
        except BaseException as error:
            problem = str(error)
        self._post(encoded(Reply(message.question, float(value), problem)))

    def _carry_out(self, message: Ask) -> Any:
        if message.kind == "metric":
            self._metrics[message.metric] = self._server.metric(
                message.name, message.description, message.metric_kind, message.labels or {}, message.buckets
            )
            return True
        if message.kind == "change":
            change = getattr(self._metrics[message.metric], message.how)
            return change() or 0.0 if message.by is None else change(message.by) or 0.0
        if message.kind == "ready":
            return self._server.is_model_ready(message.name, message.version)
        if message.kind == "load":
            self._server.load_model(message.name, message.config, message.files)
        else:
            self._server.unload_model(message.name, message.unload_dependents)
        return True
