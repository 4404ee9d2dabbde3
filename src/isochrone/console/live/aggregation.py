"""Aggregates what browsers show: once a second, however many look, and not at all while none does.

The view of the fleet is computed when the store has changed, the view of a second every second. Each is encoded once;
all readers get the same bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
import structlog

from isochrone.console.view.fleet_view import FleetState, fleet_state
from isochrone.console.view.model_history import RANGES, model_history
from isochrone.console.view.second_view import second_view
from isochrone.control.api.messages import StoreState
from isochrone.control.api.service import ControlService
from isochrone.control.figures.frames import Frame
from isochrone.control.state.view import Known, View
from isochrone.errors import InvalidArgument, NotFound, Unavailable

log = structlog.get_logger(__name__)

PERIOD: Final = 1.0
#: Browsers that may look at once. Each costs a connection and at most one message of memory.
MOST_READERS: Final = 512
#: Histories of models that are kept for those who ask next in the same second.
_MOST_HISTORIES: Final = 64
#: Requests for histories that may wait at once. They are computed one after the other.
_MOST_WAITING: Final = 64


class Aggregation:
    """The messages of one controller."""

    def __init__(self, service: ControlService) -> None:
        self._service = service
        self._history = service.history
        #: Records by key, decoded once.
        self._known: Known = {}
        self._state: FleetState | None = None
        #: The revision and the state of the store that the view of the fleet was computed of.
        self._of: tuple[int, StoreState] | None = None
        #: Messages of server-sent events, and how many there have been of each kind.
        self.fleet, self.fleet_number = b"", 0
        self.second, self.number = b"", 0
        #: When they were computed, by the loop's clock.
        self._at = 0.0
        self._next: asyncio.Future[None] | None = None
        self._histories: OrderedDict[tuple[str, int], tuple[int, bytes]] = OrderedDict()
        #: Held while a history is computed.
        self._computing = asyncio.Lock()
        self._waiting = 0
        #: Names of models in the history, and the second of which they are.
        self._in_history: tuple[int, frozenset[str]] = (-1, frozenset())
        self._readers = 0
        self._wanted = asyncio.Event()

    @property
    def stopping(self) -> asyncio.Event:
        return self._service.stopping

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One more reader. Raise ``Unavailable`` if there are too many."""
        if self._readers >= MOST_READERS:
            raise Unavailable(f"{MOST_READERS} browsers look at this controller's console; use another controller")
        self._readers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._readers -= 1

    @property
    def is_fresh(self) -> bool:
        """Whether the messages are of this moment; not so after a time without readers."""
        return asyncio.get_running_loop().time() - self._at < 2 * PERIOD

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self._readers:
                self._wanted.clear()
                await self._wanted.wait()
                due = loop.time()
            try:
                await self._refresh()
            except Exception:
                # One bad figure must not end the stream: the next second may be good again.
                log.exception("the console's view failed")
            due = max(due + PERIOD, loop.time())
            await asyncio.sleep(due - loop.time())

    async def published(self) -> None:
        """Wait for the next messages."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        # Many wait for one future: one that is cancelled must not cancel it.
        await asyncio.shield(self._next)

    async def _refresh(self) -> None:
        service = self._service
        of = (service.mirror.revision, service.store_state())
        if of != self._of:
            # Not on the loop, since a thousand workers take a while; so of a copy, since the loop changes the entries.
            entries = dict(service.mirror.entries)
            self._known = {key: known for key, known in self._known.items() if key in entries}
            view = View(service.keys, entries, self._known)
            self._state = await asyncio.to_thread(fleet_state, view, of[1])
            self._of = of
            self.fleet_number += 1
            self.fleet = message("fleet", self._state.view)
        state = self._state
        assert state is not None
        seconds = second_view(self._history, state.deadlines_ms, state.worker_deadlines_ms, state.open_rollouts)
        self.number += 1
        self.second = message("second", seconds)
        self._at = asyncio.get_running_loop().time()
        waiting, self._next = self._next, None
        if waiting is not None:
            waiting.set_result(None)

    async def model_history(self, model: str, seconds: int) -> bytes:
        """As JSON; encoded once per second and model, one at a time. Of all models together: "".

        Raise ``NotFound`` for a model that neither the history nor the fleet has.
        """
        if seconds not in RANGES:
            raise InvalidArgument(f"seconds: expected one of {', '.join(map(str, RANGES))}, given {seconds}")
        if not self._has_model(model):
            raise NotFound(f"there are no figures of a model {model[:200]!r}")
        if self._waiting >= _MOST_WAITING:
            raise Unavailable(f"{_MOST_WAITING} browsers wait for histories of models; ask again later")
        self._waiting += 1
        try:
            async with self._computing:
                return await self._encoded_history(model, seconds)
        finally:
            self._waiting -= 1

    async def _encoded_history(self, model: str, seconds: int) -> bytes:
        at, key = self._latest, (model, seconds)
        known = self._histories.get(key)
        if known is not None and known[0] == at:
            return known[1]
        # Not on the loop, since a day takes a while; so of a copy, since the loop adds frames.
        encoded = await asyncio.to_thread(_encoded, self._history.frames(seconds), model, seconds)
        self._histories[key] = (at, encoded)
        self._histories.move_to_end(key)
        while len(self._histories) > _MOST_HISTORIES:
            self._histories.popitem(last=False)
        return encoded

    def _has_model(self, model: str) -> bool:
        if self._in_history[0] != self._latest:
            self._in_history = self._latest, frozenset(name for name, _ in self._history.models(RANGES[-1]))
        if not model or model in self._in_history[1]:
            return True
        # Served, and without a request so far.
        return self._state is not None and any(each.name == model for each in self._state.view.map.models)

    @property
    def _latest(self) -> int:
        latest = self._history.latest()
        return latest.at if latest is not None else 0


def _encoded(frames: Sequence[Frame], model: str, seconds: int) -> bytes:
    return msgspec.json.encode(model_history(frames, model, seconds))


def message(kind: str, record: object) -> bytes:
    """One event of a stream of server-sent events. JSON has no line break inside: one data line is enough."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(record))
