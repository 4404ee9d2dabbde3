"""Reads the counters of all registered gateways and workers, over HTTP, for the leader.

Never raises: a process that does not answer in time has said nothing. Pages are parsed one in each turn of the loop: a
page of a thousand models takes some milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from time import monotonic
from typing import NamedTuple, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from isochrone.control.scaling.reading.configuration_cache import ConfigurationCache, Key
from isochrone.control.scaling.reading.counter_pages import gateway_counts, model_configuration, worker_statistics
from isochrone.control.scaling.reading.fleet_counters import FleetReading, GatewayCounts, WorkerStatistics
from isochrone.control.scaling.reading.process_pages import AT_ONCE, SECONDS, page_client
from isochrone.control.state.process_records import NO_FIELDS, GatewayRecord, WorkerRecord
from isochrone.control.state.view import View
from isochrone.errors import MalformedRequest
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER, ORCA_HEADER, reported_in_flight

#: Asks a worker for its load beside the page.
_WITH_LOAD = {ORCA_FORMAT_HEADER.decode(): "text"}
_Page = TypeVar("_Page")


class _Answer(NamedTuple):
    content: bytes
    headers: httpx.Headers
    #: Of the monotonic clock, when it arrived.
    instant: float


class FleetReader:
    """One object per controller."""

    def __init__(self, client: httpx.AsyncClient | None = None, own_fields: Mapping[str, str] = NO_FIELDS) -> None:
        """``own_fields``: headers for processes of the fleet."""
        self._own_fields = own_fields
        self._client = client or page_client()
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._parsing = asyncio.Lock()
        #: By pool.
        self._configurations: dict[str, ConfigurationCache] = {}

    async def close(self) -> None:
        await self._client.aclose()

    async def read(self, view: View, pools: Collection[str]) -> FleetReading:
        """All gateways, and the workers of ``pools`` and of those that serve a model of theirs, too."""
        instant = monotonic()
        gateways, serving = view.gateways, _with_shared_models(view, pools)
        workers = {name: worker for name, worker in view.workers.items() if worker.pool in serving}
        self._keep_configurations({worker.pool for worker in view.workers.values()}, serving)
        for pool in serving & self._configurations.keys():
            self._configurations[pool].keep(workers.keys())
        names = {worker.address: name for name, worker in view.workers.items()}
        counts, statistics = await asyncio.gather(
            asyncio.gather(*(self._of_gateway(gateway, names) for gateway in gateways.values())),
            asyncio.gather(*(self._of_worker(name, worker) for name, worker in workers.items())),
        )
        await self._ask_configurations(workers, serving)
        read = dict(zip(workers, statistics, strict=True))
        return FleetReading(
            instant,
            dict(zip(gateways, counts, strict=True)),
            {
                name: None if each is None else self._configurations[workers[name].pool].complete(each)
                for name, each in read.items()
            },
            frozenset(name for name, gateway in gateways.items() if gateway.metrics_port <= 0),
        )

    async def _of_gateway(self, gateway: GatewayRecord, workers: Mapping[str, str]) -> GatewayCounts | None:
        """``workers``: names by address."""
        if gateway.metrics_port <= 0:
            return None

        def parse(page: _Answer) -> GatewayCounts:
            return replace(gateway_counts(page.content, gateway.incarnation, workers), instant=page.instant)

        return await self._parsed(await self._page(f"{gateway.metrics_url}/metrics", self._own_fields), parse)

    async def _of_worker(self, name: str, worker: WorkerRecord) -> WorkerStatistics | None:
        cache = self._configurations[worker.pool]

        def parse(page: _Answer) -> WorkerStatistics:
            found = worker_statistics(page.content, worker.incarnation, cache.known)
            found = replace(found, instant=page.instant, in_flight=_in_flight(page.headers))
            cache.take(name, found)
            return found

        fields = {**_WITH_LOAD, **self._fields_of(worker)}
        return await self._parsed(await self._page(f"{worker.url}/v2/models/stats", fields), parse)

    def _fields_of(self, worker: WorkerRecord) -> Mapping[str, str]:
        return self._own_fields if worker.is_of_fleet else NO_FIELDS

    def _keep_configurations(self, every: Collection[str], serving: Collection[str]) -> None:
        """Those of pools that are not read this time are kept: the next reading may be of them."""
        self._configurations = {pool: cache for pool, cache in self._configurations.items() if pool in every}
        for pool in serving:
            if pool in every:
                self._configurations.setdefault(pool, ConfigurationCache())

    async def _ask_configurations(self, workers: Mapping[str, WorkerRecord], serving: Collection[str]) -> None:
        await asyncio.gather(
            *(
                self._ask_configuration(workers[name], key, cache)
                for pool, cache in self._configurations.items()
                if pool in serving
                for name, key in cache.questions()
            )
        )

    async def _ask_configuration(self, worker: WorkerRecord, key: Key, cache: ConfigurationCache) -> None:
        model, version = (quote(each, safe="") for each in key)
        versions = f"/versions/{version}" if version else ""
        page = await self._page(f"{worker.url}/v2/models/{model}{versions}/config", self._fields_of(worker))
        cache.answer(key, await self._parsed(page, lambda found: model_configuration(found.content)))

    async def _page(self, url: str, headers: Mapping[str, str] | None = None) -> _Answer | None:
        try:
            async with self._asking, asyncio.timeout(SECONDS):
                answer = await self._client.get(url, headers=headers)
                is_found = answer.status_code == httpx.codes.OK
                return _Answer(answer.content, answer.headers, monotonic()) if is_found else None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError):
            return None

    async def _parsed(self, page: _Answer | None, parse: Callable[[_Answer], _Page]) -> _Page | None:
        if page is None:
            return None
        async with self._parsing:
            await asyncio.sleep(0)
            try:
                return parse(page)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return None


def _in_flight(headers: httpx.Headers) -> int | None:
    try:
        return reported_in_flight(headers.get(ORCA_HEADER.decode(), "").encode())
    except MalformedRequest:
        return None


def _with_shared_models(view: View, pools: Collection[str]) -> set[str]:
    """``pools`` and those that serve a model of theirs, too."""
    found = set(pools)
    every = {worker.pool for worker in view.workers.values()}
    for committed in view.assignments.values():
        # A model without pools is in all of them.
        its = committed.pools or every
        if not found.issuperset(its) and not set(pools).isdisjoint(its):
            found.update(its)
    return found
