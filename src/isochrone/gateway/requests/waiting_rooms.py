"""Requests that wait for a worker, by model: who may, who may go on, whose time is over. Pure.

A model has a waiting room if its rules say so. Its requests wait while no worker is ready, as in a pool that was scaled
to zero, and arrive once more when one is.
"""

from __future__ import annotations

from collections.abc import Iterator

from isochrone.clock import NEVER
from isochrone.errors import DeadlineExceeded, IsochroneError, NoWorkerReady
from isochrone.gateway.fleet.served_model import ServedModel
from isochrone.gateway.requests import placing
from isochrone.gateway.requests.held import Held
from isochrone.gateway.requests.request import Request


class WaitingRooms:
    """The waiting rooms of one gateway."""

    def __init__(self) -> None:
        self._rooms: dict[str, Held] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._rooms.values()))

    def __iter__(self) -> Iterator[Request]:
        return (request for room in self._rooms.values() for request in room)

    def count(self, model: str) -> int:
        room = self._rooms.get(model)
        return 0 if room is None else len(room)

    def enter(self, request: Request, served: ServedModel) -> bool:
        """Whether a request that no worker has seen waits from now on; raises if too many do."""
        rules = served.rules.waiting_room
        if self._is_closed or not rules.max_requests or request.shadow is not None or request.suspect is not None:
            return False
        room = self._rooms.get(served.name)
        if not room:
            # One that was emptied may be of other rules.
            full = f"model '{served.name}' has no ready worker and {rules.max_requests} requests wait for one already"
            room = self._rooms[served.name] = Held(rules.max_requests, f"{full} (waiting_room.max_requests)")
        room.add(request, request.arrived + rules.max_wait_ns)
        # As it came: it will arrive once more.
        request.hedge_at = request.due_at = request.patience_until = NEVER
        request.tried, request.unreached = (), 0
        return True

    def take_ready(self, now: int, most: int) -> list[tuple[Request, IsochroneError | None]]:
        """The first requests of models that have a ready worker again; with an error: it cannot go on at all."""
        taken: list[tuple[Request, IsochroneError | None]] = []
        for model, room in list(self._rooms.items()):
            for request in room.first(most - len(taken)):
                error = None
                try:
                    if not placing.has_ready_worker(request, now):
                        break  # those behind it are for the same model
                except IsochroneError as found:
                    error = found
                room.remove(request)
                taken.append((request, error))
            self._forget_empty(model)
            if len(taken) >= most:
                break
        return taken

    def take_expired(self, now: int) -> list[tuple[Request, IsochroneError]]:
        """Requests that have waited as long as they may, and what they are rejected with."""
        taken: list[tuple[Request, IsochroneError]] = []
        for model, room in list(self._rooms.items()):
            taken += [(request, _too_long(model, request, now)) for request in room.take_expired(now)]
            self._forget_empty(model)
        return taken

    def close(self) -> list[Request]:
        """The requests that waited. None waits from now on."""
        self._is_closed = True
        rooms, self._rooms = self._rooms, {}
        return [request for room in rooms.values() for request in room.take_all()]

    def _forget_empty(self, model: str) -> None:
        if not self._rooms[model]:
            del self._rooms[model]


def _too_long(model: str, request: Request, now: int) -> IsochroneError:
    waited = (now - request.arrived) / 1e6
    reason = f"no worker was ready for model '{model}' within {waited:.1f} ms"
    if now >= request.deadline:
        return DeadlineExceeded(f"Request timeout expired: {reason}")
    return NoWorkerReady(f"{reason} (waiting_room.max_wait_ms)")
