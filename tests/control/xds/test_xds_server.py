"""The server's loop is shared with a leader: a commit does not wake all clients in one turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from isochrone.control.state.keys import Keys
from isochrone.control.xds.clients import Client
from isochrone.control.xds.server import XdsServer
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store


def test_clients_are_woken_in_slices(tmp_path: Path) -> None:
    async def woken_by_turn() -> list[int]:
        store, keys = open_store(f"sqlite:{tmp_path / 'fleet.db'}"), Keys("slices")
        try:
            server = XdsServer(store, keys, Mirror(store, keys.prefix), "c1")
            wakes = [asyncio.Event() for _ in range(100)]
            server._wakes = {Client(str(number)): wake for number, wake in enumerate(wakes)}
            waking = asyncio.ensure_future(server._wake_clients())
            found = []
            while not waking.done():
                await asyncio.sleep(0)
                found.append(sum(wake.is_set() for wake in wakes))
                # One leaves, and one comes, which has the newest resources anyway.
                server._wakes.pop(next(iter(server._wakes)))
                server._wakes[Client("new")] = asyncio.Event()
            return found
        finally:
            await store.close()

    found = asyncio.run(woken_by_turn())
    assert found[-1] == 100
    assert max(after - before for before, after in zip([0, *found], found, strict=False)) <= 10
