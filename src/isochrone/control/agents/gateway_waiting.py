"""Writes which models' requests wait at a gateway for a worker, so that an autoscaler learns it within milliseconds.

The record has the lease of the gateway's registration. ``waiting_reports`` decides when it is written; this module
writes it, in a task of its own that runs only while requests wait or the record stands. Requests never wait for it, and
a store that is unavailable only delays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.agents.waiting_reports import WaitingReports
from isochrone.control.state.codec import encode
from isochrone.control.state.records import WaitingRecord
from isochrone.gateway.gateway import Gateway
from isochrone.store.base import Compare, Delete, Lease, Put, Store, StoreUnavailable

log = structlog.get_logger(__name__)


class GatewayWaiting:
    """One gateway's. ``key``: of its record; ``lease``: that of its registration, None before that."""

    def __init__(self, store: Store, key: str, gateway: Gateway, lease: Callable[[], Lease | None]) -> None:
        self._store = store
        self._key = key
        self._gateway = gateway
        self._lease = lease
        self._reports = WaitingReports()
        self._tasks = BackgroundTasks()
        self._is_running = False
        self._sleeps_until = -inf
        self._woken = asyncio.Event()
        gateway.on_waiting_changed = self._changed

    async def stop(self) -> None:
        """Write no more. The record that stands goes with the lease."""
        self._gateway.on_waiting_changed = None
        await self._tasks.end()

    def registered(self) -> None:
        """The gateway has registered, perhaps once more."""
        self._reports.registered()
        self._look()

    def _changed(self, model: str, waits: bool) -> None:
        self._reports.changed(model, waits, monotonic())
        self._look()

    def _look(self) -> None:
        due = self._reports.due_at
        if not self._is_running:
            if due < inf:
                self._is_running = True
                self._tasks.start(self._keep())
        elif due < self._sleeps_until:
            self._woken.set()

    async def _keep(self) -> None:
        """Until no request waits and the record is deleted."""
        try:
            while (due := self._reports.due_at) < inf:
                await self._sleep(due)
                models = self._reports.take(self._gateway.waiting_models(), monotonic())
                if models is not None:
                    await self._write(models)
        finally:
            self._is_running = False

    async def _sleep(self, until: float) -> None:
        """Return at a time, or earlier if something is due earlier."""
        seconds = until - monotonic()
        if seconds <= 0:
            return
        self._woken.clear()
        self._sleeps_until = until
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        finally:
            self._sleeps_until = -inf

    async def _write(self, models: Mapping[str, int]) -> None:
        lease = self._lease()
        try:
            if lease is None or lease.lost:
                # ``registered`` follows.
                self._reports.failed(monotonic())
                return
            if models:
                record = WaitingRecord(dict(models))
                await self._store.transact((), (Put(self._key, encode(record), lease.id),), durable=False)
            else:
                await self._delete(lease)
            self._reports.written()
        except StoreUnavailable:
            self._reports.failed(monotonic())  # the mirror logs it
        except Exception as error:
            log.error("writing which models' requests wait failed unexpectedly", exc_info=error)
            self._reports.failed(monotonic())

    async def _delete(self, lease: Lease) -> None:
        """Delete the record, if it is this gateway's: another one may have taken over the name."""
        entry = await self._store.get(self._key)
        if entry is not None and entry.lease == lease.id:
            await self._store.transact((Compare(entry.key, entry.revision),), (Delete(entry.key),), durable=False)
