"""Writes the membership of processes to the store: deregisters dead gateways, and drains processes before they stop.

A strict switch waits for an acknowledgement from every known gateway. A gateway that was killed cannot deregister, so
the supervisor does it: it knows that the process ended.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from isochrone.control.state.codec import Unreadable, decode, encode
from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import SUPERVISOR, EventRecord
from isochrone.control.state.view import View
from isochrone.store.base import Compare, Delete, Entry, Put, Store
from isochrone.store.retrying import until_available
from isochrone.store.seals import refusal


class Membership:
    """The membership records of one fleet."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        #: Name and pid of a gateway's process → its incarnation. Processes of two machines may have one pid.
        self._incarnations: dict[tuple[str, int], str] = {}

    def notice(self, view: View) -> None:
        """Remember the incarnations: a gateway's record may be gone when its death is noticed."""
        for record in view.gateways.values():
            self._incarnations[record.name, record.pid] = record.incarnation

    async def forget_gateway(self, name: str, pid: int) -> None:
        """Deregister the gateway whose process of that pid is dead. Return when no switch waits for it."""
        while not await until_available(lambda: self._forgotten(name, pid)):
            pass  # a record changed in between
        self._incarnations.pop((name, pid), None)

    async def _forgotten(self, name: str, pid: int) -> bool:
        keys = self._keys
        known = await self._store.get(keys.known_gateway(name))
        if known is None:
            return True  # it deregistered
        registered = await self._store.get(keys.gateway(name))
        count = await self._store.get(keys.gateway_set)
        record = _gateway(registered)
        own = record is not None and record.pid == pid
        incarnation = record.incarnation if record is not None and own else self._incarnations.get((name, pid))
        known_as = known.value.decode("utf-8", "replace")
        if incarnation is not None and known_as != incarnation:
            return True  # its successor has registered
        if incarnation is None and (record is not None or known_as in self._incarnations.values()):
            return True  # it never registered; the record is another process's
        # Writing the set makes the commit of a switch that counted this gateway fail and be decided again.
        operations: list[Put | Delete] = [Delete(known.key), Put(keys.gateway_set, f"{name} died".encode())]
        if own:
            operations.append(Delete(keys.gateway(name)))
        reported = EventRecord(time.time(), SUPERVISOR, "gateway died", name, f"process {pid}")
        operations.append(event(keys, reported, secrets.token_hex(4)))
        compares = [_unchanged(keys.known_gateway(name), known), _unchanged(keys.gateway_set, count)]
        return (await self._store.transact(compares, operations)).succeeded

    async def drain(self, name: str) -> None:
        """Raise ``StoreUnavailable``. A drain that a user asked for stays the user's."""
        record = EventRecord(time.time(), SUPERVISOR, "drain", name, "it is to stop")
        key = self._keys.drain(name)
        present = await self._store.get(key)
        if present is not None and not refusal(present.value):
            return
        await self._store.transact((_unchanged(key, present),), (Put(key, encode(record)),))

    async def undrain(self, names: Sequence[str]) -> None:
        """Delete the drains that ``drain`` wrote. Raise ``StoreUnavailable``."""
        for name in names:
            entry = await self._store.get(self._keys.drain(name))
            if entry is not None and is_own(entry):
                await self._store.transact((Compare(entry.key, entry.revision),), (Delete(entry.key),))


def is_own(drain: Entry) -> bool:
    """Whether the supervisor wrote it."""
    try:
        return decode(drain.value, EventRecord).who == SUPERVISOR
    except Unreadable:
        return False


def _gateway(entry: Entry | None) -> GatewayRecord | None:
    """None: the record is absent or cannot be read."""
    try:
        return None if entry is None else decode(entry.value, GatewayRecord)
    except Unreadable:
        return None


def _unchanged(key: str, entry: Entry | None) -> Compare:
    return Compare(key, 0 if entry is None else entry.revision)
