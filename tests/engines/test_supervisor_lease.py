"""One supervisor per fleet: who has the record, who waits for it, who gives way."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.engines import supervisor_lease
from isochrone.engines.supervisor_lease import SupervisorLease, SupervisorRecord, this_supervisor
from isochrone.errors import AlreadyExists
from isochrone.store.base import Delete, Put
from isochrone.store.sqlite.store import SqliteStore

KEYS = Keys("plant")
ONE, OTHER = SupervisorRecord("a.local", 7, "kernel a"), SupervisorRecord("b.local", 9, "kernel b")
SECONDS = 30.0


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_lease, "_LOOK_SECONDS", 0.01)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore("sqlite:fleet.db", directory / "fleet.db")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def taken(store: SqliteStore, own: SupervisorRecord) -> AsyncIterator[SupervisorLease]:
    lease = SupervisorLease(store, KEYS, own, SECONDS)
    await lease.take(lambda other: None, 0.0)
    try:
        yield lease
    finally:
        await lease.release()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 (the condition is a record of the store)
            await asyncio.sleep(0.005)


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_a_second_one_is_refused_and_told_where_the_first_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store, taken(store, ONE):
            second, waits = SupervisorLease(store, KEYS, OTHER, SECONDS), []
            with pytest.raises(AlreadyExists, match=r"up already, by process 7 on a\.local; change it with"):
                await second.take(waits.append, 0.05)
            assert waits == ["process 7 on a.local"]
            await second.release()
            entry = await store.get(KEYS.supervisor)
            assert entry is not None
            assert b"a.local" in entry.value

    asyncio.run(run())


def test_a_standby_follows_as_soon_as_the_first_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            waits: list[str] = []
            async with taken(store, ONE):
                standby = SupervisorLease(store, KEYS, OTHER, SECONDS)
                taking = asyncio.create_task(standby.take(waits.append, None))
                await until(lambda: waits)
            await asyncio.wait_for(taking, SECONDS)
            await standby.release()
            assert await store.get(KEYS.supervisor) is None

    asyncio.run(run())


def test_one_that_was_killed_on_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            here = this_supervisor()
            lease = await store.grant(SECONDS)
            killed = SupervisorRecord(here.host, dead_pid(), here.kernel)
            await store.transact((), (Put(KEYS.supervisor, encode(killed), lease.id),))
            async with taken(store, here):
                pass
            await lease.revoke()

    asyncio.run(run())


def test_a_pid_of_another_machine_says_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        elsewhere = SupervisorRecord("a.local", dead_pid(), "another kernel")
        async with opened(tmp_path) as store, taken(store, elsewhere):
            second = SupervisorLease(store, KEYS, this_supervisor(), SECONDS)
            with pytest.raises(AlreadyExists):
                await second.take(lambda other: None, 0.05)
            await second.release()

    asyncio.run(run())


def test_one_that_lost_its_record_to_another_gives_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store, taken(store, ONE) as lease:
            other = await store.grant(SECONDS)
            await store.transact((), (Put(KEYS.supervisor, encode(OTHER), other.id),))
            async with asyncio.timeout(SECONDS):
                await lease.taken.wait()
            assert lease.successor == "process 9 on b.local"
            await lease.release()
            entry = await store.get(KEYS.supervisor)
            assert entry is not None, "the record of the other one stays"
            await other.revoke()

    asyncio.run(run())


def test_a_record_that_is_gone_is_written_again(tmp_path: Path) -> None:
    """As after an outage of the store that was longer than the lease."""

    async def run() -> None:
        async with opened(tmp_path) as store, taken(store, ONE) as lease:
            before = await store.get(KEYS.supervisor)
            assert before is not None
            await store.transact((), (Delete(KEYS.supervisor),))
            async with asyncio.timeout(SECONDS):
                while (entry := await store.get(KEYS.supervisor)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            assert (entry.value, entry.revision > before.revision) == (encode(ONE), True)
            assert not lease.taken.is_set()

    asyncio.run(run())


def test_a_record_of_another_release_counts(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            await store.transact((), (Put(KEYS.supervisor, b"?"),))
            second = SupervisorLease(store, KEYS, ONE, SECONDS)
            with pytest.raises(AlreadyExists, match="a supervisor of another release"):
                await second.take(lambda other: None, 0.0)
            await second.release()

    asyncio.run(run())


def test_this_supervisor_has_not_ended() -> None:
    here = this_supervisor()
    assert here.kernel
    assert not here.has_ended(here)
