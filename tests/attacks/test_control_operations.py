"""Every operation of the control API with the credentials of every role."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx
from guarded_servers import CALLERS, write_access

from isochrone.control.api.application import create_app
from isochrone.control.api.callers.access_rights import AccessRights
from isochrone.control.api.routes import OPERATIONS
from isochrone.control.state.keys import Keys
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.access.permissions import (
    BUILT_IN,
    FLEET_ADMIN,
    FLEET_CHANGE,
    FLEET_READ,
    HEALTH,
    METRICS,
    RECORDS,
)
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

KEYS = Keys("guarded")


def test_every_operation_needs_its_permission(tmp_path: Path, tried: Counter[str]) -> None:
    tokens = write_access(tmp_path / "access.yaml")

    async def play() -> None:
        store = open_store(f"sqlite:{tmp_path / 'fleet.db'}")
        mirror = Mirror(store, KEYS.prefix)
        await mirror.start()
        app = create_app(store, mirror, KEYS, rights=AccessRights(AccessKeeper(tmp_path / "access.yaml")))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8003") as client:

            async def status(method: str, path: str, value: str) -> int:
                # What is let through is a GET of a stream at times: its status is enough.
                async with client.stream(method, path, headers={"authorization": value} if value else {}) as answer:
                    return answer.status_code

            for each in OPERATIONS:
                path = each.path.replace("{", "").replace("}", "").replace(":path", "")
                if each.permission == HEALTH:
                    assert await status(each.method, path, "") in (200, 404), path
                    continue
                for bad in ("", "Bearer wrong", "Basic YTpi", *(f"Bearer {tokens[name]}" for name in CALLERS[-2:])):
                    assert await status(each.method, path, bad) == 401, (path, bad)
                    tried["control API without a credential, or with a bad one"] += 1
                for role, permissions in BUILT_IN.items():
                    if each.permission not in permissions:
                        assert await status(each.method, path, f"Bearer {tokens[role]}") == 403, (path, role)
                        tried["control API with the token of another role"] += 1
                if not each.streams:
                    assert await status(each.method, path, f"Bearer {tokens['admin']}") not in (401, 403), path
        await mirror.stop()
        await store.close()

    asyncio.run(asyncio.wait_for(play(), 120))


def test_what_changes_the_fleet_needs_a_permission_of_its_own() -> None:
    for each in OPERATIONS:
        reads = each.method == "GET" or each.path == "/v1/what-if"
        assert each.changes != reads, each.path
        of_changes, of_reading = (FLEET_CHANGE, FLEET_ADMIN), (FLEET_READ, HEALTH, METRICS, RECORDS)
        assert each.permission in (of_changes if each.changes else of_reading), each.path
