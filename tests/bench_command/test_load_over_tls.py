"""Load over TLS: both protocols, an authority that is trusted, and one that is not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from sample_models import write_models
from server_process import ServerProcess, StartServer

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer
) -> Iterator[tuple[ServerProcess, Path]]:
    folder = tmp_path_factory.mktemp("load_tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    repository = write_models(folder / "models", "double")
    with server_factory(repository, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        yield server, cert


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_trusted_authority(secured: tuple[ServerProcess, Path], scheme: str) -> None:
    server, cert = secured
    words = ["bench", f"{scheme}://{server.http_url}", "--model", "double", "--rate", "50", "--ca", str(cert), "--json"]
    result = CliRunner().invoke(app, [*words, "--warmup-seconds", "0", "--seconds", "0.5"])
    assert result.exit_code == 0, result.output
    outcomes = json.loads(result.output)["total"]["outcomes"]
    assert outcomes["ok"] == sum(outcomes.values()) > 0


def test_another_authority(secured: tuple[ServerProcess, Path]) -> None:
    server, _ = secured
    result = CliRunner().invoke(app, ["bench", f"https://{server.http_url}", "--model", "double", "--rate", "50"])
    assert result.exit_code == 2
    assert "name its authority with --ca" in result.output
