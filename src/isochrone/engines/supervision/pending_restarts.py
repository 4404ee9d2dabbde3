"""Keeps the record of the restarts that an applied file needs and that are not over; ``isochrone status`` shows it.

A restart is over when the process serves with the settings of the file. The record also says which file was read: until
then nobody knows what has to restart.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import RestartsRecord
from isochrone.control.state.view import View
from isochrone.engines.supervision.reconcile import Observed
from isochrone.store.base import Put, Store, StoreUnavailable


def pending_restarts(
    before: Collection[str], desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]
) -> tuple[str, ...]:
    """Processes that run with other settings than they should, and those of ``before`` that do not serve yet."""

    def is_pending(name: str) -> bool:
        now = observed.get(name)
        if now is not None and now.spec != desired[name]:
            return True
        return name in before and (now is None or not now.ready)

    return tuple(sorted(filter(is_pending, desired)))


class PendingRestarts:
    """Of one supervisor: no other one writes the record while it runs the fleet."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._key = keys.restarts

    async def write(
        self, view: View, generation: int, desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]
    ) -> None:
        """Write it if it has changed. If the store is unavailable, the next turn writes it. ``generation``: of the
        fleet record that ``desired`` was made of; 0: none was read."""
        if not generation:
            return
        known = view.restarts or RestartsRecord(0)
        names = pending_restarts(known.processes, desired, observed)
        if (generation, names) == (known.generation, known.processes) and not view.is_unreadable(self._key):
            return
        at = known.at if known.processes and generation == known.generation else time.time()
        record = RestartsRecord(generation, names, at)
        try:
            await self._store.transact((), (Put(self._key, encode(record)),), durable=False)
        except StoreUnavailable:
            pass
