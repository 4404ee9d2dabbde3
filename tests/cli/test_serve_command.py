"""``isochrone serve`` as a process: how it ends, and what it says when it cannot start."""

from __future__ import annotations

import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server_process import StartServer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository: Path = tmp_path_factory.mktemp("samples")
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](repository)
    return repository


def test_impatient_signals_do_not_spoil_an_orderly_end(server_factory: StartServer, samples: Path) -> None:
    with server_factory(samples, check_exit=False) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            server.process.send_signal(number)
        while server.process.poll() is None:
            # Again and again until it is gone: no moment of its end may be without an answer to a signal.
            for number in (signal.SIGINT, signal.SIGTERM):
                server.process.send_signal(number)
            try:
                server.process.wait(0.005)
            except subprocess.TimeoutExpired:
                continue
        assert server.process.returncode == 0, server.log_text()


def test_switches_with_a_value_reach_the_server(server_factory: StartServer, samples: Path) -> None:
    with server_factory(samples, "--allow-metrics=false", "--exit-on-error=true") as server:
        assert server.http_port
        assert not server.metrics_port


def test_a_port_in_use_is_named_with_the_flag_that_changes_it(samples: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = str(held.getsockname()[1])
        command = [sys.executable, "-m", "isochrone", "serve", str(samples), "--host", "127.0.0.1"]
        result = subprocess.run(
            [*command, "--http-port", port, "--grpc-port", "0", "--metrics-port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 1
    said = result.stderr.splitlines()[-1]
    assert f"127.0.0.1:{port}" in said
    assert "--http-port" in said
