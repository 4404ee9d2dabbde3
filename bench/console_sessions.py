"""Readers of the console for ``bench.console_cost``: sessions that send what a browser sends and draw nothing, and
Chromium.

A page session gets a page, everything that the page loads, the rights, the operations and a history, and opens the
framework's WebSocket, which answers the server's pings and acknowledges once, and the event stream.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shutil
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from html import unescape
from urllib.parse import urljoin

import httpx
import socketio

#: Pages that browsers look at, in turn.
PAGES = ("", "latency", "rollouts", "events")
#: References to files: of HTML, of its import map, of style sheets, and imports of modules.
_HTML = re.compile(r'(?:src|href)="([^"#]+\.(?:js|css|ico|svg))"')
_OTHER = (re.compile(r'url\("?([^")]+)"?\)'), re.compile(r'(?:from|import)\s*"(\.[^"]+)"'))
_IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
_QUERY = re.compile(r"query: (\{.*?\}),\n")
_SOCKET = "/console/_nicegui_ws/socket.io"


class Reader:
    """One browser; ``streamed``: bytes of its event stream."""

    def __init__(self, base_url: str) -> None:
        self.streamed = 0
        self.loaded = 0
        self._base_url = base_url

    def client(self) -> httpx.AsyncClient:
        # As many connections as a browser has to one server.
        limits = httpx.Limits(max_connections=6)
        return httpx.AsyncClient(base_url=self._base_url, trust_env=False, timeout=60, limits=limits, verify=False)

    async def read_stream(self) -> None:
        """Until cancelled."""
        async with self.client() as client:
            await self._read(client)

    async def look_at(self, page: str) -> None:
        """Open a page and read, until cancelled."""
        async with self.client() as client:
            html = (await client.get(f"/console/{page}")).raise_for_status().text
            found = _QUERY.search(html)
            assert found is not None, "a page of another framework?"
            await asyncio.gather(*(self._load(client, each) for each in await self._files(client, html)))
            async with _socket(self._base_url, ast.literal_eval(unescape(found[1]))):
                for path in ("/v1/rights", "/v1/openapi.json"):
                    (await client.get(path)).raise_for_status()
                if page == "latency":
                    params = {"model": "pipeline", "seconds": "300"}
                    (await client.get("/console/history", params=params)).raise_for_status()
                await self._read(client)

    async def _read(self, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/console/live") as response:
            async for chunk in response.aiter_raw():
                self.streamed += len(chunk)

    async def _files(self, client: httpx.AsyncClient, html: str) -> Sequence[str]:
        """Of a page: with what its style sheets and modules name, and the import map's modules that a page runs."""
        page = "/console/"
        found = {urljoin(page, each) for each in _HTML.findall(html)}
        found |= {urljoin(page, each) for each in _OTHER[0].findall(html)}
        for imported in _IMPORT_MAP.findall(html):
            names = json.loads(unescape(imported))["imports"]
            found |= {urljoin(page, names[each]) for each in ("vue", "dompurify") if each in names}
        further: set[str] = set()
        for path in sorted(each for each in found if "/assets/" in each):
            content = await self._load(client, path)
            further |= {urljoin(path, each) for pattern in _OTHER for each in pattern.findall(content)}
        return sorted((found | further) - {each for each in found if "/assets/" in each})

    async def _load(self, client: httpx.AsyncClient, path: str) -> str:
        answer = await client.get(path)
        self.loaded += len(answer.content) if answer.is_success else 0
        return answer.text if path.endswith((".js", ".css")) else ""


@asynccontextmanager
async def _socket(base_url: str, query: dict[str, object]) -> AsyncIterator[None]:
    """The framework's socket.io connection, by WebSocket alone, as its script opens it."""
    given = {**query, "document_id": uuid.uuid4(), "tab_id": uuid.uuid4(), "old_tab_id": "null"}
    words = "&".join(f"{key}={json.dumps(each) if isinstance(each, bool) else each}" for key, each in given.items())
    client = socketio.AsyncClient(reconnection=False)
    await client.connect(f"{base_url}?{words}", socketio_path=_SOCKET, transports=["websocket"], wait_timeout=60)
    try:
        await client.emit("ack", {"client_id": query["client_id"], "next_message_id": query["next_message_id"]})
        yield
        assert client.connected
    finally:
        await client.disconnect()


@asynccontextmanager
async def chromium_tabs(base_url: str, count: int) -> AsyncIterator[None]:
    """Chromium with so many tabs, each with connections of its own, all of them live."""
    async with AsyncExitStack() as stack:
        if count:
            from playwright.async_api import async_playwright, expect

            started = await stack.enter_async_context(async_playwright())
            path = shutil.which("chromium")
            browser = await started.chromium.launch(executable_path=path, args=["--no-sandbox"])
            stack.push_async_callback(browser.close)
            for index in range(count):
                context = await browser.new_context(viewport={"width": 1280, "height": 800})
                tab = await context.new_page()
                await tab.goto(f"{base_url}/console/{PAGES[index % len(PAGES)]}", timeout=120_000)
                await expect(tab.locator('[data-live="connection"]')).to_have_text("live", timeout=120_000)
        yield
