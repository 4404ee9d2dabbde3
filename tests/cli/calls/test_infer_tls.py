"""``isochrone infer`` over TLS, both transports: trusted, not trusted, with a client certificate, with wrong flags."""

from __future__ import annotations

import runpy
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from server_process import ServerProcess, StartServer

ROOT = Path(__file__).resolve().parents[3]
CERTIFICATES = ROOT / "tests" / "wire" / "certificates"
CERTIFICATE, KEY = str(CERTIFICATES / "localhost.pem"), str(CERTIFICATES / "localhost.key")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples")
    runpy.run_path(str(ROOT / "examples" / "build_models.py"))["build"](path)
    return path


@pytest.fixture(scope="module")
def server(server_factory: StartServer, repository: Path) -> Iterator[ServerProcess]:
    """It asks for client certificates."""
    flags = ("--tls-cert", CERTIFICATE, "--tls-key", KEY, "--tls-client-ca", CERTIFICATE)
    with server_factory(repository, *flags) as server:
        yield server


@pytest.fixture(params=["https", "grpcs"])
def url(request: pytest.FixtureRequest, server: ServerProcess) -> str:
    port = server.http_port if request.param == "https" else server.grpc_port
    return f"{request.param}://localhost:{port}"


def infer(url: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["infer", "detector", *arguments, "--url", url])


def test_a_request_over_tls_is_answered_with_its_waterfall(url: str) -> None:
    result = infer(url, "--ca", CERTIFICATE, "--cert", CERTIFICATE, "--key", KEY)
    assert result.exit_code == 0, result.output
    assert "scores FP32 [1, 4]" in result.output
    assert "compute" in result.output


def test_a_certificate_of_an_unknown_authority_is_not_trusted(url: str) -> None:
    result = infer(url)
    assert result.exit_code == 1
    assert f"{url} shows a certificate that is not trusted" in result.output
    assert "--ca" in result.output


def test_a_server_that_asks_for_a_certificate_gets_one_or_the_error_says_so(url: str) -> None:
    result = infer(url, "--ca", CERTIFICATE)
    assert result.exit_code == 1
    assert "--cert and --key" in result.output


@pytest.fixture
def resetting_port() -> Iterator[int]:
    """Of a server that resets each connection, as one may whose client shows no certificate."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_server_that_resets_connections_may_miss_a_certificate(resetting_port: int, scheme: str) -> None:
    result = infer(f"{scheme}://127.0.0.1:{resetting_port}", "--ca", CERTIFICATE)
    assert result.exit_code == 1
    assert "no TLS connection" in result.output
    assert "--cert and --key" in result.output


def test_a_plain_server_is_told_from_one_with_tls(server_factory: StartServer, repository: Path) -> None:
    with server_factory(repository) as plain:
        for url, instead in ((f"https://{plain.http_url}", "http://"), (f"grpcs://{plain.grpc_url}", "grpc://")):
            result = infer(url, "--ca", CERTIFICATE)
            assert result.exit_code == 1
            assert f"no TLS connection to {url}" in result.output
            assert f"use {instead} for a server without TLS" in result.output


@pytest.mark.parametrize(
    ("url", "arguments", "said"),
    [
        ("http://localhost:1", ("--ca", CERTIFICATE), "--ca needs TLS: expected --url https://… or grpcs://…"),
        ("https://localhost:1", ("--cert", CERTIFICATE), "--cert and --key go together"),
        ("grpcs://localhost:1", ("--ca", "/no.pem"), "--ca: expected a PEM file, given '/no.pem', which is not there"),
        ("https://localhost:1", ("--ca", KEY), "--ca: expected a PEM certificate in"),
        ("grpcs://localhost:1", ("--ca", KEY), "--ca: expected a PEM certificate in"),
        ("ftp://localhost:1", (), "--url: expected http://HOST:PORT, https://…, grpc://… or grpcs://…"),
    ],
)
def test_flags_that_do_not_fit_are_refused_in_one_sentence(url: str, arguments: tuple[str, ...], said: str) -> None:
    result = infer(url, *arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1
