"""What every store must do, written once: run against SQLite in tests/store and against real etcd in tests/peers.

A test class inherits ``StoreConformance`` and gives the fixture ``place``: how to open the store, and a prefix that is
the test's own. Each open store stands for one process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from isochrone.errors import InvalidArgument
from isochrone.store.base import Changes, Compare, Delete, LeaseEnded, Put, Store
from isochrone.store.mirror import Mirror

#: A loaded machine is slow, not wrong.
LIMIT_SECONDS = 45


@dataclass(frozen=True)
class Place:
    open: Callable[[], Store]
    prefix: str
    #: Of the leases that shall be kept or end: longer than a busy machine stalls.
    lease_seconds: float


def run(scenario: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * LIMIT_SECONDS):
            await scenario

    asyncio.run(limited())


@contextlib.asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Store]:
    store = place.open()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def mirrored(store: Store, prefix: str) -> AsyncIterator[Mirror]:
    mirror = Mirror(store, prefix)
    await mirror.start()
    try:
        yield mirror
    finally:
        await mirror.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(LIMIT_SECONDS * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"did not happen within {LIMIT_SECONDS} s: {what}")


async def put(store: Store, key: str, value: bytes, lease: int = 0) -> int:
    outcome = await store.transact([], [Put(key, value, lease)])
    assert outcome.succeeded
    return outcome.revision


class StoreConformance:
    def test_what_is_written_is_read(self, place: Place) -> None:
        async def scenario() -> None:
            key = place.prefix + "ключ"
            async with opened(place) as one, opened(place) as other:
                assert await one.get(key) is None
                first = await put(one, key, b"\x00\xff")
                found = await other.get(key)
                assert found is not None
                assert (found.key, found.value, found.revision, found.lease) == (key, b"\x00\xff", first, 0)
                second = await put(other, key, b"")
                assert second > first
                found = await one.get(key)
                assert found is not None
                assert (found.value, found.revision) == (b"", second)
                third = await one.transact([], [Delete(key)])
                assert third.succeeded
                assert third.revision > second
                assert await other.get(key) is None

        run(scenario())

    def test_compare_and_swap(self, place: Place) -> None:
        async def scenario() -> None:
            key = place.prefix + "epoch"
            async with opened(place) as store:
                created = await store.transact([Compare(key, 0)], [Put(key, b"1")])
                assert created.succeeded
                again = await store.transact([Compare(key, 0)], [Put(key, b"2")])
                assert not again.succeeded
                assert again.revision >= created.revision
                swapped = await store.transact([Compare(key, created.revision)], [Put(key, b"3")])
                assert swapped.succeeded
                stale = await store.transact([Compare(key, created.revision)], [Delete(key)])
                assert not stale.succeeded
                found = await store.get(key)
                assert found is not None
                assert (found.value, found.revision) == (b"3", swapped.revision)

        run(scenario())

    def test_a_transaction_is_whole(self, place: Place) -> None:
        async def scenario() -> None:
            first, second, third = (place.prefix + name for name in "abc")
            async with opened(place) as store:
                begun = await store.transact([], [Put(first, b"1"), Put(second, b"1")])
                done = await store.transact(
                    [Compare(first, begun.revision), Compare(third, 0)], [Put(third, b"2"), Delete(first)]
                )
                assert done.succeeded
                refused = await store.transact(
                    [Compare(third, done.revision), Compare(second, 0)], [Put(third, b"3"), Put(first, b"3")]
                )
                assert not refused.succeeded
                snapshot = await store.list(place.prefix)
                assert {key: entry.value for key, entry in snapshot.entries.items()} == {second: b"1", third: b"2"}
                assert snapshot.entries[second].revision == begun.revision
                assert snapshot.entries[third].revision == done.revision

        run(scenario())

    def test_deleting_nothing_is_no_change(self, place: Place) -> None:
        async def scenario() -> None:
            async with opened(place) as store:
                before = await put(store, place.prefix + "a", b"1")
                outcome = await store.transact([], [Delete(place.prefix + "b")])
                assert outcome.succeeded
                assert outcome.revision == before
                assert (await store.transact([Compare(place.prefix + "a", before)], [])).succeeded

        run(scenario())

    def test_a_key_twice_in_one_transaction_is_refused(self, place: Place) -> None:
        async def scenario() -> None:
            key = place.prefix + "a"
            async with opened(place) as store:
                with pytest.raises(InvalidArgument, match="twice"):
                    await store.transact([], [Put(key, b"1"), Delete(key)])
                assert await store.get(key) is None

        run(scenario())

    def test_a_list_has_what_is_under_its_prefix(self, place: Place) -> None:
        async def scenario() -> None:
            inside = [place.prefix + name for name in ("w/", "w/a", "w/b/c", "w/\U0010ffff", "w/ÿ")]
            outside = [place.prefix + name for name in ("w", "w0", "v/a")]
            async with opened(place) as store:
                done = await store.transact([], [Put(key, key.encode()) for key in inside + outside])
                snapshot = await store.list(place.prefix + "w/")
                assert set(snapshot.entries) == set(inside)
                assert snapshot.revision >= done.revision
                assert all(entry.value == key.encode() for key, entry in snapshot.entries.items())
                assert set(inside + outside) <= set((await store.list("")).entries)
                assert not (await store.list(place.prefix + "nothing/")).entries

        run(scenario())

    def test_a_watch_tells_every_transaction_whole(self, place: Place) -> None:
        async def scenario() -> None:
            first, second = place.prefix + "w/a", place.prefix + "w/b"
            async with opened(place) as writer, opened(place) as reader:
                start = (await reader.list(place.prefix + "w/")).revision
                missed = await writer.transact([], [Put(first, b"1"), Put(second, b"1")])
                seen: list[Changes] = []

                async def follow() -> None:
                    async for changes in reader.watch(place.prefix + "w/", start):
                        if changes.written or changes.deleted:
                            seen.append(changes)  # noqa: PERF401 - it is read while it grows

                following = asyncio.create_task(follow())
                await until(lambda: bool(seen), "the watch tells what was written before it began")
                await put(writer, place.prefix + "x", b"outside")
                last = await writer.transact([], [Put(second, b"2"), Delete(first)])
                await until(lambda: seen[-1].revision >= last.revision, "the watch tells what another process wrote")
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                assert seen[0].revision == missed.revision
                assert {entry.key: entry.value for entry in seen[0].written} == {first: b"1", second: b"1"}
                assert [(entry.key, entry.value, entry.revision) for entry in seen[1].written] == [
                    (second, b"2", last.revision)
                ]
                assert seen[1].deleted == (first,)
                assert len(seen) == 2

        run(scenario())

    def test_a_lease_is_kept_while_its_holder_lives(self, place: Place) -> None:
        async def scenario() -> None:
            key = place.prefix + "worker"
            async with opened(place) as other, mirrored(other, place.prefix) as mirror:
                async with opened(place) as holder:
                    lease = await holder.grant(place.lease_seconds)
                    assert lease.seconds >= place.lease_seconds
                    await mirror.catch_up(await put(holder, key, b"here", lease.id))
                    assert mirror.entries[key].lease == lease.id
                    # Longer than it lasts by itself.
                    await asyncio.sleep(lease.seconds * 1.5)
                    assert not lease.lost
                    assert await other.get(key) is not None
                # The store of the holder is closed without a word, as if it had been killed.
                await until(lambda: key not in mirror.entries, "the key goes with its lease")
                assert await other.get(key) is None

        run(scenario())

    def test_a_revoked_lease_takes_its_keys_along(self, place: Place) -> None:
        async def scenario() -> None:
            kept, gone = place.prefix + "kept", place.prefix + "gone"
            async with opened(place) as store:
                lease = await store.grant(60)
                await store.transact([], [Put(kept, b"1", lease.id), Put(gone, b"1", lease.id)])
                # Written again without the lease, a key no longer goes with it.
                await put(store, kept, b"2")
                await lease.revoke()
                await lease.revoke()
                assert not lease.lost
                assert set((await store.list(place.prefix)).entries) == {kept}

        run(scenario())

    def test_a_lease_that_ended_is_lost_and_writes_nothing(self, place: Place) -> None:
        async def scenario() -> None:
            key = place.prefix + "late"
            async with opened(place) as store:
                lease = await store.grant(place.lease_seconds)
                await put(store, key, b"1", lease.id)
                # Renewals stop, as in a process that hangs.
                await lease.stop_keeping()  # type: ignore[attr-defined]
                await until(lambda: lease.lost, "the holder knows by its own clock")
                async with mirrored(store, place.prefix) as mirror:
                    await until(lambda: key not in mirror.entries, "the key is gone")
                with pytest.raises(LeaseEnded):
                    await store.transact([], [Put(key, b"2", lease.id), Put(place.prefix + "b", b"2")])
                assert not (await store.list(place.prefix)).entries

        run(scenario())

    def test_many_writers_lose_no_increment(self, place: Place) -> None:
        async def scenario() -> None:
            key = place.prefix + "count"

            async def count(times: int) -> None:
                async with opened(place) as store:
                    while times:
                        entry = await store.get(key)
                        value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
                        outcome = await store.transact([Compare(key, revision)], [Put(key, str(value + 1).encode())])
                        times -= outcome.succeeded

            await asyncio.gather(*(count(20) for _ in range(4)))
            async with opened(place) as store:
                entry = await store.get(key)
                assert entry is not None
                assert entry.value == b"80"

        run(scenario())

    def test_a_mirror_follows(self, place: Place) -> None:
        async def scenario() -> None:
            async with opened(place) as writer, opened(place) as reader:
                await put(writer, place.prefix + "workers/b", b"1")
                await put(writer, place.prefix + "workers/a", b"1")
                async with mirrored(reader, place.prefix) as mirror:
                    assert mirror.connected
                    assert [entry.key for entry in mirror.under(place.prefix + "workers/")] == [
                        place.prefix + "workers/a",
                        place.prefix + "workers/b",
                    ]
                    revisions: list[int] = []
                    mirror.on_change.append(lambda: revisions.append(mirror.revision))
                    done = await writer.transact(
                        [], [Put(place.prefix + "epoch", b"1"), Delete(place.prefix + "workers/a")]
                    )
                    await mirror.catch_up(done.revision)
                    assert revisions == [done.revision]
                    assert set(mirror.entries) == {place.prefix + "epoch", place.prefix + "workers/b"}
                    assert not await mirror.changed(mirror.revision, 0.01)
                    # A revision that touched nothing under the prefix is caught up with too.
                    elsewhere = await put(writer, place.prefix[:-1] + "-elsewhere", b"1")
                    await mirror.catch_up(elsewhere)
                    assert mirror.revision >= elsewhere
                    assert revisions == [done.revision]

        run(scenario())
