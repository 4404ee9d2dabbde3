"""Whether a worker serves what is committed for its pool, as its link knows it from a real store in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from isochrone.control.agents.commit_watch import CommitWatch
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord, PlacementRecord
from isochrone.store.base import Delete, Put, Snapshot, Store, StoreUnavailable
from isochrone.store.opening import open_store

KEYS = Keys("test")
HAS_ONE, HAS_TWO = {("m", "1"): "abc"}, {("m", "1"): "abc", ("m", "2"): "def"}


class Bench:
    """A watch on a store in a file, and a second opening of that file to write from outside."""

    def __init__(self, path: Path) -> None:
        self.store = open_store(f"sqlite:{path}")
        self.outside = open_store(f"sqlite:{path}")
        self.watch = CommitWatch(self.store, KEYS, "cpu", "cpu-1")
        #: What the log says.
        self.lines: Sequence[MutableMapping[str, Any]] = []

    async def commit(self, epoch: int, version: str, pool: str = "cpu", digest: str = "") -> None:
        await self.write(encode(EpochRecord(epoch, {"m": Assignment(version, digest, pools=(pool,))})))

    async def write(self, value: bytes) -> None:
        await self.outside.transact((), (Put(KEYS.epoch, value),))

    async def until(self, satisfied: bool, served: dict[tuple[str, str], str]) -> None:
        while self.watch.is_satisfied(served) is not satisfied:  # noqa: ASYNC110 (it comes about elsewhere)
            await asyncio.sleep(0.01)


def run(path: Path, scenario: Callable[[Bench], Awaitable[None]]) -> list[str]:
    """Plays a scenario; returns what the log said meanwhile."""

    async def play() -> None:
        bench = Bench(path)
        bench.lines = lines
        try:
            await scenario(bench)
        finally:
            await bench.watch.stop()
            await bench.store.close()
            await bench.outside.close()

    with capture_logs() as lines:
        asyncio.run(asyncio.wait_for(play(), 30))
    return [line["event"] for line in lines]


def test_without_an_epoch_it_is_satisfied_once_it_knows_that_there_is_none(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        assert not bench.watch.is_satisfied(HAS_ONE)
        await bench.until(True, {})

    run(tmp_path / "fleet.db", scenario)


def test_a_commit_asks_for_its_versions_until_the_worker_has_them(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit(1, "1")
        await bench.until(True, HAS_ONE)
        assert not bench.watch.is_satisfied({})
        await bench.commit(2, "2")
        await bench.until(False, HAS_ONE)
        assert bench.watch.is_satisfied(HAS_TWO)
        # Other files under the same number are another version.
        await bench.commit(3, "2", digest="xyz")
        await bench.until(False, HAS_TWO)
        # Models of other pools are not its affair.
        await bench.commit(4, "9", pool="gpu")
        await bench.until(True, {})
        await bench.commit(5, "1")
        await bench.until(False, {})
        await bench.outside.transact((), (Delete(KEYS.epoch),))
        await bench.until(True, {})

    run(tmp_path / "fleet.db", scenario)


def test_the_last_epoch_counts_while_the_record_is_unreadable(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit(1, "1")
        await bench.until(True, HAS_ONE)
        await bench.write(b"no epoch")
        while not bench.lines:  # noqa: ASYNC110 (it comes about elsewhere)
            await asyncio.sleep(0.01)
        assert bench.watch.is_satisfied(HAS_ONE)
        assert not bench.watch.is_satisfied({})
        await bench.commit(2, "2")
        await bench.until(False, HAS_ONE)

    assert run(tmp_path / "fleet.db", scenario) == ["the committed epoch is unreadable; the last one counts"]


def test_an_earlier_epoch_that_is_put_back_does_not_count(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit(2, "2")
        await bench.until(True, HAS_TWO)
        await bench.commit(1, "1")
        while not bench.lines:  # noqa: ASYNC110 (it comes about elsewhere)
            await asyncio.sleep(0.01)
        assert bench.watch.is_satisfied(HAS_TWO)
        assert not bench.watch.is_satisfied(HAS_ONE)
        # A store that begins anew has other numbers.
        await bench.outside.transact((), (Delete(KEYS.epoch),))
        await bench.until(True, {})
        await bench.commit(1, "1")
        await bench.until(False, {})

    assert run(tmp_path / "fleet.db", scenario) == ["the committed epoch is unreadable; the last one counts"]


def test_a_store_that_is_away_at_first_leaves_the_question_open(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        listing = bench.store.list
        asked = asyncio.Event()

        async def away(prefix: str) -> Snapshot:
            asked.set()
            raise StoreUnavailable("store test: it is away")

        _replace_list(bench.store, away)
        assert not bench.watch.is_satisfied({})
        await asked.wait()
        assert not bench.watch.is_satisfied({})
        _replace_list(bench.store, listing)
        await bench.until(True, {})

    run(tmp_path / "fleet.db", scenario)


def test_one_that_nobody_asks_reads_nothing(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.commit(1, "1")
        await bench.watch.stop()
        assert bench.watch._watching is None

    run(tmp_path / "fleet.db", scenario)


def _replace_list(store: Store, function: Callable[[str], Awaitable[Snapshot]]) -> None:
    store.list = function  # type: ignore[method-assign, assignment]


def test_in_a_planned_pool_the_models_of_the_worker_count(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        key = KEYS.placement("cpu")
        await bench.outside.transact((), (Put(key, encode(PlacementRecord({"m": ("cpu-2",)}))),))
        await bench.commit(1, "1")
        await bench.until(True, {})
        await bench.outside.transact((), (Put(key, encode(PlacementRecord({"m": ("cpu-1", "cpu-2")}))),))
        await bench.until(False, {})
        await bench.until(True, HAS_ONE)
        await bench.outside.transact((), (Delete(key),))
        await bench.until(False, {})

    run(tmp_path / "store.db", scenario)


def test_an_unreadable_placement_keeps_no_worker_from_the_epoch(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        key = KEYS.placement("cpu")
        await bench.outside.transact((), (Put(key, encode(PlacementRecord({"m": ("cpu-1",)}))),))
        await bench.commit(1, "1")
        await bench.until(True, HAS_ONE)
        await bench.outside.transact((), (Put(key, b"no placement"),))
        await bench.commit(2, "2")
        await bench.until(False, HAS_ONE)
        assert bench.watch.is_satisfied(HAS_TWO)

    assert set(run(tmp_path / "store.db", scenario)) == {"the placement is unreadable; the last one counts"}
