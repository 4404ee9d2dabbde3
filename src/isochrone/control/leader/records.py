"""The store as the leader reads and writes it: every write is conditional on still leading."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from isochrone.control.leader.election import Candidate
from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EventRecord
from isochrone.control.state.view import View, Views
from isochrone.store.base import Compare, Delete, Put, Store
from isochrone.store.mirror import Mirror


class LeaderRecords:
    def __init__(self, store: Store, keys: Keys, mirror: Mirror, candidate: Candidate) -> None:
        self.keys = keys
        self._store = store
        self._mirror = mirror
        self._candidate = candidate
        self._views = Views(keys, lambda: mirror.entries)

    @property
    def seals(self) -> bool:
        """Whether this controller has the fleet's key."""
        return self._store.seals

    def view(self) -> View:
        """The records as they stand now."""
        return self._views.view()

    async def write(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> bool:
        """Return whether it was written, when the next view shows it."""
        leads = self._candidate.condition()
        outcome = await self._store.transact((leads, *compares), operations, durable=durable)
        await self._mirror.catch_up(outcome.revision)
        return outcome.succeeded

    async def write_transient(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> None:
        """Write what nothing waits for and what means nothing after the machine's end."""
        await self._store.transact((self._candidate.condition(), *compares), operations, durable=False)

    def event(self, who: str, what: str, about: str, detail: str = "") -> Put:
        return self.event_of(EventRecord(time.time(), who, what, about, detail))

    def event_of(self, record: EventRecord) -> Put:
        return event(self.keys, record, secrets.token_hex(4))
