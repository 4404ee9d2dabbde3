"""The controller's client against a real worker, and against servers that do not do as they are told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stock_clients import StockClient

from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import READY, UNAVAILABLE, ControlFailed, WorkerControl
from isochrone.control.workers.triton_loads import config_in
from isochrone.errors import ConfigError
from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer

_CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "IN" data_type: TYPE_INT32 dims: [1] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [1] }
    instance_group { count: 2 }
"""
_SOURCE = """
    class Model:
        def load(self, context):
            if (context.directory / "broken").exists():
                raise RuntimeError("no such weights")

        def infer(self, inputs):
            return {"OUT": inputs["IN"] * 0 + %d}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("controlled") / "models"
    for name in ("m", "other model"):
        write_config(repository / name, _CONFIG)
        for version in (1, 2, 3):
            write_python(repository / name, _SOURCE % version, version)
        (repository / name / "3" / "broken").touch()
    return repository


@pytest.fixture(scope="module")
def server(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    with server_factory(repository, "--model-control-mode", "explicit", "--no-strict-readiness") as started:
        yield started


def record_of(server: ServerProcess, kind: str) -> WorkerRecord:
    return WorkerRecord("cpu-1", "127.0.0.1", server.http_port, server.grpc_port, kind=kind)


def run(
    record: WorkerRecord, scenario: Callable[[WorkerControl], Awaitable[None]], configs: Path | None = None
) -> None:
    async def play() -> None:
        control = WorkerControl(record, lambda model: config_in(configs / model) if configs else None)
        try:
            await scenario(control)
        finally:
            await control.close()

    asyncio.run(asyncio.wait_for(play(), 100))


async def ready(control: WorkerControl, model: str = "m") -> set[str]:
    states = (await control.index())[model]
    return {version for version, each in states.items() if each.state == READY}


@pytest.mark.parametrize("kind", ["isochrone", "triton"])
def test_versions_come_and_go_as_asked(server: ServerProcess, repository: Path, kind: str) -> None:
    """The same calls for both kinds: our worker understands what a Triton is told as well."""

    async def scenario(control: WorkerControl) -> None:
        assert await control.ready()
        await control.serve("m", ["1"], 30)
        digests = {version: each.digest for version, each in (await control.index())["m"].items()}
        assert len(digests["1"]) == 64
        await control.serve("m", ["1", "2"], 30)
        index = (await control.index())["m"]
        assert {version for version, each in index.items() if each.state == READY} == {"1", "2"}
        assert index["1"].digest == digests["1"]
        assert index["2"].digest != digests["1"]
        assert await control.config_digest("m", "1") == await control.config_digest("m", "2")
        await control.serve("m", ["2"], 30)
        assert await ready(control) == {"2"}
        assert await control.config_digest("m", "2")
        await control.serve("m", [], 30)
        assert await ready(control) == set()
        await control.unload("m")
        with pytest.raises(ControlFailed, match="'m'"):
            await control.config_digest("m", "2")

    run(record_of(server, kind), scenario, repository)


@pytest.mark.parametrize("kind", ["isochrone", "triton"])
def test_a_version_that_fails_is_told_with_its_reason_and_nothing_changes(
    server: ServerProcess, repository: Path, kind: str
) -> None:
    async def scenario(control: WorkerControl) -> None:
        await control.serve("other model", ["1"], 30)
        before = (await control.index())["other model"]["1"].digest
        with pytest.raises(ControlFailed, match=r"worker 'cpu-1' \(127.0.0.1:\d+\): .*no such weights") as caught:
            await control.serve("other model", ["1", "3"], 30)
        assert caught.value.refused
        index = (await control.index())["other model"]
        assert (index["1"].state, index["1"].digest) == (READY, before)
        assert index["3"].state == UNAVAILABLE
        assert "no such weights" in index["3"].reason
        assert await control.ready()
        with pytest.raises(ControlFailed, match="9") as caught:
            await control.serve("other model", ["1", "9"], 30)
        assert caught.value.refused
        assert await ready(control, "other model") == {"1"}
        await control.unload("other model")

    run(record_of(server, kind), scenario, repository)


def test_a_configuration_that_is_not_known_is_learnt_by_a_plain_load(server: ServerProcess, repository: Path) -> None:
    write_config(repository / "plain", _CONFIG)
    for version in (1, 2):
        write_python(repository / "plain", _SOURCE % version, version)

    async def scenario(control: WorkerControl) -> None:
        await control.serve("plain", ["1"], 30)
        assert await ready(control, "plain") == {"1"}
        await control.unload("plain")
        await control.serve("plain", ["2"], 30)
        assert await ready(control, "plain") == {"2"}
        with pytest.raises(ControlFailed, match="no such weights"):
            await control.serve("other model", ["1"], 30)

    run(record_of(server, "triton"), scenario)


def test_a_configuration_on_disk_is_as_a_load_takes_it(repository: Path, tmp_path: Path) -> None:
    config = config_in(repository / "m")
    assert config is not None
    assert (config["max_batch_size"], config["instance_group"][0]["count"]) == (4, 2)
    assert config_in(tmp_path) is None
    (tmp_path / "config.pbtxt").mkdir()
    with pytest.raises(ConfigError, match="expected a readable file, given Is a directory"):
        config_in(tmp_path)


def test_a_model_nobody_knows(server: ServerProcess) -> None:
    async def scenario(control: WorkerControl) -> None:
        await control.unload("nobody")
        for act in (control.serve("nobody", ["1"], 30), control.config_digest("nobody", "1")):
            with pytest.raises(ControlFailed, match="unknown model: 'nobody'") as caught:
                await act
            assert caught.value.refused

    run(record_of(server, "isochrone"), scenario)


def test_versions_change_while_requests_run(server: ServerProcess) -> None:
    """Pinned to one version, and then to the other: what the gateway does around a commit."""
    pinned, over = ["1"], threading.Event()
    wrong: list[Any] = []
    answered = {"1": 0, "2": 0}

    def load() -> None:
        client = StockClient("grpc", server)
        try:
            while not over.is_set():
                version = pinned[0]
                answer = client.infer("m", {"IN": np.zeros((1, 1), np.int32)}, model_version=version)
                if answer.as_numpy("OUT").item() != int(version):
                    wrong.append(answer)
                answered[version] += 1
        except Exception as error:
            wrong.append(error)
        finally:
            client.close()

    async def until_answered(version: str) -> None:
        goal = answered[version] + 20
        while answered[version] < goal and not wrong:  # noqa: ASYNC110 (answered on a thread)
            await asyncio.sleep(0.005)

    async def scenario(control: WorkerControl) -> None:
        await control.serve("m", ["1"], 30)
        thread = threading.Thread(target=load)
        thread.start()
        try:
            for old, new in (("1", "2"), ("2", "1")) * 2:
                await until_answered(old)
                await control.serve("m", ["1", "2"], 30)
                pinned[0] = new
                await until_answered(new)
                await until_answered(new)  # every request of the old version has been sent by now
                await control.serve("m", [new], 30)
        finally:
            over.set()
            thread.join()
        await control.unload("m")

    run(record_of(server, "isochrone"), scenario)
    assert not wrong
    assert min(answered.values()) >= 40


class Stubborn:
    """A server that answers every request with the same bytes, or never."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> WorkerRecord:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return WorkerRecord("stubborn", "127.0.0.1", port, 0, kind="triton")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if self._answer is not None:
            writer.write(self._answer)
            await writer.drain()
            writer.close()


def http(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "words", "refused"),
    [
        (None, r"worker 'stubborn' \(127.0.0.1:\d+\): did not load version 1, 2 of model 'm' within 0.2 s", False),
        (b"", "no answer: RemoteProtocolError", False),
        (b"nonsense\r\n\r\n", "no answer: RemoteProtocolError", False),
        (http("200 OK", b"<html>"), "expected JSON, given '<html>'", False),
        (http("200 OK", b"{}"), "expected an index of models, given {}", False),
        (http("200 OK", b"[1]"), r"expected an index of models, given \[1\]", False),
        (http("503 Service Unavailable", json.dumps({"error": "stopping"}).encode()), ": stopping", False),
        (http("400 Bad Request", json.dumps({"error": "no memory"}).encode()), ": no memory", True),
        (http("500 Internal Server Error", b""), "HTTP status 500", True),
        (http("404 Not Found", b"[]"), r": \[\]", True),
    ],
)
def test_every_failure_is_one_kind_of_error(answer: bytes | None, words: str, refused: bool) -> None:
    async def play() -> None:
        async with Stubborn(answer) as record:
            control = WorkerControl(record)
            try:
                with pytest.raises(ControlFailed, match=words) as caught:
                    await control.serve("m", ["1", "2"], 0.2 if answer is None else 30)
                assert caught.value.refused is refused
                if answer is not None:
                    assert await control.ready() is answer.startswith(b"HTTP/1.1 200")
            finally:
                await control.close()

    asyncio.run(asyncio.wait_for(play(), 100))


def test_a_worker_that_is_gone(server_factory: StartServer, repository: Path) -> None:
    with server_factory(repository, "--model-control-mode", "explicit") as gone:
        records = [record_of(gone, kind) for kind in ("isochrone", "triton")]

    async def scenario(control: WorkerControl) -> None:
        assert not await control.ready()
        for act in (control.index(), control.serve("m", ["1"], 30), control.unload("m")):
            with pytest.raises(ControlFailed, match="no answer: ConnectError") as caught:
                await act
            assert not caught.value.refused

    for record in records:
        run(record, scenario)


def test_a_leader_of_the_past_changes_nothing(server: ServerProcess) -> None:
    """It was stopped while another one took over, and wakes up with a call in its hands."""

    async def play() -> None:
        record = record_of(server, "isochrone")
        past, present = WorkerControl(record, term=4), WorkerControl(record, term=5)
        try:
            await past.serve("m", ["1"], 30)
            await present.serve("m", ["1", "2"], 30)
            for call in (past.unload("m", 30), past.serve("m", ["1"], 30)):
                with pytest.raises(ControlFailed, match="a later leader") as refused:
                    await call
                assert refused.value.refused
            assert await ready(present) == {"1", "2"}
            await present.unload("m", 30)
        finally:
            await past.close()
            await present.close()

    asyncio.run(asyncio.wait_for(play(), 100))
