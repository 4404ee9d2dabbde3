"""etcd behind a certificate and a login."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from isochrone.store.base import Put, StoreUnavailable
from isochrone.store.opening import open_store
from store_conformance import LIMIT_SECONDS, mirrored, run

pytestmark = pytest.mark.peers


def _ask(cluster: EtcdCluster, path: str, body: dict[str, object]) -> None:
    answer = httpx.post(f"{cluster.members[0].client_url}/v3/{path}", json=body, trust_env=False, verify=False)
    assert answer.status_code == 200, answer.text


def _require_login(cluster: EtcdCluster) -> None:
    _ask(cluster, "auth/user/add", {"name": "root", "password": "secret"})
    _ask(cluster, "auth/role/add", {"name": "root"})
    _ask(cluster, "auth/user/grant", {"user": "root", "role": "root"})
    _ask(cluster, "auth/enable", {})


def test_certificate_and_login(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    tls = ("--cert-file", str(certificate[0]), "--key-file", str(certificate[1]))

    async def scenario(endpoint: str) -> None:
        trusted = f"?ca={certificate[0]}"
        store = open_store(f"etcd:https://root:secret@{endpoint}{trusted}")
        async with mirrored(store, "/") as mirror:
            outcome = await store.transact([], [Put("/a", b"1")])
            assert await mirror.changed(outcome.revision - 1, LIMIT_SECONDS)
            # A login that has run out is made again, also under a watch.
            store._api._token = "no.1"  # type: ignore[attr-defined]
            assert await store.get("/a") is not None
            lease = await store.grant(5)
            await lease.revoke()
        await store.close()
        for url, words in {
            f"etcd:https://{endpoint}": "certificate",
            f"etcd:https://{endpoint}{trusted}": "USER:PASSWORD",
            f"etcd:https://root:wrong@{endpoint}{trusted}": "authentication failed",
        }.items():
            store = open_store(url)
            with pytest.raises(StoreUnavailable, match=words) as raised:
                await store.get("/a")
            assert "wrong" not in str(raised.value)
            await store.close()

    with EtcdCluster(tmp_path, loopback_members(1, *tls, scheme="https")) as cluster:
        _require_login(cluster)
        run(scenario(cluster.members[0].client))
