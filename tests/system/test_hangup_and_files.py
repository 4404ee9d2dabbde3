"""A terminal that closes, and a process without file descriptors: an orderly end, and a line in the log."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gateway_process import StartGateway
from isochrone.stop_signals import stop_signals
from sample_models import write_models
from server_process import ServerProcess, StartServer
from up_process import SECONDS, bundled_fleet, start_up


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("hangup") / "models", "add_sub")


@contextlib.contextmanager
def hangup_ignored() -> Iterator[None]:
    """As ``nohup`` does: what is started meanwhile inherits it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_which_signals_end_a_process() -> None:
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    with hangup_ignored():
        assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT}


@pytest.mark.long
def test_a_worker_and_a_gateway_drain_when_their_terminal_closes(
    server_factory: StartServer, gateway_factory: StartGateway, models: Path
) -> None:
    with (
        server_factory(models, check_exit=False) as worker,
        gateway_factory([worker], check_exit=False) as gateway,
    ):
        for process in (gateway, worker):
            process.process.send_signal(signal.SIGHUP)
            assert process.process.wait(60) == 0, process.log_text()
            assert any(event["event"] == "stopped" for event in process.log_events())


@pytest.mark.long
def test_a_whole_fleet_drains_when_its_terminal_closes(tmp_path: Path) -> None:
    with start_up(str(bundled_fleet(tmp_path / "fleet", workers=1)), log=tmp_path / "up.log") as up:
        up.wait_for("Ctrl-C stops everything")
        children = up.children()
        up.process.send_signal(signal.SIGHUP)
        assert up.process.wait(SECONDS) == 0, up.log.read_text()
        assert not psutil.wait_procs(children, timeout=SECONDS)[1]
        assert up.log.read_text().splitlines()[-1] == "stopped"


def test_a_worker_under_nohup_stays(server_factory: StartServer, models: Path) -> None:
    with hangup_ignored(), server_factory(models) as worker:
        worker.process.send_signal(signal.SIGHUP)
        # Answered after the signal was delivered: a signal is handled before the next turn of the loop.
        with socket.create_connection(("127.0.0.1", worker.http_port)) as connection:
            connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(64).startswith(b"HTTP/1.1 200")


def test_running_out_of_files_is_logged_once(server_factory: StartServer, models: Path) -> None:
    with server_factory(models) as worker, contextlib.ExitStack() as held:
        _, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (open_files(worker) + 5, hard))
        for _ in range(20):
            held.enter_context(socket.create_connection(("127.0.0.1", worker.http_port)))
        ends = time.monotonic() + 60
        while not exhausted(worker):
            assert time.monotonic() < ends, worker.log_text()
            time.sleep(0.02)
        assert "ulimit -n" in exhausted(worker)[0]
        held.close()
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert len(exhausted(worker)) == 1


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def exhausted(server: ServerProcess) -> list[str]:
    events = [event["event"] for event in server.log_events()]
    return [event for event in events if event.startswith("out of file descriptors")]


def test_shared_ports_in_explicit_mode_get_a_warning(server_factory: StartServer, models: Path) -> None:
    def warned(*flags: str) -> bool:
        with server_factory(models, *flags) as worker:
            return any(event["event"].startswith("a load, an unload") for event in worker.log_events())

    assert warned("--reuse-port", "--model-control-mode=explicit")
    assert not warned("--reuse-port")
