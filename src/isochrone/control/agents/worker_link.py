"""Runs beside a worker, in its process: keeps the worker's record in the store, by a lease.

The record is there while the worker takes requests: written when it is ready, gone before it stops accepting, and gone
with the lease when the process dies. The store may come and go: the worker serves on, and is written again when the
store is back. It must never stop or slow the worker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from enum import Enum
from urllib.parse import urlsplit

import structlog

from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Unreadable, WorkerRecord, decode, encode
from isochrone.store.base import Compare, Entry, Lease, LeaseEnded, Put, Store, StoreUnavailable

log = structlog.get_logger()

#: Between two looks at the own record: a part of the lease, at most so many seconds.
_LOOKS_PER_LEASE, _LONGEST_PAUSE = 4, 1.0
#: Stopping waits so long for the store to forget the worker; then its lease sees to it.
_FAREWELL_SECONDS = 2.0


class Due(Enum):
    """What a look at the own record asks for."""

    NOTHING = "nothing"
    REGISTER = "register"
    #: A process of the same name that was started later has it: two must not fight over it.
    YIELD = "yield"


def due(own: WorkerRecord, lease: int, seen: Entry | None) -> Due:
    """``lease``: the one held now; 0: none."""
    if seen is None:
        return Due.REGISTER
    try:
        there = decode(seen.value, WorkerRecord)
    except Unreadable:
        return Due.REGISTER
    if there.incarnation > own.incarnation:
        return Due.YIELD
    return Due.NOTHING if there == own and seen.lease == lease else Due.REGISTER


def new_incarnation() -> str:
    """Of two starts the later one compares greater; two at once differ by their process."""
    return f"{time.time_ns():020d}-{os.getpid()}"


def advertised_host(listening: str, store_url: str) -> str:
    """Where others find what listens here: an address of this machine, where it listens on all of them."""
    if listening not in ("0.0.0.0", "::", ""):
        return listening
    kind, _, rest = store_url.partition(":")
    peer = urlsplit(rest.split(",")[0]).hostname if kind == "etcd" else None
    if peer is None:
        # A store in a file is for one machine.
        return "127.0.0.1"
    # No packet is sent: the kernel only says which of its addresses it would use towards the store.
    try:
        family, kind_, protocol, _, address = socket.getaddrinfo(peer, 2379, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind_, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


class WorkerLink:
    """One worker's. ``record_of``: its record, once its ports are known."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        record_of: Callable[[Mapping[str, int]], WorkerRecord],
        lease_seconds: float = 5.0,
    ) -> None:
        self._store = store
        self._keys = keys
        self._record_of = record_of
        self._lease_seconds = lease_seconds
        self._lease: Lease | None = None
        self._keeping: asyncio.Task[None] | None = None
        #: Said in the log already.
        self._away = self._yielded = False

    async def start(self, ports: Mapping[str, int]) -> None:
        """Returns at once: a store that is away keeps no worker from serving."""
        self._keeping = asyncio.create_task(self._keep(self._record_of(ports)), name="worker-link")

    async def stop(self) -> None:
        """The record is gone when it returns, if the store answers."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                if self._lease is not None:
                    await self._lease.revoke()
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the store was not told that the worker leaves; its lease will tell", error=str(error))
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._store.close()
        except TimeoutError:
            log.warning("the store does not let go", store=self._store.url)

    async def _keep(self, record: WorkerRecord) -> None:
        pause = min(self._lease_seconds / _LOOKS_PER_LEASE, _LONGEST_PAUSE)
        while True:
            try:
                await self._look(record)
            except LeaseEnded:
                # Between the look and the write; the next look asks for another.
                self._lease = None
            except StoreUnavailable as error:
                if not self._away:
                    log.warning("the store does not answer; the worker serves on", error=str(error))
                self._away = True
            except Exception:
                log.exception("keeping the worker's record failed; the worker serves on")
            else:
                if self._away:
                    log.info("the store answers again", store=self._store.url)
                self._away = False
            await asyncio.sleep(pause)

    async def _look(self, record: WorkerRecord) -> None:
        key = self._keys.worker(record.name)
        seen = await self._store.get(key)
        lease = None if self._lease is None or self._lease.lost else self._lease
        what = due(record, 0 if lease is None else lease.id, seen)
        if what is Due.YIELD:
            if not self._yielded:
                log.error("another worker of this name was started later; give each its own --name", name=record.name)
            self._yielded = True
        if what is not Due.REGISTER:
            return
        if lease is None:
            lease = self._lease = await self._store.grant(self._lease_seconds)
        # Only over what was seen: between the two, a later process of this name may have written its own.
        compare = Compare(key, seen.revision if seen is not None else 0)
        outcome = await self._store.transact((compare,), (Put(key, encode(record), lease.id),), durable=False)
        if outcome.succeeded:
            self._yielded = False
            log.info("registered", name=record.name, pool=record.pool, store=self._store.url)
