"""Three real members of etcd: one is killed, stopped or started again, and our client goes where a majority is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from isochrone.store.base import Compare, Put, Store, StoreUnavailable
from isochrone.store.opening import open_store
from store_conformance import LIMIT_SECONDS, mirrored, run, until

pytestmark = pytest.mark.peers

PREFIX = "/isochrone/three/"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd3"), loopback_members(3)) as three:
        yield three


async def put_in_the_end(store: Store, key: str, value: bytes) -> int:
    """Tries until it is known to be written, as a caller does: a failed try may have happened."""
    for _ in range(300):
        try:
            found = await store.get(key)
            if found is not None and found.value == value:
                return found.revision
            outcome = await store.transact([Compare(key, found.revision if found else 0)], [Put(key, value)])
            if outcome.succeeded:
                return outcome.revision
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    raise AssertionError("the cluster did not come back")


def test_the_leader_is_killed(cluster: EtcdCluster) -> None:
    async def scenario() -> None:
        writer, reader = open_store(cluster.url), open_store(cluster.url)
        lease = await writer.grant(30)
        await writer.transact([], [Put(PREFIX + "worker", b"here", lease.id), Put(PREFIX + "epoch", b"1")])
        async with mirrored(reader, PREFIX) as mirror:
            leader = await asyncio.to_thread(cluster.leader)
            cluster.kill(leader.name)
            revision = await put_in_the_end(writer, PREFIX + "epoch", b"2")
            await until(lambda: mirror.revision >= revision, "the watch goes on elsewhere")
            assert mirror.entries[PREFIX + "epoch"].value == b"2"
            assert PREFIX + "worker" in mirror.entries
            assert not lease.lost
            cluster.start(leader.name)
            await asyncio.to_thread(cluster.wait_ready, leader.name)
            revision = await put_in_the_end(writer, PREFIX + "epoch", b"3")
            await until(lambda: mirror.revision >= revision, "the watch goes on")
        await lease.revoke()
        assert set((await reader.list(PREFIX)).entries) == {PREFIX + "epoch"}
        await writer.close()
        await reader.close()

    run(scenario())


def test_each_member_falls_silent_in_turn(cluster: EtcdCluster) -> None:
    async def scenario() -> None:
        writer, reader = open_store(cluster.url), open_store(cluster.url)
        async with mirrored(reader, PREFIX) as mirror:
            # One of them is where the watch is: it keeps the connection and tells nothing.
            for number, member in enumerate(cluster.members):
                cluster.stop(member.name)
                revision = await put_in_the_end(writer, PREFIX + "epoch", str(number).encode())
                assert await mirror.changed(revision - 1, LIMIT_SECONDS), "the watch goes on elsewhere"
                assert mirror.entries[PREFIX + "epoch"].value == str(number).encode()
                cluster.resume(member.name)
                await asyncio.to_thread(cluster.wait_ready, member.name)
        await writer.close()
        await reader.close()

    run(scenario())


def test_without_a_majority_nothing_is_written_and_the_mirror_keeps_what_it_has(cluster: EtcdCluster) -> None:
    async def scenario() -> None:
        store = open_store(cluster.url)
        await put_in_the_end(store, PREFIX + "epoch", b"1")
        async with mirrored(store, PREFIX) as mirror:
            alone, *others = cluster.members
            for member in others:
                cluster.stop(member.name)
            await until(lambda: not mirror.connected, "the mirror knows that it is not told any more")
            assert mirror.entries[PREFIX + "epoch"].value == b"1"
            assert all(member.client_url in mirror.error for member in cluster.members)
            assert "majority" in mirror.error
            with pytest.raises(StoreUnavailable, match="majority"):
                await store.transact([], [Put(PREFIX + "epoch", b"2")])
            await _says_it_has_no_leader(alone.client_url)
            for member in others:
                cluster.resume(member.name)
            revision = await put_in_the_end(store, PREFIX + "epoch", b"3")
            await until(lambda: mirror.connected and mirror.revision >= revision, "the mirror follows again")
            assert mirror.entries[PREFIX + "epoch"].value == b"3"
        await store.close()

    run(scenario())


async def _says_it_has_no_leader(url: str) -> None:
    """The header that asks for a leader goes through etcd's JSON gateway: it is refused at once, not left waiting."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        answer = await client.post(
            f"{url}/v3/kv/range", json={"key": "AA=="}, headers={"Grpc-Metadata-hasleader": "true"}
        )
    assert answer.json()["error"] == "etcdserver: no leader"


def test_all_are_killed_and_started_again(cluster: EtcdCluster) -> None:
    async def scenario() -> None:
        store = open_store(cluster.url)
        await put_in_the_end(store, PREFIX + "epoch", b"1")
        async with mirrored(store, PREFIX) as mirror:
            for member in cluster.members:
                cluster.kill(member.name)
            await until(lambda: not mirror.connected, "the mirror knows")
            with pytest.raises(StoreUnavailable, match="majority"):
                await store.list(PREFIX)
            for member in cluster.members:
                cluster.start(member.name)
            await until(lambda: mirror.connected, "the mirror follows again")
            assert mirror.entries[PREFIX + "epoch"].value == b"1"
        await store.close()

    run(scenario())
