"""``isochrone serve`` as a process: its exit, and its errors at start."""

from __future__ import annotations

import runpy
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.cli.processes.flags.repository import read_model_cache_bytes
from isochrone.models.repository.layout import is_model
from server_process import StartServer

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


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
    assert "stopping" not in result.stdout + result.stderr
    assert "stopped" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10gb", "a number of bytes such as 200MiB, 2GiB or 1500000000 (did you mean '10GB'?), given '10gb'"),
        ("0", "at least 1 byte, given '0'"),
        ("-1", "a number of bytes such as 200MiB"),
    ],
)
def test_a_wrong_size_of_the_model_cache_is_named(samples: Path, given: str, expected: str) -> None:
    result = CliRunner().invoke(app, ["serve", str(samples), f"--model-cache-bytes={given}"])
    assert result.exit_code == 1
    assert f"--model-cache-bytes: expected {expected}" in result.output


@pytest.mark.parametrize(
    ("given", "expected"), [(None, None), ("1000", 1000), ("10GB", 10**10), ("2GiB", 2 << 30), ("20Gi", 20 << 30)]
)
def test_the_size_of_the_model_cache_is_a_quantity(given: str | None, expected: int | None) -> None:
    assert read_model_cache_bytes(given) == expected


def test_an_empty_repository_is_served_with_a_warning(server_factory: StartServer, tmp_path: Path) -> None:
    with server_factory(tmp_path) as server:
        assert "expected models in Triton's layout, such as detector/config.pbtxt and detector/1/" in server.log_text()


def test_a_models_own_directory_is_no_repository(samples: Path) -> None:
    # detector has a file in its version, pipeline, an ensemble, only its configuration.
    for name in ("detector", "pipeline"):
        result = CliRunner().invoke(app, ["serve", str(samples / name)])
        assert result.exit_code == 1
        assert (
            f"{samples / name} looks like a model; give its parent directory: isochrone serve {samples}"
            in result.output
        )


def test_a_model_may_be_called_like_a_version(samples: Path, tmp_path: Path) -> None:
    shutil.copytree(samples / "detector", tmp_path / "1")
    assert not is_model(tmp_path)
    assert is_model(tmp_path / "1")
