"""A request that kills its worker's process: it costs two workers, no more, and nobody else an answer."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gateway_load import Load
from stock_clients import KINDS, StockClient
from tritonclient.utils import InferenceServerException

from bench.ports import free_ports
from gateway_process import GatewayProcess, StartGateway
from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer
from up_process import isochrone, start_up
from watching import gauge, wait_for

pytestmark = pytest.mark.long

#: Echoes IN, slowly enough that others are in flight beside it; reads address 0 when IN begins with a negative number.
_SOURCE = """
import ctypes
import time


class Model:
    def infer(self, inputs):
        if inputs["IN"][0] < 0:
            ctypes.string_at(0)
        time.sleep(0.002)
        return {"OUT": inputs["IN"]}
"""
_CONFIG = """
backend: "python"
instance_group { count: 4 }
input { name: "IN" data_type: TYPE_INT32 dims: [-1] }
output { name: "OUT" data_type: TYPE_INT32 dims: [-1] }
"""
MODEL = "identity_int32"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fragile") / "models"
    write_config(directory / MODEL, _CONFIG)
    write_python(directory / MODEL, _SOURCE)
    return directory


@pytest.fixture
def fleet(
    repository: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[tuple[GatewayProcess, list[ServerProcess]]]:
    with ExitStack() as stack:
        workers = [stack.enter_context(server_factory(repository, check_exit=False)) for _ in range(4)]
        gateway = stack.enter_context(gateway_factory(workers))
        gateway.wait_workers(4)
        yield gateway, workers


def dead(workers: list[ServerProcess]) -> int:
    return sum(worker.process.poll() is not None for worker in workers)


def kill_by_request(client: StockClient, number: int, **keywords: Any) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(MODEL, {"IN": np.array([-1, number], np.int32)}, **keywords)
    return caught.value


class _Alike:
    """Callers that all send one and the same request."""

    def __init__(self, gateway: ServerProcess) -> None:
        self._gateway = gateway
        self._over = threading.Event()
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in KINDS[:2] * 2]

    def __enter__(self) -> _Alike:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: Any) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, kind: str) -> None:
        with closing(StockClient(kind, self._gateway)) as client:
            while not self._over.is_set():
                try:
                    client.infer(MODEL, {"IN": np.array([7], np.int32)})
                except Exception as error:
                    self.failures.append(f"{kind}: {error}")
                    return


@pytest.mark.parametrize("kind", KINDS)
def test_it_costs_two_workers_and_nobody_an_answer(
    kind: str, fleet: tuple[GatewayProcess, list[ServerProcess]]
) -> None:
    gateway, workers = fleet
    with Load(gateway) as load, _Alike(gateway) as alike, closing(StockClient(kind, gateway)) as client:
        load.more(20)
        error = kill_by_request(client, 1, request_id="first")
        assert error.status() == ("422" if client.is_http else "StatusCode.FAILED_PRECONDITION")
        assert "isolation" in error.message()
        wait_for(lambda: dead(workers) == 2)
        # Whoever sends it again, under another id or not, is rejected, and no further worker sees it.
        for identity in ("first", "second", ""):
            error = kill_by_request(client, 1, request_id=identity)
            assert error.status() == ("422" if client.is_http else "StatusCode.FAILED_PRECONDITION")
        load.more(50)
        assert dead(workers) == 2
    assert not load.failures
    assert not alike.failures
    prefix = "isochrone_gateway_"
    assert gauge(gateway, f"{prefix}quarantines_total", MODEL) == 1
    assert gauge(gateway, f"{prefix}quarantined", MODEL) == 1
    assert gauge(gateway, f"{prefix}quarantine_rejections_total", MODEL) == 3
    assert gauge(gateway, f"{prefix}suspects_total", MODEL) >= 2
    assert "a request is quarantined" in gateway.log_text()


def test_where_suspects_share_workers_it_costs_three_and_still_nobody_an_answer(
    repository: Path, server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("defaults: {quarantine: {suspects_at_once: 8}}\n")
    with ExitStack() as stack:
        workers = [stack.enter_context(server_factory(repository, check_exit=False)) for _ in range(4)]
        gateway = stack.enter_context(gateway_factory(workers, "--rules", str(rules)))
        gateway.wait_workers(4)
        with Load(gateway) as load, _Alike(gateway) as alike, closing(StockClient("http", gateway)) as client:
            load.more(20)
            assert kill_by_request(client, 1).status() == "422"
            load.more(50)
        # Two, if it happened to be alone on the second.
        assert dead(workers) in (2, 3)
        assert not load.failures
        assert not alike.failures
        assert gauge(gateway, "isochrone_gateway_quarantines_total", MODEL) == 1


class _Relay:
    """Stands between a gateway and a worker as the network does, and resets every connection when told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self.upstream = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> int:
        pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            # One that has just ended by itself is closed already.
            with contextlib.suppress(OSError):
                for end in pair:
                    # A reset instead of an orderly end.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                for end in pair:
                    end.shutdown(socket.SHUT_RD)
        return len(pairs)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            pair = (near, far)
            self._pairs.add(pair)
            self._threads.append(threading.Thread(target=self._carry, args=(pair,), daemon=True))
            self._threads[-1].start()

    def _carry(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while True:
                readable, _, _ = select.select(pair, (), ())
                for end in readable:
                    data = end.recv(65536)
                    if not data:
                        raise OSError
                    pair[end is pair[0]].sendall(data)
        self._pairs.discard(pair)
        for end in pair:
            end.close()


def test_a_connection_that_is_cut_makes_no_suspect(
    repository: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    """The network resets connections under requests; the workers live."""
    with ExitStack() as stack:
        workers = [stack.enter_context(server_factory(repository)) for _ in range(2)]
        relays = [stack.enter_context(closing(_Relay(worker.http_port))) for worker in workers]
        gateway = stack.enter_context(gateway_factory([relay.upstream for relay in relays]))
        gateway.wait_workers(2)
        with Load(gateway) as load:
            cut = 0
            for _ in range(5):
                for relay in relays:
                    load.more(5)
                    cut += relay.cut()
            load.more(20)
        assert cut > 10
        assert not load.failures
        assert gauge(gateway, "isochrone_gateway_failures_total", MODEL) > 0
        assert gauge(gateway, "isochrone_gateway_suspects_total", MODEL) == 0
        assert "process is gone" not in gateway.log_text()


def test_a_fleet_tells_it_in_its_events(repository: Path, tmp_path: Path) -> None:
    api, port = free_ports(2)
    file = tmp_path / "fleet.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "fragile",
                "repository": str(repository),
                "control": {"listen": f"127.0.0.1:{api}"},
                "gateways": {"gw": {"listen": f"127.0.0.1:{port}", "metrics_port": 0}},
                "pools": {"cpu": {"workers": 4}},
                "models": {MODEL: {"version": 1}},
            }
        )
    )
    with start_up(str(file), log=tmp_path / "up.log") as up:
        up.wait_for("Ctrl-C stops everything")
        gateway = GatewayProcess(up.process, tmp_path / "up.log")  # type: ignore[arg-type]
        gateway.http_port = gateway.grpc_port = port
        with Load(gateway) as load, closing(StockClient("http", gateway)) as client:
            load.more(20)
            assert kill_by_request(client, 1).status() == "422"
            load.more(50)
        assert not load.failures

        def told() -> list[dict[str, Any]]:
            ended = isochrone("events", "--api", f"http://127.0.0.1:{api}", "--json")
            assert ended.returncode == 0, ended.stderr
            events = [json.loads(line) for line in ended.stdout.splitlines() if line.strip()]
            return [event for event in events if event["what"] == "request quarantined"]

        wait_for(lambda: bool(told()))
        (event,) = told()
        assert (event["who"], event["about"]) == ("gw", MODEL)
        assert "isolation" in event["detail"]
