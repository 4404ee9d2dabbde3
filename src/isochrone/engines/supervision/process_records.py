"""Keeps the records of processes that died or wait for a machine; ``isochrone status`` shows them with the reason.

A record exists until the process serves again or is no longer desired. Must never change the records of
another supervisor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import ProcessRecord
from isochrone.control.state.view import View
from isochrone.engines.base import Exit
from isochrone.engines.supervision.last_errors import last_error
from isochrone.store.base import Delete, Put, Store, StoreUnavailable

#: Characters of an error, and operations in one transaction.
_MOST_CHARACTERS, _AT_ONCE = 300, 50


class ProcessRecords:
    """The records of one supervisor. ``last_lines``: the end of a process's log."""

    def __init__(self, store: Store, keys: Keys, last_lines: Callable[[str], Sequence[str]]) -> None:
        self._store = store
        self._keys = keys
        self._last_lines = last_lines
        #: By name: the desired records.
        self.dead: dict[str, ProcessRecord] = {}
        #: Names that this supervisor may have written: only their records are deleted.
        self._own: set[str] = set()

    def died(self, ended: Exit) -> None:
        """Record the death of a process."""
        spec = ended.spec
        before = self.dead.get(spec.name)
        deaths = before.deaths + 1 if before is not None else 1
        error = last_error(self._last_lines(spec.name))[:_MOST_CHARACTERS]
        self.dead[spec.name] = ProcessRecord(spec.name, spec.role, spec.pool, deaths, ended.how, error, at=time.time())

    def settle(self, desired: Mapping[str, ProcessSpec], serving: Collection[str], waits: Mapping[str, str]) -> None:
        """Forget processes that serve again or are no longer desired. ``waits``: why a process has no machine yet."""
        self._own |= set(desired)
        self.dead = {
            name: record
            for name, record in self.dead.items()
            if name in desired and name not in serving and (record.deaths or waits.get(name))
        }
        for name, spec in desired.items():
            reason = waits.get(name, "")
            record = self.dead.get(name)
            if record is not None and record.deaths:
                self.dead[name] = msgspec.structs.replace(record, waits=reason)
            elif reason and name not in serving:
                self.dead[name] = ProcessRecord(name, spec.role, spec.pool, 0, f"waits: {reason}", at=time.time())

    async def write(self, view: View) -> None:
        """Write the desired records. If the store is unavailable, the next turn writes them."""
        there = view.processes
        operations: list[Put | Delete] = [
            Put(self._keys.process(name), encode(record))
            for name, record in self.dead.items()
            if name not in there or _differs(there[name], record)
        ]
        prefix = self._keys.processes
        present = {key.removeprefix(prefix) for key in view.entries if key.startswith(prefix)}
        operations += [Delete(self._keys.process(name)) for name in sorted(present & self._own - set(self.dead))]
        if not operations:
            return
        try:
            await self._store.transact((), operations[:_AT_ONCE], durable=False)
        except StoreUnavailable:
            pass


def _differs(there: ProcessRecord, record: ProcessRecord) -> bool:
    return msgspec.structs.replace(there, at=0.0) != msgspec.structs.replace(record, at=0.0)
