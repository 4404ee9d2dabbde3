"""etcd behind a certificate and a login."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from isochrone.control.fleet.bundled.writing import write_bundled
from isochrone.store.base import Put, StoreUnavailable
from isochrone.store.opening import open_store
from store_conformance import LIMIT_SECONDS, mirrored, run

pytestmark = pytest.mark.peers

#: A word that nothing else contains.
PASSWORD = "hush-4711"


def _ask(cluster: EtcdCluster, path: str, body: dict[str, object]) -> None:
    answer = httpx.post(f"{cluster.members[0].client_url}/v3/{path}", json=body, trust_env=False, verify=False)
    assert answer.status_code == 200, answer.text


def _require_login(cluster: EtcdCluster) -> None:
    _ask(cluster, "auth/user/add", {"name": "root", "password": PASSWORD})
    _ask(cluster, "auth/role/add", {"name": "root"})
    _ask(cluster, "auth/user/grant", {"user": "root", "role": "root"})
    _ask(cluster, "auth/enable", {})


def test_certificate_and_login(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    tls = ("--cert-file", str(certificate[0]), "--key-file", str(certificate[1]))

    async def scenario(endpoint: str) -> None:
        trusted = f"?ca={certificate[0]}"
        store = open_store(f"etcd:https://root:{PASSWORD}@{endpoint}{trusted}")
        async with mirrored(store, "/") as mirror:
            outcome = await store.transact([], [Put("/a", b"1")])
            assert await mirror.changed(outcome.revision - 1, LIMIT_SECONDS)
            # A login that has run out is made again, also under a watch.
            store.inner._api._token = "no.1"  # type: ignore[attr-defined]
            assert await store.get("/a") is not None
            lease = await store.grant(5)
            await lease.revoke()
        await store.close()
        for url, words in {
            f"etcd:https://{endpoint}": "certificate",
            f"etcd:https://{endpoint}{trusted}": "USER@HOST:2379, and the password in ISOCHRONE_STORE_PASSWORD",
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


_ISOCHRONE = (sys.executable, "-m", "isochrone")
_SECONDS = 90.0


@contextmanager
def _up(file: Path, log: Path) -> Iterator[psutil.Process]:
    """``isochrone up``, from when everything serves until all of it is gone."""
    with log.open("wb") as output:
        process = psutil.Popen([*_ISOCHRONE, "up", str(file)], stdout=output, stderr=output)
    try:
        ends = time.monotonic() + _SECONDS
        while "Ctrl-C stops everything" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
        yield process
        process.terminate()
        assert process.wait(_SECONDS) == 0
    finally:
        left = process.children(recursive=True) if process.is_running() else []
        if process.is_running():
            process.kill()
            process.wait()
        psutil.wait_procs(left, timeout=_SECONDS)


def test_nobody_sees_the_password_of_a_fleet(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd", loopback_members(1)) as cluster:
        _require_login(cluster)
        endpoint = cluster.members[0].client
        file = write_bundled(tmp_path / "fleet")
        text = file.read_text()
        for old, new in (
            ("sqlite:state/fleet.db", f"etcd:http://root:{PASSWORD}@{endpoint}"),
            ('"127.0.0.1:8003"', '"127.0.0.1:0"'),
            ('"127.0.0.1:8000", metrics_port: 9000', '"127.0.0.1:0", metrics_port: 0'),
            ("workers: 3, min: 1", "workers: 1, min: 1"),
        ):
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        log = tmp_path / "up.log"
        with _up(file, log) as process:
            children = process.children(recursive=True)
            # A controller, a gateway and a worker at least.
            assert len(children) >= 3
            shown = [word for child in children for word in child.cmdline()]
        logs = list((tmp_path / "fleet").rglob("*.log"))
        assert logs
        told = [log.read_text(), *(path.read_text() for path in logs)]
        store = open_store(f"etcd:http://root:{PASSWORD}@{endpoint}")

        async def read() -> None:
            told.extend(entry.value.decode() for entry in (await store.list("")).entries.values())
            await store.close()

        run(read())
        for text in (*shown, *told):
            assert PASSWORD not in text, text
        assert any(f"http://root@{endpoint}" in word for word in shown)
