"""How a gateway listens: several processes on one port, TLS, and one gateway behind another."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import uvloop
from stock_clients import KINDS, StockClient
from typer.testing import CliRunner

from gateway_process import Fleet, GatewayProcess, StartGateway
from hostile_client import connected, read_to_end
from isochrone.cli.main import app
from isochrone.errors import AlreadyExists
from isochrone.gateway.server.failures import StartFailed
from isochrone.gateway.server.server import GatewayServer
from isochrone.gateway.server.settings import GatewaySettings
from watching import wait_for

ONE = {"IN": np.array([1], np.int32)}
CERTIFICATES = Path(__file__).parents[1] / "wire" / "certificates"


@pytest.fixture
def two_processes(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    log_path = tmp_path / "log"
    command = [str(Path(sys.executable).with_name("isochrone")), "gateway", "--listen", "127.0.0.1:0"]
    command += ["--metrics-port", "0", "--log-json", "--processes", "2", "--probe-timeout", "10"]
    command += [word for worker in fleet.workers for word in ("--upstream", worker.http_url)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: '"event": "ready"' in log_path.read_text(), 60)
        # Each process says so itself, and one may do it a moment later.
        wait_for(lambda: log_path.read_text().count('"event": "process ready"') == 2, 60)
        events = [json.loads(line) for line in log_path.read_text().splitlines()]
        port = next(event["gateway"] for event in events if event["event"] == "ready")
        yield process, port, log_path
    finally:
        for child in psutil.Process(process.pid).children() if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()


def test_several_processes_share_a_port(two_processes: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    process, port, log_path = two_processes
    events = [json.loads(line) for line in log_path.read_text().splitlines()]
    children = [psutil.Process(event["pid"]) for event in events if event["event"] == "process ready"]
    assert len(children) == 2

    def in_each() -> set[int]:
        """Processes that hold a connection of ours."""
        held = {
            pid
            for child in children
            for pid in [child.pid]
            if any(each.laddr.port == port and each.status == "ESTABLISHED" for each in child.net_connections())
        }
        return held

    clients = [StockClient("http", None, f"127.0.0.1:{port}") for _ in range(16)]  # type: ignore[arg-type]
    for client in clients:
        assert client.infer("identity_int32", ONE).as_numpy("OUT").tolist() == [1]
    assert len(in_each()) == 2, "both have a share of the connections"
    # One dies: it is started again, and the port is served all the while.
    children[0].kill()
    wait_for(lambda: log_path.read_text().count('"event": "process ready"') == 3, 60)
    with closing(StockClient("grpc", None, f"127.0.0.1:{port}")) as client:  # type: ignore[arg-type]
        assert client.infer("identity_int32", ONE).as_numpy("OUT").tolist() == [1]
    for client in clients:
        client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    assert "Traceback" not in log_path.read_text()


def test_none_outlives_the_process_that_started_them(two_processes: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    process, _, log_path = two_processes
    children = psutil.Process(process.pid).children()
    assert len(children) == 3, "two that serve, and the coordinator"
    process.kill()
    process.wait()
    try:
        wait_for(lambda: not any(_runs(child) for child in children), 60)
    finally:
        for child in children:
            if _runs(child):
                child.kill()
    assert log_path.read_text().count('"event": "stopped"') == 2


def _runs(process: psutil.Process) -> bool:
    """An orphan that ended may stay a zombie where nobody waits for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def tls_gateway(fleet: Fleet, gateway_factory: StartGateway) -> Iterator[GatewayProcess]:
    certificate, key = CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key"
    with gateway_factory(fleet.workers, "--tls-cert", str(certificate), "--tls-key", str(key)) as gateway:
        yield gateway


@pytest.mark.parametrize("kind", KINDS)
def test_tls(tls_gateway: GatewayProcess, kind: str) -> None:
    certificate = CERTIFICATES / "localhost.pem"
    url = f"localhost:{tls_gateway.http_port}"
    if kind == "http":
        arguments = {"ssl": True, "ssl_options": {"ca_certs": str(certificate)}, "insecure": True}
    elif kind == "http.aio":
        arguments = {"ssl": True, "ssl_context": ssl.create_default_context(cafile=str(certificate))}
    else:
        arguments = {"ssl": True, "root_certificates": str(certificate)}
    with closing(StockClient(kind, tls_gateway, url, **arguments)) as client:
        values = np.arange(100_000, dtype=np.int32)
        assert np.array_equal(client.infer("identity_int32", {"IN": values}).as_numpy("OUT"), values)


def test_plain_bytes_to_a_tls_port_harm_nobody(tls_gateway: GatewayProcess) -> None:
    with connected(tls_gateway.http_port) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" not in read_to_end(connection)


def test_the_metrics_page_has_tls_too(tls_gateway: GatewayProcess) -> None:
    with connected(tls_gateway.metrics_port) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" not in read_to_end(connection)


def test_a_gateway_behind_a_gateway(fleet: Fleet, gateway_factory: StartGateway) -> None:
    with gateway_factory([fleet.gateway]) as outer:
        for kind in KINDS:
            with closing(StockClient(kind, outer)) as client:
                assert client.infer("identity_int32", ONE).as_numpy("OUT").tolist() == [1]
                assert client.call("is_model_ready", "add_sub")
                assert client.count("identity_int32")["success"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no upstream"),
        (["--upstream", "somewhere"], "host:port"),
        (["--upstream", "a:99999"], "99999"),
        (["--upstream", "a:1", "--policy", "wishful"], "wishful"),
        (["--upstream", "a:1", "--listen", "nowhere"], "nowhere"),
        (["--upstream", "a:1", "--tls-cert", "x.pem"], "--tls-key"),
        (["--upstream", "a:1", "--tls-cert", "/x.pem", "--tls-key", "/x.key"], "/x.pem"),
        (["--upstream-file", "/nowhere/rules", "--rules", "/nowhere/rules"], "/nowhere/rules"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_one_sentence(arguments: list[str], words: str) -> None:
    ended = CliRunner().invoke(app, ["gateway", "--metrics-port", "-1", *arguments])
    assert ended.exit_code == 1, ended.output
    assert words in ended.stderr
    assert re.match(r"isochrone gateway: [^\n]*\n$", ended.stderr)


class _Link:
    """A control plane that has not told yet what to serve."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked, self.told = asyncio.Event(), asyncio.Event()
        self._error = error

    async def start(self) -> None:
        self.asked.set()
        await self.told.wait()
        if self._error is not None:
            raise self._error

    async def stop(self) -> None: ...


def _led_server(link: _Link) -> GatewayServer:
    server = GatewayServer(GatewaySettings(host="127.0.0.1", port=0, metrics_port=None, exit_timeout=0.0))
    server.make_link = lambda made: link
    return server


async def _connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


def test_a_gateway_of_a_fleet_accepts_when_it_knows_what_is_committed() -> None:
    """Its port is its own from the start; until it can serve, callers are sent elsewhere by the refusal."""

    async def run() -> None:
        link = _Link()
        server = _led_server(link)
        starting = asyncio.ensure_future(server.start())
        await link.asked.wait()
        assert not await _connects(server.ports["gateway"])
        link.told.set()
        await starting
        assert await _connects(server.ports["gateway"])
        await server.stop()

    uvloop.run(run())


def test_a_gateway_whose_name_is_taken_does_not_start() -> None:
    async def run() -> None:
        link = _Link(AlreadyExists("the gateway name 'g' is in use; give each gateway its own --name"))
        server = _led_server(link)
        link.told.set()
        with pytest.raises(StartFailed, match="--name"):
            await server.start()
        assert not await _connects(server.ports["gateway"])
        await server.stop()

    uvloop.run(run())
