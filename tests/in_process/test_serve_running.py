"""The life of a server in the caller's process: ports, stopping, starting again, and what it leaves behind: nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
import threading
import weakref
from typing import Any

import numpy as np
import psutil
import pytest
import structlog

import isochrone
from bench.ports import free_ports
from isochrone.errors import ConfigError, Unavailable

X = {"x": "FP32[1]"}
ONE = {"x": np.float32([1])}
ANY_PORT: Any = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}


def double(x: Any) -> Any:
    return {"y": x * 2}


def _open_sockets() -> int:
    return len(psutil.Process().net_connections("inet"))


@pytest.mark.parametrize("was_frozen", [True, False])
def test_a_stopped_server_leaves_nothing(was_frozen: bool) -> None:
    class Held:
        def infer(self, inputs: Any) -> Any:
            return {"y": inputs["x"]}

    was_configured = structlog.is_configured()  # by another test of this process, perhaps
    gc.unfreeze()
    if was_frozen:
        gc.freeze()
    with isochrone.serve(double, inputs=X, block=False, **ANY_PORT) as first:
        first.client().infer("double", ONE)  # what libraries keep is there from now on
    threads, sockets, modules = threading.active_count(), _open_sockets(), set(sys.modules)
    interval, handlers = sys.getswitchinterval(), list(logging.getLogger().handlers)
    kept = []
    for _ in range(3):
        model = Held()
        kept.append(weakref.ref(model))
        with isochrone.serve(model, inputs=X, block=False, **ANY_PORT) as server:
            assert sys.getswitchinterval() < interval
            server.client().infer("Held", ONE)
            assert server.is_running
        assert not server.is_running
        server.stop()
        assert "stopped" in repr(server)
    del model
    for _ in range(3):
        gc.collect()  # what a finaliser lets go is collected the next time
    assert [ref() for ref in kept] == [None] * 3
    assert threading.active_count() == threads
    assert _open_sockets() == sockets
    assert not {name for name in set(sys.modules) - modules if "model" in name}
    assert sys.getswitchinterval() == interval
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as before all tests
    assert logging.getLogger().handlers == handlers
    assert not logging.getLogger("isochrone").handlers
    assert structlog.is_configured() == was_configured


def test_two_servers_at_once_and_the_first_stops_first() -> None:
    interval = sys.getswitchinterval()
    first = isochrone.serve(double, inputs=X, block=False, **ANY_PORT)
    second = isochrone.serve(double, name="other", inputs=X, block=False, **ANY_PORT)
    first.stop()
    assert sys.getswitchinterval() < interval
    assert second.client().infer("other", ONE)["y"].tolist() == [2]
    second.stop()
    assert sys.getswitchinterval() == interval


def test_the_same_ports_again_after_stop() -> None:
    http, grpc, metrics = free_ports(3)
    for _ in range(2):
        with isochrone.serve(
            double, inputs=X, block=False, http_port=http, grpc_port=grpc, metrics_port=metrics
        ) as server:
            assert (server.http_url, server.grpc_url) == (f"http://127.0.0.1:{http}", f"grpc://127.0.0.1:{grpc}")
            server.client().infer("double", ONE)


@pytest.mark.parametrize("argument", ["http_port", "grpc_port", "metrics_port"])
def test_a_port_in_use_names_the_argument(argument: str) -> None:
    class Loaded:
        closed = 0

        def infer(self, inputs: Any) -> Any:
            return {"y": inputs["x"]}

        def close(self) -> None:
            Loaded.closed += 1

    threads = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"isochrone.serve: {argument}: expected a free port .* given {port} on"):
            isochrone.serve(Loaded, inputs=X, block=False, **{**ANY_PORT, argument: port})
    assert Loaded.closed == 1
    assert threading.active_count() == threads


def test_a_callers_structlog_stays_as_it_is() -> None:
    lines: list[Any] = []

    def keep(logger: Any, method: str, event: Any) -> Any:
        lines.append(event["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    try:
        with isochrone.serve(double, inputs=X, block=False, **ANY_PORT) as server:
            server.client().infer("double", ONE)
        assert "ready" in lines
        assert structlog.get_config()["processors"] == [keep]
    finally:
        structlog.reset_defaults()


def test_while_the_caller_runs_an_event_loop() -> None:
    async def main() -> list[float]:
        with isochrone.serve(double, inputs=X, block=False, **ANY_PORT) as server:
            async with isochrone.AsyncClient(server.http_url) as client:
                answers = await asyncio.gather(*(client.infer("double", ONE) for _ in range(5)))
        return [float(answer["y"][0]) for answer in answers]

    assert asyncio.run(main()) == [2] * 5


def test_requests_in_flight_finish_when_the_server_stops() -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        if x[0] > 0:
            begun.set()
            assert release.wait(60)
        return {"y": x}

    server = isochrone.serve(
        slow, inputs=X, outputs={"y": "FP32[1]"}, parameters={"auto_warmup": "false"}, block=False, **ANY_PORT
    )
    answers: list[Any] = []
    client = isochrone.Client(server.http_url)
    caller = threading.Thread(target=lambda: answers.append(client.infer("slow", ONE)))
    caller.start()
    assert begun.wait(60)
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    release.set()
    stopper.join()
    caller.join()
    client.close()
    assert answers[0]["y"].tolist() == [1]
    with isochrone.Client(server.http_url, retries=0) as late, pytest.raises(Unavailable, match="cannot connect to"):
        late.infer("slow", ONE)


def test_nothing_is_written_into_the_working_directory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with isochrone.serve(double, inputs=X, block=False, **ANY_PORT) as server:
        server.client().infer("double", ONE)
    assert os.listdir(tmp_path) == []
