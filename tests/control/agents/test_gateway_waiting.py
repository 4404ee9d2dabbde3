"""The record of models whose requests wait at a gateway, in a real store: under its lease, whatever the store does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from isochrone.control.agents.gateway_waiting import GatewayWaiting
from isochrone.control.state.codec import decode
from isochrone.control.state.records import WaitingRecord
from isochrone.gateway.gateway import Gateway
from isochrone.store.base import Compare, Delete, Lease, Outcome, Put, StoreUnavailable
from isochrone.store.sqlite.store import SqliteStore

KEY = "/isochrone/plant/waiting/g"
SECONDS = 60.0


class FailingStore(SqliteStore):
    """Each transaction fails, for a while."""

    fails = 0

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("store test: it fails")
        return await super().transact(compares, operations, durable=durable)


class Requests:
    """As many requests wait as a test says: what the record is made of."""

    def __init__(self) -> None:
        self.on_waiting_changed: Callable[[str, bool], None] | None = None
        self.counts: dict[str, int] = {}

    def waiting_models(self) -> dict[str, int]:
        return dict(self.counts)

    def set(self, model: str, count: int) -> None:
        self.counts.pop(model, None)
        if count:
            self.counts[model] = count
        assert self.on_waiting_changed is not None
        self.on_waiting_changed(model, bool(count))


class Scene:
    def __init__(self, directory: Path) -> None:
        self.store = FailingStore("sqlite:test.db", directory / "test.db")
        self.gateway = Requests()
        self.lease: Lease | None = None
        self.waiting = GatewayWaiting(self.store, KEY, cast(Gateway, self.gateway), lambda: self.lease)

    async def __aenter__(self) -> Scene:
        await self.register()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.waiting.stop()
        assert self.lease is not None
        await self.lease.revoke()
        assert await self.recorded() == {}
        await self.store.close()

    async def register(self) -> None:
        self.lease = await self.store.grant(60)
        self.waiting.registered()

    async def recorded(self) -> dict[str, int]:
        entry = await self.store.get(KEY)
        return {} if entry is None else decode(entry.value, WaitingRecord).models

    async def until(self, models: dict[str, int]) -> None:
        while True:
            if await self.recorded() == models:
                return
            await asyncio.sleep(0.005)


def run(scenario: Callable[[Scene], Awaitable[None]], directory: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), Scene(directory) as scene:
            await scenario(scene)

    asyncio.run(main())


def test_the_record_is_there_while_requests_wait(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.gateway.set("m", 2)
        await scene.until({"m": 2})
        scene.gateway.set("n", 1)
        await scene.until({"m": 2, "n": 1})
        entry = await scene.store.get(KEY)
        assert entry is not None
        assert scene.lease is not None
        assert entry.lease == scene.lease.id
        scene.gateway.set("m", 0)
        scene.gateway.set("n", 0)
        await scene.until({})
        scene.gateway.set("m", 1)
        await scene.until({"m": 1})

    run(scenario, tmp_path)


def test_it_is_written_when_the_store_is_back(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.store.fails = 2
        scene.gateway.set("m", 1)
        await scene.until({"m": 1})
        scene.store.fails = 1
        scene.gateway.set("m", 0)
        await scene.until({})

    run(scenario, tmp_path)


def test_it_is_written_again_under_a_new_lease(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.gateway.set("m", 1)
        await scene.until({"m": 1})
        assert scene.lease is not None
        await scene.lease.revoke()
        assert await scene.recorded() == {}
        scene.gateway.set("n", 1)  # fails: its lease has ended
        await scene.register()
        await scene.until({"m": 1, "n": 1})

    run(scenario, tmp_path)


def test_requests_that_wait_before_the_registration_are_written_after_it(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        lease, scene.lease = scene.lease, None
        scene.gateway.set("m", 1)
        await asyncio.sleep(0)
        scene.lease = lease
        scene.waiting.registered()
        await scene.until({"m": 1})

    run(scenario, tmp_path)


def test_the_record_of_another_gateway_is_not_deleted(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        other = await scene.store.grant(60)
        scene.gateway.set("m", 1)
        await scene.until({"m": 1})
        await scene.store.transact((), (Put(KEY, b'{"models":{"theirs":1}}', other.id),))
        scene.gateway.set("m", 0)
        await _finished(scene.waiting)
        assert await scene.recorded() == {"theirs": 1}
        await other.revoke()

    run(scenario, tmp_path)


async def _finished(waiting: Any) -> None:
    """Until its task has ended: it has done what was due."""
    await waiting._tasks.finish()
