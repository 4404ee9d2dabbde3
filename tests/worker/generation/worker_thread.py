"""A real worker with toy models, on a thread of the test's process: its sockets are real, its models can be reached."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from toy_model import FixedTimes

from isochrone.in_process.process_state import process_state
from isochrone.worker.backends.registry import MODULE_BY_BACKEND
from isochrone.worker.generation.scheduling.step_times import StepCosts
from isochrone.worker.server.server import Worker
from isochrone.worker.server.settings import ServeSettings


def write_toy(repository: Path, name: str, config: str = "", **options: Any) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "config.json").write_text(json.dumps(options))
    (repository / name / "config.pbtxt").write_text(f'backend: "generation"\n{config}')


class ServedToys:
    """The running worker."""

    def __init__(self) -> None:
        self.ports: Mapping[str, int] = {}
        self.worker: Worker
        self.loop: asyncio.AbstractEventLoop

    async def start(self, ports: Mapping[str, int]) -> None:
        self.ports = ports
        self.is_ready.set()

    is_ready: threading.Event

    def is_complete(self, served: Mapping[tuple[str, str], str]) -> bool:
        return True

    async def stop(self) -> None:
        pass

    def runner(self, model: str) -> Any:
        return self.worker.catalog.find(model, "").runner

    def expect_steps_of(self, model: str, ns: int) -> None:
        """From now on, the model's steps are expected to take so long, whatever is measured."""
        for engine in self.runner(model)._engines.serving:
            engine.scheduler.times = FixedTimes(engine.scheduler.limits, StepCosts(fixed=ns))
            engine.load = engine.scheduler.load(0)

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Status and body."""
        status, _, text = self.call(path, body, headers)
        return status, text

    def call(
        self, path: str, body: object, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        """Status, header fields and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def get(self, port: str, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()


@contextlib.contextmanager
def served(repository: Path) -> Iterator[ServedToys]:
    toys = ServedToys()
    toys.is_ready = threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        toys.loop = asyncio.get_running_loop()
        settings = ServeSettings((repository,), host="127.0.0.1", http_port=0, grpc_port=0, metrics_port=0)
        try:
            toys.worker = Worker(settings, process_state.enter(), (toys,))
            await toys.worker.run(on_signals=False)
        finally:
            process_state.leave()

    def run() -> None:
        try:
            uvloop.run(serve())
        except BaseException as error:
            failures.append(error)
        toys.is_ready.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODULE_BY_BACKEND, "generation", "toy_model")
        thread = threading.Thread(target=run)
        thread.start()
        try:
            toys.is_ready.wait(60)
            if failures:
                raise failures[0]
            yield toys
        finally:
            if thread.is_alive():
                toys.loop.call_soon_threadsafe(toys.worker.request_stop)
            thread.join(60)
            assert not thread.is_alive()
