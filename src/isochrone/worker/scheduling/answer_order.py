"""``preserve_ordering``: answers leave in the order in which their requests arrived. Pure.

It holds outcomes back and returns those that may be sent; the runner sends them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest, Tensors

    Outcome: TypeAlias = Tensors | IsochroneError


class AnswerOrder:
    """Unanswered requests in order of arrival, and the outcomes that have to wait."""

    __slots__ = ("_requests", "held")

    def __init__(self) -> None:
        self._requests: deque[InferRequest] = deque()
        #: By the request's id(): requests are compared by identity.
        self.held: dict[int, Outcome] = {}

    def join(self, request: InferRequest) -> None:
        self._requests.append(request)

    def leave(self, request: InferRequest) -> None:
        """Removes a request that was rejected."""
        self._requests.remove(request)

    def __contains__(self, request: InferRequest) -> bool:
        return request in self._requests

    def settle(self, request: InferRequest, outcome: Outcome) -> list[tuple[InferRequest, Outcome]]:
        """The outcomes that may be sent now that this request has one, in order."""
        requests, held = self._requests, self.held
        held[id(request)] = outcome
        ready: list[tuple[InferRequest, Outcome]] = []
        while requests and id(requests[0]) in held:
            first = requests.popleft()
            ready.append((first, held.pop(id(first))))
        return ready
