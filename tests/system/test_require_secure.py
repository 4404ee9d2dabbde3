"""A worker and a gateway that others reach say what they lack, and do not start with ``--require-secure``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sample_models import write_models
from server_process import StartServer

ISOCHRONE = str(Path(sys.executable).with_name("isochrone"))


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_they_do_not_start(command: str, tmp_path: Path) -> None:
    write_models(tmp_path / "models", "identity_fp32")
    words = {
        "serve": [str(tmp_path / "models"), "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"],
        "gateway": ["--upstream", "127.0.0.1:1", "--listen", "0.0.0.0:0", "--metrics-port", "0"],
    }[command]
    found = subprocess.run(
        [ISOCHRONE, command, *words, "--require-secure"], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 1
    assert "can be reached from other machines (0.0.0.0)" in found.stderr
    assert "--tls-cert and --tls-key and --access FILE" in found.stderr


def test_on_loopback_they_start_and_warn_of_nothing(tmp_path: Path, server_factory: StartServer) -> None:
    repository = write_models(tmp_path / "models", "identity_fp32")
    with server_factory(repository, "--require-secure") as server:
        assert "can be reached" not in server.log_text()


def test_beyond_loopback_one_line_says_what_is_missing(tmp_path: Path, server_factory: StartServer) -> None:
    repository = write_models(tmp_path / "models", "identity_fp32")
    with server_factory(repository, "--host", "0.0.0.0") as server:
        lines = [each for each in server.log_events() if "can be reached from other machines" in each["event"]]
        assert [each["level"] for each in lines] == ["warning"]
