"""Reads the loads of a pool from its workers and from the gateways, over HTTP.

Never raises: a process that does not answer in time has said nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from isochrone.control.scaling.keda.pool_load import PoolLoad
from isochrone.control.scaling.reading.process_pages import page_client
from isochrone.control.state.process_records import NO_FIELDS, GatewayRecord, WorkerRecord
from isochrone.control.state.view import View
from isochrone.errors import MalformedRequest
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER, ORCA_HEADER, reported_in_flight

#: Without the suffix that the format adds.
_RECEIVED, _WAITING = "isochrone_gateway_requests", "isochrone_gateway_waiting"


class LoadReader:
    """One object per controller."""

    def __init__(self, own_fields: Mapping[str, str] = NO_FIELDS) -> None:
        """``own_fields``: headers for processes of the fleet."""
        self._client = page_client()
        self._own_fields = own_fields

    async def close(self) -> None:
        await self._client.aclose()

    async def read(self, view: View, pool: str, models: Collection[str]) -> PoolLoad:
        """``models``: those of the pool."""
        workers = [record for record in view.workers.values() if record.pool == pool]
        gateways = list(view.gateways.values())
        in_flight, pages = await asyncio.gather(
            asyncio.gather(*(self._in_flight(worker) for worker in workers)),
            asyncio.gather(*(self._of_models(gateway, models) for gateway in gateways)),
        )
        return PoolLoad(
            {worker.name: count for worker, count in zip(workers, in_flight, strict=True)},
            {
                gateway.name: None if page is None else page[_RECEIVED]
                for gateway, page in zip(gateways, pages, strict=True)
            },
            sum(page[_WAITING] for page in pages if page is not None),
        )

    async def _in_flight(self, worker: WorkerRecord) -> int | None:
        headers = {ORCA_FORMAT_HEADER.decode(): "text", **(self._own_fields if worker.is_of_fleet else {})}
        try:
            answer = await self._client.get(f"{worker.url}/v2/health/live", headers=headers)
            return reported_in_flight(answer.headers.get(ORCA_HEADER.decode(), "").encode())
        except (httpx.HTTPError, MalformedRequest):
            return None

    async def _of_models(self, gateway: GatewayRecord, models: Collection[str]) -> dict[str, int] | None:
        """By metric: its sum over the models on a gateway's page; None: it did not say."""
        if not gateway.metrics_port:
            return None
        try:
            answer = await self._client.get(f"{gateway.metrics_url}/metrics", headers=self._own_fields)
            families = list(text_string_to_metric_families(answer.text))
        except (httpx.HTTPError, ValueError):
            return None
        found = {_RECEIVED: 0.0, _WAITING: 0.0}
        for family in families:
            if family.name in found:
                own = (sample.value for sample in family.samples if sample.labels.get("model") in models)
                found[family.name] = sum(own)
        return {name: int(count) for name, count in found.items()}
