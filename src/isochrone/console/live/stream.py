"""One browser's stream of server-sent events.

A reader is sent the newest messages when it has taken the ones before: what it was too slow for is left out. So a
browser that sleeps holds one message and the buffers of its connection, and nothing else. The kernel ends a connection
whose peer takes nothing for a while (``serve_api`` sets the limit); the browser connects again when it wakes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from isochrone.console.live.aggregation import Aggregation

#: Milliseconds after which a browser connects again. Not at once: a controller that restarts has them all.
_RETRY = b"retry: 2000\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Proxies such as nginx would collect the messages.
    (b"x-accel-buffering", b"no"),
]


class LiveStream(Response):
    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__()
        self._aggregation = aggregation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        aggregation = self._aggregation
        with aggregation.reading():
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
            ends: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(_gone(receive)),
                asyncio.ensure_future(aggregation.stopping.wait()),
            ]
            try:
                await self._write(send, ends)
            finally:
                for each in ends:
                    each.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        if not ends[0].done() or ends[0].cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, ends: list[asyncio.Future[Any]]) -> None:
        """Until the browser has gone or the controller stops."""
        aggregation = self._aggregation
        fleet, second = 0, 0 if aggregation.is_fresh else aggregation.number
        while not any(each.done() for each in ends):
            if second != aggregation.number:
                parts = []
                if fleet != aggregation.fleet_number:
                    fleet = aggregation.fleet_number
                    parts.append(aggregation.fleet)
                second = aggregation.number
                parts.append(aggregation.second)
                for part in parts:
                    # Waits while the connection's buffer is full.
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                continue
            published: asyncio.Future[Any] = asyncio.ensure_future(aggregation.published())
            try:
                await asyncio.wait((published, *ends), return_when=asyncio.FIRST_COMPLETED)
            finally:
                published.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
