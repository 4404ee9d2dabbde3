"""The control API in this process, over a real SQLite store: no socket, no controller, no worker.

``with_api`` runs a scenario against it; the scenario plays the leader by writing records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from isochrone.control.api.application import create_app
from isochrone.control.api.service import ControlService
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.store.base import Compare, Delete, Put, Store
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

KEYS = Keys("plant")
FLEET = """
name: plant
repository: models
pools:
  cpu: {workers: 1, max: 4}
models:
  detector: {version: 1, rollout: {canary: {steps: [10%]}}}
  tracker: {version: 1}
"""


@dataclass
class Api:
    """What a scenario works with."""

    store: Store
    mirror: Mirror
    service: ControlService
    client: httpx.AsyncClient
    #: Where its fleet.yaml is.
    directory: Path

    async def write(self, key: str, record: msgspec.Struct | bytes) -> None:
        """As the leader would; returns when the API sees it."""
        value = record if isinstance(record, bytes) else encode(record)
        await self._transact([Put(key, value)])

    async def remove(self, key: str) -> None:
        await self._transact([Delete(key)])

    async def _transact(self, operations: list[Put | Delete]) -> None:
        compares: list[Compare] = []
        outcome = await self.store.transact(compares, operations)
        assert outcome.succeeded
        await self.mirror.catch_up(outcome.revision)

    async def get(self, path: str, status: int = 200) -> Any:
        return self._said(await self.client.get(path), status)

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        return self._said(await self.client.request(method, path, json=body), status)

    async def apply(self, text: str = FLEET, status: int = 200, **more: Any) -> Any:
        return await self.ask("PUT", "/v1/fleet", {"text": text, "directory": str(self.directory), **more}, status)

    @staticmethod
    def _said(response: httpx.Response, status: int) -> Any:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        return response.json()


def with_api(directory: Path, scenario: Callable[[Api], Awaitable[None]], caller: str = "127.0.0.1") -> None:
    """``caller``: the address that requests come from."""
    for model in ("detector", "tracker"):
        for version in "123456":
            (directory / "models" / model / version).mkdir(parents=True)

    async def play() -> None:
        store = open_store(f"sqlite:{directory / 'fleet.db'}")
        mirror = Mirror(store, KEYS.prefix)
        await mirror.start()
        try:
            app = create_app(
                store, mirror, KEYS, names=("plant.example",), allowed_origins=("https://console.example",)
            )
            transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(caller, 4321))
            headers = {"x-isochrone-user": "ada@desk"}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:8003", headers=headers
            ) as client:
                await scenario(Api(store, mirror, ControlService(store, mirror, KEYS), client, directory))
        finally:
            await mirror.stop()
            await store.close()

    asyncio.run(asyncio.wait_for(play(), 100))
