"""Real Triton, driven as a worker of a fleet: versions come and go under load, and no request fails or stands still.

What is asserted here of Triton's ways is what ``isochrone.control.workers.triton_loads`` builds on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from bench.worker.peers import triton
from bench.worker.peers.process import Peer, answers, environment_python, scratch
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import READY, UNAVAILABLE, ControlFailed, WorkerControl
from isochrone.control.workers.triton_loads import config_in

pytestmark = pytest.mark.peers

MODULES: dict[str, Any] = {"http": triton_http, "grpc": triton_grpc}
_CONFIG = """name: "m"
backend: "python"
max_batch_size: 0
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
#: Answers its version. Each load is noted, waits while a file named "wait" lies beside the versions, and fails if one
#: named "broken" lies in its own.
_SOURCE = """
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])
        model = Path(args["model_repository"])
        with (model / "loads").open("a") as file:
            file.write(args["model_version"] + "\\n")
        while (model / "wait").exists():
            time.sleep(0.005)
        if (model / args["model_version"] / "broken").exists():
            raise RuntimeError("no such weights")

    def execute(self, requests):
        answer = pb.Tensor("OUT", np.array([self.version], np.int32))
        return [pb.InferenceResponse([answer]) for _ in requests]
"""


@dataclass
class Bench:
    """A Triton without models, and the directory of the one it may load."""

    peer: Peer
    model: Path
    record: WorkerRecord

    def loads(self) -> list[str]:
        """Versions loaded since it was asked last, sorted."""
        file = self.model / "loads"
        loads = sorted(file.read_text().split()) if file.exists() else []
        file.unlink(missing_ok=True)
        return loads

    def run(self, scenario: Callable[[WorkerControl], Awaitable[None]]) -> None:
        async def play() -> None:
            control = WorkerControl(self.record, lambda model: config_in(self.model.parent / model))
            try:
                await scenario(control)
            finally:
                (self.model / "wait").unlink(missing_ok=True)
                await control.unload("m")
                await control.close()

        self.loads()
        asyncio.run(asyncio.wait_for(play(), 90))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scratch("driven") as directory:
        model = directory / "models" / "m"
        for version in ("1", "2", "3"):
            (model / version).mkdir(parents=True)
            (model / version / "model.py").write_text(_SOURCE)
        (model / "3" / "broken").touch()
        (model / "config.pbtxt").write_text(_CONFIG)
        python, flags = environment_python(""), ("--model-control-mode=explicit", "--strict-readiness=false")
        with triton.serve_repository(model.parent, python, directory, (), flags) as peer:
            host, port = str(peer.http_url).removeprefix("http://").split(":")
            grpc_port = int(str(peer.grpc_address).rpartition(":")[2])
            yield Bench(peer, model, WorkerRecord("triton-1", host, int(port), grpc_port, kind="triton"))


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 (what is waited for comes about elsewhere)
        await asyncio.sleep(0.01)


@dataclass
class Load:
    """Clients that ask for one version after the other, as fast as they are answered."""

    record: WorkerRecord
    version: str = "1"
    wrong: list[Any] = field(default_factory=list)
    #: Answers of each client so far.
    answers: dict[str, int] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def client(self, name: str) -> None:
        transport = name.partition(" ")[0]
        module, port = MODULES[transport], self.record.port if transport == "http" else self.record.grpc_port
        given = module.InferInput("IN", [1], "INT32")
        given.set_data_from_numpy(np.zeros(1, np.int32))
        with module.InferenceServerClient(f"{self.record.host}:{port}") as client:
            while not self.over.is_set():
                version = self.version
                try:
                    answer = int(client.infer("m", [given], version).as_numpy("OUT").item())
                except Exception as error:
                    self.wrong.append(error)
                else:
                    if answer != int(version):
                        self.wrong.append((version, answer))
                self.answers[name] = self.answers.get(name, 0) + 1
                # Leaves the two cores of a small machine to the server.
                self.over.wait(0.005)

    async def all_answered(self, more: int = 3) -> None:
        """Every client has got so many answers from now on: none of them stands still."""
        goals = {name: self.answers.get(name, 0) + more for name in self.names}
        await until(lambda: all(self.answers.get(name, 0) >= goal for name, goal in goals.items()))

    #: More connections than Triton has threads for HTTP (8): each thread has one at least.
    names = (*(f"http {number}" for number in range(12)), "grpc 0", "grpc 1")

    def start(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        return [pool.submit(self.client, name) for name in self.names]


def says_ready(bench: Bench) -> bool:
    """What a gateway goes by."""
    return answers(f"{bench.peer.http_url}/v2/health/ready")


async def ready(control: WorkerControl) -> set[str]:
    return {version for version, each in (await control.index())["m"].items() if each.state == READY}


def test_versions_change_under_load(bench: Bench) -> None:
    load = Load(bench.record)

    async def scenario(control: WorkerControl) -> None:
        await control.serve("m", ["1"], 60)
        assert bench.loads() == ["1"]
        with ThreadPoolExecutor(len(load.names)) as pool:
            clients = load.start(pool)
            try:
                await load.all_answered()
                # While the new version loads, every client goes on: no connection waits for the load to be over.
                (bench.model / "wait").touch()
                serving = asyncio.ensure_future(control.serve("m", ["1", "2"], 60))
                await until((bench.model / "loads").exists)
                await load.all_answered()
                assert not serving.done()
                (bench.model / "wait").unlink()
                await serving
                assert await ready(control) == {"1", "2"}
                # Triton loads again what it has already.
                assert bench.loads() == ["1", "2"]
                load.version = "2"
                await load.all_answered()
                await control.serve("m", ["2"], 60)
                assert bench.loads() == ["2"]
                assert says_ready(bench)
                await load.all_answered()
                assert await ready(control) == {"2"}
            finally:
                load.over.set()
        for client in clients:
            client.result()

    bench.run(scenario)
    assert load.wrong == []


def test_what_is_there_is_not_loaded_again(bench: Bench) -> None:
    async def scenario(control: WorkerControl) -> None:
        await control.serve("m", ["1", "2"], 60)
        assert bench.loads() == ["1", "2"]
        await control.serve("m", ["2", "1"], 60)
        assert bench.loads() == []
        assert await control.config_digest("m", "1") == await control.config_digest("m", "2")
        assert (await control.index())["m"]["1"].digest == ""

    bench.run(scenario)


def test_a_version_that_fails_leaves_the_others(bench: Bench) -> None:
    async def scenario(control: WorkerControl) -> None:
        await control.serve("m", ["1"], 60)
        before = await control.config_digest("m", "1")
        with pytest.raises(ControlFailed, match="no such weights") as caught:
            await control.serve("m", ["1", "3"], 60)
        assert caught.value.refused
        index = (await control.index())["m"]
        assert (index["1"].state, index["3"].state) == (READY, UNAVAILABLE)
        assert "no such weights" in index["3"].reason
        assert await control.config_digest("m", "1") == before
        assert says_ready(bench)
        with pytest.raises(ControlFailed, match="version 9: expected in its model repository"):
            await control.serve("m", ["1", "9"], 60)
        assert await ready(control) == {"1"}

    bench.run(scenario)


def test_a_model_that_nobody_has(bench: Bench) -> None:
    async def scenario(control: WorkerControl) -> None:
        assert await control.ready()
        with pytest.raises(ControlFailed, match="failed to load 'nobody'"):
            await control.serve("nobody", ["1"], 60)
        await control.unload("nobody")

    bench.run(scenario)


def test_a_load_that_takes_too_long_is_told(bench: Bench) -> None:
    async def scenario(control: WorkerControl) -> None:
        (bench.model / "wait").touch()
        with pytest.raises(ControlFailed, match=r"worker 'triton-1' \(.*\): did not load version 1 of model 'm'"):
            await control.serve("m", ["1"], 0.5)
        (bench.model / "wait").unlink()

    bench.run(scenario)
