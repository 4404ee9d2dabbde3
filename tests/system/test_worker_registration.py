"""``isochrone serve --store``: the worker's record is there while the worker is, and never longer than its lease."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from stock_clients import StockClient

from isochrone.control.state.codec import decode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.protocol.access.control_token import HEADER
from isochrone.store.opening import open_store
from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer
from watching import wait_for

KEYS = Keys("farm")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("registered") / "models", "identity_int32")


def registered(path: Path) -> dict[str, WorkerRecord]:
    """As another process sees it."""

    async def read() -> dict[str, WorkerRecord]:
        store = open_store(f"sqlite:{path}")
        try:
            entries = (await store.list(KEYS.workers)).entries.values()
            return {entry.key.removeprefix(KEYS.workers): decode(entry.value, WorkerRecord) for entry in entries}
        finally:
            await store.close()

    return asyncio.run(read())


def flags(path: Path, name: str, *more: str) -> list[str]:
    return [
        *("--model-control-mode", "explicit", "--load-model", "identity_int32"),
        *("--store", f"sqlite:{path}", "--fleet", "farm", "--name", name, "--lease-seconds", "5", *more),
    ]


def status_of(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def answers(server: ServerProcess) -> bool:
    client = StockClient("http", server)
    try:
        given = np.arange(3, dtype=np.int32)
        return bool((client.infer("identity_int32", {"IN": given}).as_numpy("OUT") == given).all())
    finally:
        client.close()


@pytest.mark.long
def test_a_record_lives_as_long_as_its_worker(server_factory: StartServer, repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    place = ("--pool", "cpu", "--tier", "edge", "--device", "cpu", "--region", "hall-2", "--memory", "1000000")
    with (
        server_factory(repository, *flags(path, "cpu-1", *place)) as one,
        server_factory(repository, *flags(path, "cpu-2"), check_exit=False) as two,
    ):
        wait_for(lambda: set(registered(path)) == {"cpu-1", "cpu-2"})
        record = registered(path)["cpu-1"]
        assert (record.host, record.port, record.grpc_port) == ("127.0.0.1", one.http_port, one.grpc_port)
        assert (record.metrics_port, record.pid, record.kind) == (one.metrics_port, one.pid, "isochrone")
        assert (record.pool, record.tier, record.device, record.region) == ("cpu", "edge", "cpu", "hall-2")
        assert (record.memory, bool(record.incarnation)) == (1_000_000, True)
        # Died: nobody says so; the lease does.
        two.kill()
        wait_for(lambda: set(registered(path)) == {"cpu-1"})
        # Stopped in order: the record goes before the process does.
        assert one.terminate() == 0
        assert registered(path) == {}


def test_a_worker_serves_whatever_becomes_of_its_store(
    server_factory: StartServer, repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "nowhere" / "fleet.db"
    # A directory that cannot be made, since a file stands in its place.
    path.parent.write_text("")
    with server_factory(repository, *flags(path, "cpu-1")) as server:
        wait_for(lambda: "the store does not answer" in server.log_text())
        assert answers(server)
        path.parent.unlink()
        path.parent.mkdir()
        wait_for(lambda: "the store answers again" in server.log_text())
        wait_for(lambda: set(registered(path)) == {"cpu-1"})


@pytest.mark.parametrize("in_fleet", [True, False])
def test_a_failed_load_takes_only_a_lone_worker_away_from_its_other_models(
    server_factory: StartServer, tmp_path: Path, in_fleet: bool
) -> None:
    """In a fleet it is the rollout's affair; alone it is Triton's strict readiness."""
    repository = write_models(tmp_path / "models", "identity_int32")
    write_config(repository / "broken", 'backend: "python" input { name: "X" data_type: TYPE_FP32 dims: [1] }')
    write_python(repository / "broken", "raise RuntimeError('no such weights')")
    path = tmp_path / "fleet.db"
    alone = ("--model-control-mode", "explicit", "--load-model", "identity_int32")
    with server_factory(repository, *(flags(path, "cpu-1") if in_fleet else alone)) as server:
        headers = {}
        if in_fleet:
            wait_for(lambda: set(registered(path)) == {"cpu-1"})
            headers[HEADER] = registered(path)["cpu-1"].control_token
        for model, body in (("broken", b""), ("identity_int32", b'{"parameters": {"versions": "1,5"}}')):
            target = f"http://{server.http_url}/v2/repository/models/{model}/load"
            assert status_of(urllib.request.Request(target, body, headers)) == 400
        ready = status_of(urllib.request.Request(f"http://{server.http_url}/v2/health/ready"))
        assert ready == (200 if in_fleet else 400)
        assert answers(server)
