"""The death of a gateway: its own registration is removed, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import SUPERVISOR, EventRecord
from isochrone.control.state.view import View
from isochrone.engines.supervision.membership import Membership
from isochrone.store.base import Delete, Put, Store
from isochrone.store.sqlite.store import SqliteStore

KEYS = Keys("plant")


def with_store(path: Path, work: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = SqliteStore("sqlite:test.db", path / "test.db")
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


async def register(store: Store, pid: int, incarnation: str) -> None:
    """As a gateway does."""
    record = GatewayRecord("gw", "127.0.0.1", 8000, incarnation=incarnation, pid=pid)
    await store.transact(
        (),
        (
            Put(KEYS.gateway("gw"), encode(record)),
            Put(KEYS.known_gateway("gw"), incarnation.encode()),
            Put(KEYS.gateway_set, f"gw {incarnation}".encode()),
        ),
    )


async def view(store: Store) -> View:
    return View(KEYS, (await store.list(KEYS.prefix)).entries)


def test_a_gateway_that_was_killed_is_no_longer_waited_for(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await register(store, 100, "a")
        before = await store.get(KEYS.gateway_set)
        await Membership(store, KEYS).forget_gateway("gw", 100)
        after = await view(store)
        assert after.known_gateways == []
        assert after.gateways == {}
        # A commit that counted the gateway compares this.
        changed = await store.get(KEYS.gateway_set)
        assert before is not None
        assert changed is not None
        assert changed.revision > before.revision
        assert [event.what for _, event in after.events()] == ["gateway died"]

    with_store(tmp_path, work)


def test_one_whose_lease_ran_out_first_is_remembered_by_its_incarnation(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await register(store, 100, "a")
        membership = Membership(store, KEYS)
        membership.notice(await view(store))
        await store.transact((), (Delete(KEYS.gateway("gw")),))
        await membership.forget_gateway("gw", 100)
        assert (await view(store)).known_gateways == []

    with_store(tmp_path, work)


def test_its_successor_is_left_alone(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await register(store, 100, "a")
        membership = Membership(store, KEYS)
        membership.notice(await view(store))
        await register(store, 200, "b")
        membership.notice(await view(store))
        await membership.forget_gateway("gw", 100)
        assert (await view(store)).gateways["gw"].pid == 200
        # Also while the successor's lease is lost for a moment.
        await store.transact((), (Delete(KEYS.gateway("gw")),))
        await membership.forget_gateway("gw", 300)
        assert (await view(store)).known_gateways == ["gw"]

    with_store(tmp_path, work)


def test_a_gateway_that_deregistered_needs_nothing(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await Membership(store, KEYS).forget_gateway("gw", 100)
        assert (await view(store)).entries == {}

    with_store(tmp_path, work)


def test_drains_of_other_people_stay_theirs(tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        membership = Membership(store, KEYS)
        await store.transact((), (Put(KEYS.drain("w1"), encode(EventRecord(1.0, "ann", "drain", "w1"))),))
        for name in ("w1", "w2"):
            await membership.drain(name)
        assert {name: each.who for name, each in (await view(store)).drains.items()} == {"w1": "ann", "w2": SUPERVISOR}
        await membership.undrain(("w1", "w2", "w3"))
        assert list((await view(store)).drains) == ["w1"]

    with_store(tmp_path, work)
