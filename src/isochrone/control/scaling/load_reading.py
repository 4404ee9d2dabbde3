"""Reads the loads of a pool from its workers and from the gateways, over HTTP.

Never raises: a process that does not answer in time has said nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import httpx
from prometheus_client.parser import text_string_to_metric_families

from isochrone.control.scaling.pool_load import PoolLoad
from isochrone.control.state.records import GatewayRecord, WorkerRecord
from isochrone.control.state.view import View
from isochrone.errors import MalformedRequest
from isochrone.protocol.orca import ORCA_FORMAT_HEADER, ORCA_HEADER, reported_in_flight
from isochrone.resolving.http_transport import resolving_transport

_SECONDS = 1.0
#: Processes that are asked at the same time.
_AT_ONCE = 64
#: Without the suffix that the format adds.
_RECEIVED = "isochrone_gateway_requests"


class LoadReader:
    """One object per controller."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=_AT_ONCE)
        self._client = httpx.AsyncClient(
            timeout=_SECONDS, transport=resolving_transport(limits=limits), trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def read(self, view: View, pool: str, models: Collection[str]) -> PoolLoad:
        """``models``: those of the pool."""
        workers = [record for record in view.workers.values() if record.pool == pool]
        gateways = list(view.gateways.values())
        in_flight, received = await asyncio.gather(
            asyncio.gather(*(self._in_flight(worker) for worker in workers)),
            asyncio.gather(*(self._received(gateway, models) for gateway in gateways)),
        )
        return PoolLoad(
            {worker.name: count for worker, count in zip(workers, in_flight, strict=True)},
            {gateway.name: count for gateway, count in zip(gateways, received, strict=True)},
        )

    async def _in_flight(self, worker: WorkerRecord) -> int | None:
        headers = {ORCA_FORMAT_HEADER.decode(): "text"}
        try:
            answer = await self._client.get(_url(worker.host, worker.port, "/v2/health/live"), headers=headers)
            return reported_in_flight(answer.headers.get(ORCA_HEADER.decode(), "").encode())
        except (httpx.HTTPError, MalformedRequest):
            return None

    async def _received(self, gateway: GatewayRecord, models: Collection[str]) -> int | None:
        if not gateway.metrics_port:
            return None
        try:
            answer = await self._client.get(_url(gateway.host, gateway.metrics_port, "/metrics"))
            families = list(text_string_to_metric_families(answer.text))
        except (httpx.HTTPError, ValueError):
            return None
        samples = (sample for family in families if family.name == _RECEIVED for sample in family.samples)
        return int(sum(sample.value for sample in samples if sample.labels.get("model") in models))


def _url(host: str, port: int, path: str) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
