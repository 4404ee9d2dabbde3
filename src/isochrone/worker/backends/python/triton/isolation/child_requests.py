"""The requests of this process, and where their responses go."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from isochrone.errors import IsochroneError, ModelFailed
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.protocol.response_outputs import parameters_of
from isochrone.worker.backends.processes.child_side import traceback_of
from isochrone.worker.backends.processes.frames import Outbox
from isochrone.worker.backends.processes.places import Packing
from isochrone.worker.backends.python.triton.isolation.messages import (
    RESPONSES_AHEAD,
    Answered,
    Error,
    Gone,
    Outcome,
    Outputs,
    RequestHead,
    Taken,
    encoded,
    error_message,
)

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.python.triton.outputs import Answer

#: Entries of requests that may be dead.
_FEW_REQUESTS = 64


class ChildRequest(InferRequest):
    """A request, as the worker described it."""

    __slots__ = ("__weakref__", "_chain", "credit", "number")

    def __init__(self, head: RequestHead, plan: Plan, inputs: Tensors) -> None:
        super().__init__(plan, head.id, inputs, 0, head.deadline)
        self.number = head.number
        self._chain = head.chain
        #: Responses that may be sent before the caller has taken earlier ones; None until there is an outlet.
        self.credit: threading.Semaphore | None = None

    @property
    def call_chain(self) -> tuple[Any, ...]:
        return self._chain


class ChildRequests:
    """Requests that the model has not let go of."""

    def __init__(self, outbox: Outbox, *, waits_for_callers: bool) -> None:
        """``waits_for_callers``: a sender waits while the caller of its stream reads slowly."""
        self._outbox = outbox
        self._waits = waits_for_callers
        #: Not a WeakValueDictionary, which costs a request several microseconds. Dead entries are removed in bulk.
        self._requests: dict[int, ref[ChildRequest]] = {}
        self._most = _FEW_REQUESTS

    def add(self, head: RequestHead, plan: Plan, inputs: Tensors) -> ChildRequest:
        request = ChildRequest(head, plan, inputs)
        self._requests[head.number] = ref(request)
        if len(self._requests) > self._most:
            alive = {number: known for number, known in self._requests.items() if known() is not None}
            self._requests = alive
            self._most = 2 * len(alive) + _FEW_REQUESTS
        return request

    def _find(self, number: int) -> ChildRequest | None:
        known = self._requests.get(number)
        return None if known is None else known()

    def outlet_of(self, request: InferRequest) -> ChildOutlet:
        assert isinstance(request, ChildRequest)
        if self._waits and request.credit is None:
            request.credit = threading.Semaphore(RESPONSES_AHEAD)
        return ChildOutlet(self._outbox, request)

    # On the thread of the second link.

    def gone(self, message: Gone) -> None:
        for number in message.numbers:
            request = self._find(number)
            if request is not None:
                request.cancelled = True

    def taken(self, message: Taken) -> None:
        request = self._find(message.number)
        if request is not None and request.credit is not None:
            request.credit.release(message.count)


class ChildOutlet:
    """Sends the responses of one request to the worker."""

    def __init__(self, outbox: Outbox, request: ChildRequest) -> None:
        self._outbox = outbox
        self._request = request

    def send(self, answer: Answer, is_last: bool) -> None:
        request = self._request
        if request.credit is not None and answer is not None and not is_last:
            while not request.credit.acquire(timeout=0.5):
                if request.cancelled:
                    return
        packing = Packing()
        outcome = outcome_of(answer, packing)
        try:
            frame = encoded(Answered(request.number, outcome, is_last), packing)
        except Exception as error:
            frame = encoded(Answered(request.number, unsendable(error), is_last))
        self._outbox.post(frame)

    def is_cancelled(self) -> bool:
        return self._request.cancelled


def outcome_of(answer: Answer, packing: Packing) -> Outcome:
    """An answer of the model as the worker gets it; its outputs are added to ``packing``."""
    if answer is None:
        return None
    if isinstance(answer, IsochroneError):
        return error_message(answer, traceback_of(answer) if answer.__cause__ is not None else "")
    try:
        return Outputs(packing.add(answer), parameters_of(answer))
    except Exception as error:
        return unsendable(error)


def unsendable(error: Exception) -> Error:
    return error_message(ModelFailed(f"the response cannot be passed to the server: {error}"))


def outcomes_of(answers: Sequence[Answer], packing: Packing) -> list[Outcome]:
    return [outcome_of(answer, packing) for answer in answers]
