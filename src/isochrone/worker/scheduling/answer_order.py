"""``preserve_ordering``: answers leave in the order their requests came.

Between a runner and its callers, for models whose configuration asks for it. Pure: it holds outcomes back and says
which may go; whoever asks sends them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest, Tensors

    Outcome = Tensors | IsochroneError


class AnswerOrder:
    """Requests under way, first come first, and the outcomes that are ahead of their turn."""

    __slots__ = ("_line", "held")

    def __init__(self) -> None:
        self._line: deque[InferRequest] = deque()
        #: By the request's id(): requests are compared by identity.
        self.held: dict[int, Outcome] = {}

    def join(self, request: InferRequest) -> None:
        self._line.append(request)

    def leave(self, request: InferRequest) -> None:
        """It was not taken after all, and its caller knows."""
        self._line.remove(request)

    def __contains__(self, request: InferRequest) -> bool:
        return request in self._line

    def settle(self, request: InferRequest, outcome: Outcome) -> list[tuple[InferRequest, Outcome]]:
        """Everything that may go out now that this request has its outcome, in order."""
        line, held = self._line, self.held
        held[id(request)] = outcome
        ready: list[tuple[InferRequest, Outcome]] = []
        while line and id(line[0]) in held:
            first = line.popleft()
            ready.append((first, held.pop(id(first))))
        return ready
