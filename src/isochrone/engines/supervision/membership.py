"""What the supervisor writes into the store about processes: drains, and the deaths of gateways.

A strict switch waits for the word of every known gateway. One that was killed cannot say farewell; the supervisor saw
it end, so it says it instead. Everything here is tried again until the store takes it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EventRecord, GatewayRecord, Unreadable, decode, encode
from isochrone.control.state.view import View
from isochrone.engines.supervision.observation import SUPERVISOR
from isochrone.store.base import Compare, Delete, Entry, Put, Store, StoreUnavailable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Membership:
    """Of one fleet."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        #: pid of a gateway's process → the incarnation it registered as.
        self._incarnations: dict[int, str] = {}

    def notice(self, view: View) -> None:
        """Remembers who registered as what: a dead gateway's record may be gone when its death is told."""
        for record in view.gateways.values():
            self._incarnations[record.pid] = record.incarnation

    async def forget_gateway(self, name: str, pid: int) -> None:
        """The process of that pid is dead. Returns when no switch waits for it any more."""
        pause = _FIRST_PAUSE
        while True:
            try:
                if await self._forgotten(name, pid):
                    self._incarnations.pop(pid, None)
                    return
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _forgotten(self, name: str, pid: int) -> bool:
        keys = self._keys
        known = await self._store.get(keys.known_gateway(name))
        if known is None:
            return True  # it said farewell
        registered = await self._store.get(keys.gateway(name))
        count = await self._store.get(keys.gateway_set)
        record = _gateway(registered)
        own = record is not None and record.pid == pid
        incarnation = record.incarnation if record is not None and own else self._incarnations.get(pid)
        known_as = known.value.decode("utf-8", "replace")
        if incarnation is not None and known_as != incarnation:
            return True  # its successor is known by now
        if incarnation is None and (record is not None or known_as in self._incarnations.values()):
            return True  # it never registered; what is known is of another process
        # Writing the set makes a switch that counted this gateway count again.
        operations: list[Put | Delete] = [Delete(known.key), Put(keys.gateway_set, f"{name} died".encode())]
        if own:
            operations.append(Delete(keys.gateway(name)))
        told = EventRecord(time.time(), SUPERVISOR, "gateway died", name, f"process {pid}")
        operations.append(event(keys, told, secrets.token_hex(4)))
        compares = [_unchanged(keys.known_gateway(name), known), _unchanged(keys.gateway_set, count)]
        return (await self._store.transact(compares, operations)).succeeded

    async def drain(self, name: str) -> None:
        """Raises ``StoreUnavailable``. A drain that somebody else asked for stays theirs."""
        record = EventRecord(time.time(), SUPERVISOR, "drain", name, "it is to stop")
        key = self._keys.drain(name)
        await self._store.transact((Compare(key, 0),), (Put(key, encode(record)),))

    async def undrain(self, names: Sequence[str]) -> None:
        """Takes back what ``drain`` wrote. Raises ``StoreUnavailable``."""
        for name in names:
            entry = await self._store.get(self._keys.drain(name))
            if entry is not None and is_own(entry):
                await self._store.transact((Compare(entry.key, entry.revision),), (Delete(entry.key),))


def is_own(drain: Entry) -> bool:
    """Whether the supervisor asked for it."""
    try:
        return decode(drain.value, EventRecord).who == SUPERVISOR
    except Unreadable:
        return False


def _gateway(entry: Entry | None) -> GatewayRecord | None:
    """None: it is not there, or cannot be read."""
    try:
        return None if entry is None else decode(entry.value, GatewayRecord)
    except Unreadable:
        return None


def _unchanged(key: str, entry: Entry | None) -> Compare:
    return Compare(key, 0 if entry is None else entry.revision)
