"""Registers a worker in the store, from inside its process: keeps the worker's record there, under a lease.

The record exists while the worker accepts requests: it is written when the worker is ready, deleted before it stops
accepting, and expires with the lease if the process dies. While the store is unavailable the worker keeps serving; its
record is written again afterwards. Must never stop or slow the worker.
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

from isochrone.control.agents.access_following import AccessFollowing
from isochrone.control.agents.commit_watch import CommitWatch
from isochrone.control.state.codec import Unreadable, decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.resolving.resolver import resolver
from isochrone.store.base import Compare, Entry, Lease, LeaseEnded, Put, Store, StoreUnavailable

log = structlog.get_logger(__name__)

#: Checks of the record per lease, and the longest pause between two checks in seconds.
_CHECKS_PER_LEASE, _LONGEST_PAUSE = 4, 1.0
#: Seconds for the store to delete the record when the worker stops; after that the lease expires.
_DEREGISTER_SECONDS = 2.0
#: Seconds for each lookup of the store's names at the start.
_LOOKUP_SECONDS = 1.0
#: An address that is never in use (RFC 5737): packets to it would go the way of those to other machines.
_ANOTHER_MACHINE = "192.0.2.1"


class Due(Enum):
    """What a check of the worker's record calls for."""

    NOTHING = "nothing"
    REGISTER = "register"
    #: A process of the same name that was started later holds the record: two must not fight over it.
    YIELD = "yield"


def due(own: WorkerRecord, lease: int, seen: Entry | None) -> Due:
    """``lease``: the present lease; 0: none."""
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
    """A later start compares greater; two simultaneous starts differ by their process."""
    return f"{time.time_ns():020d}-{os.getpid()}"


def advertised_host(listening: str, store_url: str) -> str:
    """The address that other machines use for a listening address: one of this machine's if it listens on all."""
    if listening not in ("0.0.0.0", "::", ""):
        return listening
    kind, _, rest = store_url.partition(":")
    hosts = [urlsplit(part).hostname for part in rest.partition("?")[0].split(",")] if kind == "etcd" else []
    peers = [host for host in hosts if host]
    if not peers:
        # A store in a file is for one machine.
        return "127.0.0.1"
    # The last one stands for any other machine: a store whose name does not resolve now is not at a literal address.
    for peer in (*peers, _ANOTHER_MACHINE):
        try:
            # No packet is sent: the kernel only selects the address that it would use towards the store.
            for address in resolver.look_blocking(peer, _LOOKUP_SECONDS):
                with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.connect((address, 2379))
                    return str(probe.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()


class WorkerLink:
    """One worker's. ``record_of``: its record, given its ports."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        record_of: Callable[[Mapping[str, int]], WorkerRecord],
        lease_seconds: float = 5.0,
        access: AccessFollowing | None = None,
    ) -> None:
        """``access``: follows the fleet's access rules; None: the worker checks no callers, or by a file."""
        self._access = access
        self._store = store
        self._keys = keys
        self._record_of = record_of
        self._lease_seconds = lease_seconds
        self._lease: Lease | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._commits: CommitWatch | None = None
        #: Logged already.
        self._away = self._yielded = False

    async def start(self, ports: Mapping[str, int]) -> None:
        """Return at once: an unavailable store keeps no worker from serving."""
        record = self._record_of(ports)
        if self._access is not None:
            self._access.watch(self._store)
        self._commits = CommitWatch(self._store, self._keys, record.pool, record.name)
        self._keeping = asyncio.create_task(self._keep(record), name="worker-link")

    def is_complete(self, served: Mapping[tuple[str, str], str]) -> bool:
        """Whether the worker serves the versions that the committed epoch assigns to it, and knows who may call it."""
        if self._access is not None and not self._access.is_read.is_set():
            return False
        return self._commits is not None and self._commits.is_satisfied(served)

    async def stop(self) -> None:
        """Delete the record, if the store answers."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._commits is not None:
            await self._commits.stop()
        if self._access is not None:
            await self._access.stop()
        try:
            async with asyncio.timeout(_DEREGISTER_SECONDS):
                if self._lease is not None:
                    await self._lease.revoke()
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the worker could not deregister; its lease will expire", error=str(error))
        try:
            async with asyncio.timeout(_DEREGISTER_SECONDS):
                await self._store.close()
        except TimeoutError:
            log.warning("the store could not be closed in time", store=self._store.url)

    async def _keep(self, record: WorkerRecord) -> None:
        pause = min(self._lease_seconds / _CHECKS_PER_LEASE, _LONGEST_PAUSE)
        if self._access is not None:
            # Before that it would refuse what gateways send it.
            await self._access.is_read.wait()
        while True:
            try:
                await self._check(record)
            except LeaseEnded:
                # It ended between the check and the write; the next check requests another.
                self._lease = None
            except StoreUnavailable as error:
                if not self._away:
                    log.warning("the store does not answer; the worker keeps serving", error=str(error))
                self._away = True
            except Exception:
                log.exception("keeping the worker's record failed; the worker keeps serving")
            else:
                if self._away:
                    log.info("the store answers again", store=self._store.url)
                self._away = False
            await asyncio.sleep(pause)

    async def _check(self, record: WorkerRecord) -> None:
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
        # Conditional on the record that was read: a later process of this name may have written its own since.
        compare = Compare(key, seen.revision if seen is not None else 0)
        outcome = await self._store.transact((compare,), (Put(key, encode(record), lease.id),), durable=False)
        if outcome.succeeded:
            self._yielded = False
            log.info("registered", name=record.name, pool=record.pool, store=self._store.url)
