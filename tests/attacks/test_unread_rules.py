"""A worker of a fleet whose rules it has not read yet: it answers health, and nothing else to anybody but the fleet."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from pathlib import Path

from guarded_servers import ask, inference

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import AccessRecord
from isochrone.secure.access.internal import InternalCallers
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.secure.fleet_key import FleetKey
from isochrone.store.base import Put, Snapshot
from isochrone.store.opening import open_store, seal_of
from sample_models import write_models
from server_process import StartServer
from up_process import ISOCHRONE, SECONDS
from watching import wait_for

KEY = "00112233445566778899aabbccddeeff"
INFER = "/v2/models/identity_fp32/infer"


def test_a_worker_before_and_after_it_has_read_the_rules(
    tmp_path: Path, server_factory: StartServer, tried: Counter[str]
) -> None:
    token = new_token()
    (tmp_path / "fleet.key").write_text(KEY)
    repository = write_models(tmp_path / "models", "identity_fp32")
    url = f"sqlite:{tmp_path}/fleet.db"
    flags = ("--store", url, "--fleet", "late", "--name", "cpu-1", "--fleet-key", str(tmp_path / "fleet.key"))
    explicit = ("--model-control-mode", "explicit", "--load-model", "*")
    with server_factory(repository, *flags, "--access", "@fleet", *explicit) as worker:
        for port in (worker.http_port, worker.grpc_port):
            assert ask(port, "GET", "/v2/health/live")[0] == 200
            for credential in ({}, {"authorization": f"Bearer {token}"}, {"authorization": "Bearer x"}):
                for method, path, body in (("POST", INFER, inference()), ("GET", "/v2/models/stats", None)):
                    assert ask(port, method, path, credential, body)[0] == 503
                    tried["a worker that has not read the fleet's rules"] += 1
        own = {"authorization": f"Bearer {InternalCallers(FleetKey(KEY.encode())).gateway_token}"}
        assert ask(worker.http_port, "POST", "/v2/repository/index", own, {})[0] == 200
        assert not asyncio.run(_listed(url)).entries, "gateways would send to it"
        document = {
            "tokens": {"a": {"sha256": digest_of(token)}},
            "assign": [{"to": ["token:a"], "roles": ["caller"]}],
        }
        asyncio.run(_write(url, AccessRecord(1, document)))
        bearer = {"authorization": f"Bearer {token}"}
        wait_for(lambda: ask(worker.http_port, "POST", INFER, bearer, inference())[0] == 200)
        assert ask(worker.http_port, "POST", INFER, {}, inference())[0] == 401
        wait_for(lambda: asyncio.run(_listed(url)).entries)


async def _write(url: str, record: AccessRecord) -> None:
    store = open_store(url, seal=seal_of(FleetKey(KEY.encode())))
    try:
        await store.transact((), [Put(Keys("late").access, encode(record))])
    finally:
        await store.close()


async def _listed(url: str) -> Snapshot:
    store = open_store(url)
    try:
        return await store.list(Keys("late").workers)
    finally:
        await store.close()


def test_the_rules_of_a_fleet_need_its_store_and_its_key(tmp_path: Path) -> None:
    repository = str(write_models(tmp_path / "models", "identity_fp32"))
    key, rules = tmp_path / "fleet.key", tmp_path / "access.yaml"
    key.write_text(KEY)
    rules.write_text("tokens: {}\n")
    store = ("--store", f"sqlite:{tmp_path}/fleet.db")
    fleet = ("--access", "@fleet")
    explicit = ("--model-control-mode", "explicit")
    for words, expected in (
        (("serve", repository, *fleet), "--access: expected --store beside @fleet"),
        (("serve", repository, *fleet, *store, *explicit), "--access: expected --fleet-key beside @fleet"),
        (("gateway", *fleet, *store), "--access: expected --fleet-key beside @fleet"),
        (("control", *fleet, *store, "--fleet", "f"), "--access: expected --fleet-key beside @fleet"),
        (
            ("gateway", *fleet, *store, "--fleet-key", str(key), "--processes", "2"),
            "--access: expected a file beside --processes",
        ),
        (
            ("serve", repository, "--access", str(rules), *store, *explicit),
            "--store and --access FILE: the fleet's controllers could not call this worker",
        ),
    ):
        found = subprocess.run([*ISOCHRONE, *words], capture_output=True, text=True, timeout=SECONDS, check=False)
        assert found.returncode == 1, words
        assert expected in found.stderr, (words, found.stderr)
