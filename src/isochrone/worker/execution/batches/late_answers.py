"""Answers that an executable sends itself, during its run or after it, from any thread.

Such an answer may reach the loop before the run is settled there, or long after: whichever comes second answers the
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isochrone.clock import now_ns

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.backends.interface import Answer


class LateAnswers:
    """The late answers of one model version. On the loop's thread, except ``outlet_of`` and what it makes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        answered: Callable[[InferRequest, Tensors | IsochroneError], None],
    ) -> None:
        self._loop = loop
        self._answered = answered
        #: Of requests that are not answered. Threads of instances add to it, which is atomic.
        self._outlets: dict[InferRequest, LateOutlet] = {}

    def outlet_of(self, request: InferRequest) -> LateOutlet:
        # A model may ask after its run was settled: then the outlet that is expected to answer is there.
        return self._outlets.setdefault(request, LateOutlet(self._loop, self._arrived, request))

    def expect(self, request: InferRequest) -> None:
        """The run of a request is settled, and its executable answers itself."""
        outlet = self.outlet_of(request)
        if outlet.answer is None:
            outlet.expected_since = now_ns()
        else:
            del self._outlets[request]
            self._answered(request, outlet.answer)

    def overdue(self, now: int, limit_ns: int) -> list[InferRequest]:
        return [
            request
            for request, outlet in list(self._outlets.items())
            if outlet.expected_since and now - outlet.expected_since >= limit_ns
        ]

    def forget(self, request: InferRequest) -> None:
        """It was answered otherwise: what its outlet sends is dropped."""
        if self._outlets:
            self._outlets.pop(request, None)

    def clear(self) -> list[InferRequest]:
        """Forgets all; the requests that only an outlet would have answered."""
        left = [request for request, outlet in list(self._outlets.items()) if outlet.expected_since]
        self._outlets.clear()
        return left

    def _arrived(self, outlet: LateOutlet, answer: Tensors | IsochroneError) -> None:
        if self._outlets.get(outlet.request) is not outlet:
            return
        if outlet.expected_since:
            del self._outlets[outlet.request]
            self._answered(outlet.request, answer)
        else:
            outlet.answer = answer


class LateOutlet:
    """Sends the one answer of a request."""

    __slots__ = ("_arrived", "_is_sent", "_loop", "answer", "expected_since", "request")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arrived: Callable[[LateOutlet, Any], None],
        request: InferRequest,
    ) -> None:
        self._loop = loop
        self._arrived = arrived
        self._is_sent = False
        self.request = request
        #: On the loop: an answer that came before its run was settled; and when it was settled without one.
        self.answer: Any = None
        self.expected_since = 0

    def send(self, answer: Answer, is_last: bool) -> None:
        if answer is None or self._is_sent:
            return
        self._is_sent = True
        try:
            self._loop.call_soon_threadsafe(self._arrived, self, answer)
        except RuntimeError:  # the loop is closed: the process is ending
            pass

    def post(self, answer: Answer, taken: Callable[[], None]) -> None:
        self.send(answer, False)

    def is_cancelled(self) -> bool:
        return self.request.cancelled
