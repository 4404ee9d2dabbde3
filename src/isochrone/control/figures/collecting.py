"""Asks every gateway for its figures, once a second, and keeps the history of the fleet.

Every controller does: whichever a browser or a command asks has a history. A gateway that hangs, or is away, is shown
as unreachable; frames wait for it once, up to the deadline of a request, and after that no frame waits for it until it
answers again. Workers are not asked: gateways have their load reports.

What a gateway had counted is kept for an hour after its record went: leases lapse, and come back with the same process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import httpx
import msgspec
import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.figures.differences import Counted, GatewayCounts, added_models
from isochrone.control.figures.frames import Frame, GatewayFigures
from isochrone.control.figures.history import History
from isochrone.control.figures.worker_loads import worker_figures
from isochrone.control.state.process_records import NO_FIELDS, GatewayRecord
from isochrone.control.state.view import View
from isochrone.gateway.figures.page import FIGURES_PATH, MOST_BYTES, FiguresPage, WorkerLoad, decode
from isochrone.wire.tls.fleet_transport import fleet_transport

log = structlog.get_logger(__name__)

#: Seconds between two frames, and those that a gateway has to answer.
_PERIOD: Final = 1.0
_SECONDS: Final = 0.8
#: Gateways that are asked at the same time.
_AT_ONCE: Final = 64
#: Gateways without a record that are still known, and for how many seconds.
_MOST_AWAY: Final = 128
_AWAY_SECONDS: Final = 3600.0


class _Gateway:
    """One gateway, as long as it is registered, and for a while after that."""

    def __init__(self) -> None:
        self.counts = GatewayCounts()
        #: When its last page came; None: none has.
        self.heard_at: float | None = None
        #: The question under way.
        self.asking: asyncio.Task[None] | None = None
        self.is_reachable = True
        #: What its answers since the last frame had; None: nothing.
        self.counted: Counted | None = None
        self.workers: tuple[WorkerLoad, ...] = ()

    def take(self, name: str, page: FiguresPage, now: float, watched_since: float) -> None:
        """``watched_since``: from when on a process that nobody has heard of is a new one."""
        since = watched_since if self.heard_at is None else self.heard_at
        counted = self.counts.take(name, page, (now - since) * 1000)
        self.heard_at = now
        if self.counted is not None:
            counted = Counted(
                self.counted.gateway.merged(counted.gateway),
                added_models((self.counted.models, counted.models)),
                self.counted.is_whole and counted.is_whole,
            )
        self.counted, self.workers = counted, page.workers


class FiguresCollector:
    """Of one controller. ``view``: the records as they stand now."""

    def __init__(
        self,
        view: Callable[[], View],
        history: History | None = None,
        *,
        client: httpx.AsyncClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        own_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        """``own_fields``: headers that prove to gateways that a controller asks."""
        self._own_fields = own_fields
        self.history = history or History()
        self._view = view
        self._client = client
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        #: Those whose records went, the longest ago first, and when.
        self._away: dict[str, tuple[float, _Gateway]] = {}
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._tasks = BackgroundTasks()
        #: The start, or the last page of a gateway that is forgotten since: an older process may have been counted.
        self._watched_since = clock()
        #: Added to the monotonic clock: frames go on in order when the machine's time is set.
        self._epoch = unix_time() - self._watched_since

    async def run(self) -> None:
        """Until cancelled."""
        client = self._client or _client(self._own_fields)
        due = self._clock()
        try:
            while True:
                try:
                    # By when it was due: two frames never have the same second.
                    self.history.add(await self.collect(client, int(due + self._epoch)))
                except Exception as error:
                    # A page or a record that makes no sense must not end the history for good.
                    log.error("the fleet's figures could not be collected", exc_info=error)
                now = self._clock()
                due = max(due + _PERIOD, now)
                await asyncio.sleep(due - now)
        finally:
            await self._tasks.end()
            if self._client is None:
                await client.aclose()

    async def collect(self, client: httpx.AsyncClient, at: int) -> Frame:
        """Ask all gateways; the frame of what they have answered. ``at``: its unix second."""
        view = self._view()
        records = view.gateways
        self._know(records)
        waited = []
        for name, record in records.items():
            gateway = self._gateways[name]
            if gateway.asking is None or gateway.asking.done():
                gateway.asking = self._tasks.start(self._ask(client, record, gateway))
                if gateway.is_reachable:
                    waited.append(gateway.asking)
        if waited:
            await asyncio.wait(waited, timeout=_SECONDS)
        return self._frame(at, {worker.address: name for name, worker in view.workers.items()})

    def _know(self, names: Iterable[str]) -> None:
        """These are registered now. The others are kept for a while, for they may come back."""
        now, before = self._clock(), self._gateways
        self._gateways = {}
        for name in names:
            _, known = self._away.pop(name, (now, None))
            if name in before:
                known = before.pop(name)
            self._gateways[name] = known or _Gateway()
        self._away.update((name, (now, gateway)) for name, gateway in before.items() if gateway.heard_at is not None)
        while self._away:
            name, (left_at, gateway) = next(iter(self._away.items()))
            if len(self._away) <= _MOST_AWAY and now - left_at < _AWAY_SECONDS:
                break
            del self._away[name]
            self._watched_since = max(self._watched_since, gateway.heard_at or 0.0)

    def _frame(self, at: int, names: Mapping[str, str]) -> Frame:
        gateways: dict[str, GatewayFigures] = {}
        counted: list[Counted] = []
        for name, gateway in self._gateways.items():
            answered, gateway.counted = gateway.counted, None
            if answered is None:
                gateway.is_reachable = False
                gateway.workers = ()
                gateways[name] = GatewayFigures(name, is_reachable=False)
            else:
                gateway.is_reachable = True
                gateways[name] = answered.gateway
                counted.append(answered)
        workers = worker_figures((gateway.workers for gateway in self._gateways.values()), names)
        models = added_models(each.models for each in counted)
        return Frame(at, models, workers, gateways, is_whole=all(each.is_whole for each in counted))

    async def _ask(self, client: httpx.AsyncClient, record: GatewayRecord, gateway: _Gateway) -> None:
        if record.metrics_port <= 0:
            return
        try:
            async with self._asking, asyncio.timeout(_SECONDS):
                content = await _page(client, record)
            if content is not None:
                gateway.take(record.name, decode(content), self._clock(), self._watched_since)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, msgspec.MsgspecError):
            pass  # it is shown as unreachable
        except Exception as error:
            log.error("a gateway's figures could not be used", gateway=record.name, exc_info=error)


async def _page(client: httpx.AsyncClient, record: GatewayRecord) -> bytes | None:
    """None: it has no such page, or one that is too large."""
    async with client.stream("GET", f"{record.metrics_url}{FIGURES_PATH}") as answer:
        if answer.status_code != httpx.codes.OK:
            return None
        content = bytearray()
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MOST_BYTES:
                return None
        return bytes(content)


def _client(own_fields: Mapping[str, str]) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=_AT_ONCE)
    return httpx.AsyncClient(
        timeout=_SECONDS,
        transport=fleet_transport(limits),
        trust_env=False,
        headers={"accept-encoding": "identity", **own_fields},
    )
