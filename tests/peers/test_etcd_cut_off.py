"""A member of etcd that lives and is cut off from the others: our client leaves it, whoever it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from etcd_namespaces import CutOffCluster, cut_off_cluster

from isochrone.store.base import Put
from isochrone.store.opening import open_store
from store_conformance import LIMIT_SECONDS, mirrored, run

pytestmark = pytest.mark.peers

PREFIX = "/isochrone/cut/"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutOffCluster]:
    with cut_off_cluster(tmp_path_factory.mktemp("etcd-cut")) as place:
        yield place


def test_a_watch_leaves_a_member_that_is_cut_off(place: CutOffCluster) -> None:
    async def scenario() -> None:
        cluster = place.cluster
        leader = await asyncio.to_thread(cluster.leader)
        follower = next(member for member in cluster.members if member is not leader)
        for cut in (follower, leader):
            kept = [member for member in cluster.members if member is not cut]
            reader = open_store(f"etcd:{cut.client_url}")
            # Its watch begins at the one that is cut off: only then it hears of the others.
            reader.inner._api._endpoints += [member.client_url for member in kept]  # type: ignore[attr-defined]
            writer = open_store("etcd:" + ",".join(member.client_url for member in kept))
            async with mirrored(reader, PREFIX) as mirror:
                lease = await reader.grant(30)
                await reader.transact([], [Put(PREFIX + "worker", b"here", lease.id)])
                place.cut(cut)
                for member in kept:
                    await asyncio.to_thread(cluster.wait_ready, member.name)
                outcome = await writer.transact([], [Put(PREFIX + "epoch", cut.name.encode())])
                assert await mirror.changed(outcome.revision - 1, LIMIT_SECONDS)
                assert mirror.entries[PREFIX + "epoch"].value == cut.name.encode()
                assert PREFIX + "worker" in mirror.entries
                place.mend(cut)
                await asyncio.to_thread(cluster.wait_ready, cut.name)
                assert not lease.lost
                await lease.revoke()
            await writer.close()
            await reader.close()

    run(scenario())
