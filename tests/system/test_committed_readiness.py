"""``/v2/health/committed`` of a real worker: what Kubernetes asks before an update replaces the next one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.store.base import Put
from isochrone.store.opening import open_store
from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer
from watching import wait_for

KEYS = Keys("plant")


def status(server: ServerProcess, path: str) -> int:
    return httpx.get(f"http://{server.http_url}{path}", timeout=30, trust_env=False).status_code


def commit(store: str, models: dict[str, Assignment], epoch: int) -> None:
    async def write() -> None:
        opened = open_store(store)
        try:
            await opened.transact((), (Put(KEYS.epoch, encode(EpochRecord(epoch, models))),))
        finally:
            await opened.close()

    asyncio.run(write())


@contextmanager
def controller(directory: Path, store: str) -> Iterator[None]:
    words = ["control", "--store", store, "--fleet", "plant", "--name", "c1", "--listen", "127.0.0.1:0"]
    with (directory / "control.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "isochrone", *words], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0, (directory / "control.log").read_text()


# tests/control/agents/test_commit_watch.py has the decisions.
@pytest.mark.long
def test_a_worker_of_a_fleet_has_what_is_committed_or_says_that_it_has_not(
    server_factory: StartServer, tmp_path: Path
) -> None:
    repository, gate = tmp_path / "models", tmp_path / "gate"
    write_config(
        repository / "held",
        """
        backend: "python"
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
    )
    source = f"""
        import os, time
        class Model:
            def __init__(self):
                while not os.path.exists({str(gate)!r}):
                    time.sleep(0.01)
            def infer(self, inputs):
                return {{"Y": inputs["X"]}}
        """
    write_python(repository / "held", source)
    store = f"sqlite:{tmp_path / 'fleet.db'}"
    flags = ["--model-control-mode", "explicit", "--store", store, "--fleet", "plant", "--name", "cpu-1"]
    with server_factory(repository, *flags, "--pool", "cpu") as server:

        def is_committed() -> bool:
            return status(server, "/v2/health/committed") == 200

        # Nothing is committed yet: the first roll-out waits for workers that are ready.
        wait_for(is_committed, 60)
        commit(store, {"held": Assignment("1", pools=("cpu",)), "other": Assignment("7", pools=("gpu",))}, 1)
        wait_for(lambda: not is_committed(), 60)
        assert status(server, "/v2/health/ready") == 200
        try:
            with controller(tmp_path, store):
                # The controller loads into a worker that is not ready in this sense.
                wait_for(lambda: "LOADING" in _index(server), 60)
                assert not is_committed()
                gate.touch()
                wait_for(is_committed, 60)
            # It stays so while the controllers are away.
            assert is_committed()
        finally:
            gate.touch()


def _index(server: ServerProcess) -> str:
    return httpx.post(f"http://{server.http_url}/v2/repository/index", timeout=30, trust_env=False).text


def test_a_worker_without_a_fleet_is_committed_when_it_is_ready(server_factory: StartServer, tmp_path: Path) -> None:
    with server_factory(write_models(tmp_path / "models", "identity_int32")) as server:
        assert status(server, "/v2/health/committed") == 200
        assert status(server, "/v2/health/ready") == 200
