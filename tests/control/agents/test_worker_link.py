"""A worker's record in the store: what a look at it asks for, and a real store in a file that comes and goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from isochrone.control.agents.worker_link import Due, WorkerLink, advertised_host, due, new_incarnation
from isochrone.control.state.codec import decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.store.base import Changes, Compare, Delete, Entry, Lease, Outcome, Put, Snapshot, Store, StoreUnavailable
from isochrone.store.opening import open_store

KEYS = Keys("test")
OWN = WorkerRecord("cpu-1", "127.0.0.1", 8000, 8001, pool="cpu", incarnation="5-1", pid=1)
KEY = KEYS.worker("cpu-1")


def entry(record: WorkerRecord, lease: int = 7) -> Entry:
    return Entry(KEY, encode(record), 3, lease)


def of(incarnation: str) -> WorkerRecord:
    return msgspec.structs.replace(OWN, incarnation=incarnation)


@pytest.mark.parametrize(
    ("lease", "seen", "expected"),
    [
        pytest.param(7, None, Due.REGISTER, id="nobody is there"),
        pytest.param(7, entry(OWN), Due.NOTHING, id="all is well"),
        pytest.param(0, entry(OWN), Due.REGISTER, id="the lease was lost"),
        pytest.param(8, entry(OWN), Due.REGISTER, id="it stands on another lease"),
        pytest.param(7, entry(msgspec.structs.replace(OWN, port=9)), Due.REGISTER, id="it says something else"),
        pytest.param(0, entry(of("4-1")), Due.REGISTER, id="what an earlier process left"),
        pytest.param(0, entry(of("6-1")), Due.YIELD, id="a later process has it"),
        pytest.param(7, entry(of("6-1")), Due.YIELD, id="a later process took it"),
        pytest.param(7, Entry(KEY, b"no record", 3), Due.REGISTER, id="nonsense"),
    ],
)
def test_what_a_look_asks_for(lease: int, seen: Entry | None, expected: Due) -> None:
    assert due(OWN, lease, seen) is expected


def test_later_starts_compare_greater() -> None:
    first = new_incarnation()
    before = time.time_ns()
    while time.time_ns() == before:
        pass
    assert new_incarnation() > first


@pytest.mark.parametrize(
    ("listening", "store", "expected"),
    [
        ("10.0.0.7", "etcd:http://10.0.0.9:2379", "10.0.0.7"),
        ("0.0.0.0", "sqlite:fleet.db", "127.0.0.1"),
        ("::", "sqlite:/var/fleet.db", "127.0.0.1"),
        ("0.0.0.0", "etcd:http://127.0.0.1:2379,http://10.0.0.9:2379", "127.0.0.1"),
    ],
)
def test_others_find_it_where_it_listens(listening: str, store: str, expected: str) -> None:
    assert advertised_host(listening, store) == expected


class Unsteady(Store):
    """A real store that the test can take away."""

    def __init__(self, store: Store) -> None:
        self.store, self.url, self.away = store, store.url, False
        self.refused = 0

    def _there(self) -> Store:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("store test: it is away")
        return self.store

    async def get(self, key: str) -> Entry | None:
        return await self._there().get(key)

    async def list(self, prefix: str) -> Snapshot:
        return await self._there().list(prefix)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        return await self._there().transact(compares, operations)

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes]:
        return self._there().watch(prefix, after)

    async def grant(self, seconds: float) -> Lease:
        return await self._there().grant(seconds)

    async def close(self) -> None:
        await self.store.close()


class Bench:
    """A link on a store in a file, and a second opening of that file to look from outside."""

    def __init__(self, path: Path, record: WorkerRecord = OWN) -> None:
        self.store = Unsteady(open_store(f"sqlite:{path}"))
        self.outside = open_store(f"sqlite:{path}")
        self.ports: list[Mapping[str, int]] = []
        #: What the log says, and the revisions of the link's own record that were seen.
        self.lines: Sequence[MutableMapping[str, Any]] = []
        self.revisions: set[int] = set()
        self.record = record
        # A lease that a busy machine does not miss.
        self.link = WorkerLink(self.store, KEYS, self.record_of, lease_seconds=60)

    def record_of(self, ports: Mapping[str, int]) -> WorkerRecord:
        self.ports.append(ports)
        return self.record

    async def until(self, holds: Callable[[Entry | None], bool]) -> Entry | None:
        while True:
            seen = await self.outside.get(KEY)
            if holds(seen):
                return seen
            await asyncio.sleep(0.01)

    async def until_there(self, record: WorkerRecord = OWN) -> Entry:
        seen = await self.until(lambda seen: seen is not None and decode(seen.value, WorkerRecord) == record)
        assert seen is not None
        if record == self.record:
            # The record is there before the link, which logs it, has the store's answer.
            self.revisions.add(seen.revision)
            await until(lambda: [line["event"] for line in self.lines].count("registered") >= len(self.revisions))
        return seen


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 (what is waited for comes about elsewhere)
        await asyncio.sleep(0.01)


def run(path: Path, scenario: Callable[[Bench], Awaitable[None]]) -> list[str]:
    """Plays a scenario; returns what the log said meanwhile."""

    async def play() -> None:
        bench = Bench(path)
        bench.lines = lines
        try:
            await scenario(bench)
        finally:
            bench.store.away = False
            await bench.link.stop()
            await bench.outside.close()

    with capture_logs() as lines:
        asyncio.run(asyncio.wait_for(play(), 100))
    return [line["event"] for line in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


def test_the_record_is_there_from_start_to_stop(path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.outside.get(KEY) is None
        await bench.link.start({"http": 8000})
        seen = await bench.until_there()
        assert seen.lease
        assert bench.ports == [{"http": 8000}]
        await bench.link.stop()
        # At once: not when the lease would have ended.
        assert await bench.outside.get(KEY) is None

    assert run(path, scenario) == ["registered"]


def test_a_lost_record_is_written_again(path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.link.start({})
        first = await bench.until_there()
        await bench.outside.transact((), (Delete(KEY),))
        assert (await bench.until_there()).revision > first.revision

    assert run(path, scenario) == ["registered", "registered"]


def test_what_an_earlier_process_left_is_replaced_at_once(path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        old = await bench.outside.grant(60)
        await bench.outside.transact((), (Put(KEY, encode(of("4-1")), old.id),))
        await bench.link.start({})
        seen = await bench.until_there()
        assert seen.lease != old.id
        # The end of the old lease takes nothing with it.
        await old.revoke()
        assert await bench.outside.get(KEY) == seen

    assert run(path, scenario) == ["registered"]


def test_a_later_process_of_the_same_name_is_left_alone_until_it_goes(path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.link.start({})
        await bench.until_there()
        other = await bench.outside.grant(60)
        theirs = (Put(KEY, encode(of("6-1")), other.id),)
        assert (await bench.outside.transact((), theirs)).succeeded
        await until(lambda: bench.link._yielded)
        assert (await bench.until_there(of("6-1"))).lease == other.id
        await other.revoke()
        await bench.until_there()

    reported = run(path, scenario)
    assert reported == [
        "registered",
        "another worker of this name was started later; give each its own --name",
        "registered",
    ]


def test_a_store_that_is_away_is_waited_for_and_told_of_once(path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.store.away = True
        await bench.link.start({})
        await until(lambda: bench.store.refused >= 3)
        bench.store.away = False
        await bench.until_there()

    reported = run(path, scenario)
    assert reported == ["the store does not answer; the worker keeps serving", "registered", "the store answers again"]


def test_stopping_does_not_wait_for_a_store_that_is_away(path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.store.away = True
        await bench.link.start({})
        await until(lambda: bench.store.refused)
        await bench.link.stop()
        await bench.link.stop()

    run(path, scenario)
