"""Requests that wait for a worker: who may, who may go on, whose time is over. Pure.

A model has a waiting room if its rules say so. Its requests wait while no worker is ready, as in a pool that was scaled
to zero, and go on when one is, no faster than workers take them. Requests for the same version and epoch form a line:
those that come later stand behind those that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from isochrone.clock import NEVER
from isochrone.errors import DeadlineExceeded, Internal, IsochroneError, NoWorkerReady, Unavailable
from isochrone.gateway.fleet.served_model import ServedModel
from isochrone.gateway.requests import placing
from isochrone.gateway.requests.held import Held
from isochrone.gateway.requests.request import Request


class _Line(NamedTuple):
    """What the requests of one line ask for."""

    model: str
    version: str
    epoch: bytes | None
    #: Endpoints that they may go to; None: any.
    subset: frozenset[str] | None


class WaitingRooms:
    """The waiting rooms of one gateway."""

    def __init__(self) -> None:
        self._lines: dict[_Line, Held] = {}
        self._is_closed = False
        #: Called with a model whose requests wait from now on (True), or of which none waits any more.
        self.on_change: Callable[[str, bool], None] | None = None

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._lines.values())) if self._lines else 0

    def __iter__(self) -> Iterator[Request]:
        return (request for line in self._lines.values() for request in line)

    def count(self, model: str) -> int:
        return sum(len(waiting) for line, waiting in self._lines.items() if line.model == model)

    def counts(self) -> dict[str, int]:
        """By model: requests that wait, at least 1."""
        found: dict[str, int] = {}
        for line, waiting in self._lines.items():
            found[line.model] = found.get(line.model, 0) + len(waiting)
        return found

    def has_before(self, request: Request) -> bool:
        """Whether others wait for what a request asks for."""
        return bool(self._lines.get(_line_of(request)))

    def enter(self, request: Request, now: int) -> bool:
        """Whether a request that no worker has begun waits from now on; raises if too many do."""
        served = request.served
        rules = served.rules.waiting_room
        if self._is_closed or not rules.max_requests or request.shadow is not None or request.suspect is not None:
            return False
        before = self.count(served.name)
        if before >= rules.max_requests:
            raise Unavailable(
                f"model '{served.name}' has no ready worker and {rules.max_requests} requests wait for one already "
                "(waiting_room.max_requests)"
            )
        request.waits_since = now
        request.waits_until = request.waits_until or request.arrived + rules.max_wait_ns
        # As it came: it will be placed once more.
        request.hedge_at = request.due_at = request.patience_until = NEVER
        self._lines.setdefault(_line_of(request), Held(rules.max_requests)).add(request, request.waits_until)
        served.set_waiting(True)
        if not before:
            self._changed(served.name, True)
        return True

    def leave(self, request: Request) -> None:
        """Its caller has gone."""
        if request.held is not None:
            request.held.remove(request)
        if getattr(request, "served", None) is None:
            # A stream that was held before its first message belongs to no model.
            return
        line = _line_of(request)
        if line in self._lines:
            self._forget_empty(line, request.served)

    def take_ready(self, now: int, most: int) -> list[tuple[Request, IsochroneError | None]]:
        """Requests that a ready worker can take now; with an error: it cannot go on at all. Lines take turns."""
        taken: list[tuple[Request, IsochroneError | None]] = []
        share = max(1, most // len(self._lines)) if self._lines else 0
        for line, waiting in list(self._lines.items()):
            served = None
            for request in waiting.first(share):
                error: IsochroneError | None = None
                served = request.served
                try:
                    if not placing.has_ready_worker(request, now):
                        break
                except IsochroneError as found:
                    error = found
                except Exception as fault:
                    # A fault of ours with one request must not keep those behind it from going on.
                    error = Internal(f"{type(fault).__name__}: {fault}")
                waiting.remove(request)
                taken.append((request, error))
            if served is not None and taken:
                # Last in turn: with more lines than requests that may go on, others come first the next time.
                self._lines[line] = self._lines.pop(line)
                self._forget_empty(line, served)
            if len(taken) >= most:
                break
        return taken

    def take_expired(self, now: int, most: int) -> list[tuple[Request, IsochroneError]]:
        """Requests that have waited as long as they may, and what they are rejected with."""
        taken: list[tuple[Request, IsochroneError]] = []
        for line, waiting in list(self._lines.items()):
            expired = waiting.take_expired(now, most - len(taken))
            taken += [(request, _too_long(line.model, request, now)) for request in expired]
            if expired:
                self._forget_empty(line, expired[0].served)
        return taken

    def close(self) -> list[Request]:
        """The requests that waited. None waits from now on."""
        self._is_closed = True
        lines, self._lines = self._lines, {}
        taken = [request for waiting in lines.values() for request in waiting.take_all()]
        for request in taken:
            request.served.set_waiting(False)
        for model in {line.model for line in lines}:
            self._changed(model, False)
        return taken

    def _forget_empty(self, line: _Line, served: ServedModel) -> None:
        if not self._lines[line]:
            del self._lines[line]
            if not any(other.model == line.model for other in self._lines):
                served.set_waiting(False)
                self._changed(line.model, False)

    def _changed(self, model: str, waits: bool) -> None:
        if self.on_change is not None:
            self.on_change(model, waits)


def _line_of(request: Request) -> _Line:
    return _Line(request.served.name, request.version, request.asked_epoch, request.subset)


def _too_long(model: str, request: Request, now: int) -> IsochroneError:
    waited = (now - request.arrived) / 1e6
    reason = f"no worker was ready for model '{model}' within {waited:.1f} ms"
    if now >= request.deadline:
        return DeadlineExceeded(f"Request timeout expired: {reason}")
    return NoWorkerReady(f"{reason} (waiting_room.max_wait_ms)")
