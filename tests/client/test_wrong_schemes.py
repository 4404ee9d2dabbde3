"""Plain URLs of ports that speak TLS, and TLS to plain ports: the errors of clients and commands name the other one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_client_tls import write_certificate
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.errors import IsochroneError
from sample_models import write_models
from server_process import ServerProcess, StartServer

X = {"IN": np.array([1.0], np.float32)}
#: Handshake failure, as OpenSSL sends it to a client that says nothing of TLS.
ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
PAGE = b"<center>The plain HTTP request was sent to HTTPS port</center>"
REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(PAGE) + PAGE


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("schemes_tls"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("schemes") / "models", "identity_fp32")


@pytest.fixture(scope="module")
def encrypted(server_factory: StartServer, models: Path, certificate: tuple[Path, Path]) -> Iterator[ServerProcess]:
    cert, key = certificate
    with server_factory(models, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        yield server


@pytest.fixture(scope="module")
def plain(server_factory: StartServer, models: Path) -> Iterator[ServerProcess]:
    with server_factory(models) as server:
        yield server


@contextmanager
def answering(said: bytes, *, resets: bool = False) -> Iterator[str]:
    """The place of a server that says this to each connection and ends it."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(said)
                if resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def failure(client: Any) -> str:
    with pytest.raises(IsochroneError) as raised:
        client.infer("identity_fp32", X, deadline_ms=60_000)
    return str(raised.value)


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code != 0
    return result.output


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_plain_to_a_port_of_ours_that_speaks_tls(encrypted: ServerProcess, open_client: Any, scheme: str) -> None:
    place = encrypted.http_url
    hint = f"if the port speaks TLS, use {scheme}s://{place}"
    assert hint in failure(open_client(f"{scheme}://{place}", retries=0))
    assert hint in printed("infer", "identity_fp32", "--url", f"{scheme}://{place}")
    assert hint in printed("bench", f"{scheme}://{place}", "--model", "identity_fp32", "--rate", "10")
    if scheme == "http":
        assert hint in printed("status", "--api", f"http://{place}")


@pytest.mark.parametrize(
    ("said", "resets"),
    [(b"", False), (b"", True), (ALERT, False), (REFUSAL, False)],
    ids=["end", "reset", "alert", "page"],
)
def test_plain_http_to_other_servers_with_tls(open_client: Any, said: bytes, resets: bool) -> None:
    with answering(said, resets=resets) as place:
        hint = f"if the port speaks TLS, use https://{place}"
        assert hint in failure(open_client(f"http://{place}", retries=0))
        assert hint in printed("infer", "identity_fp32", "--url", f"http://{place}")


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_tls_to_a_plain_port(
    plain: ServerProcess, certificate: tuple[Path, Path], open_client: Any, scheme: str
) -> None:
    url, ca = f"{scheme}://{plain.http_url}", str(certificate[0])
    hint = f"if the port does not speak TLS, use {scheme[:-1]}://{plain.http_url}"
    assert hint in failure(open_client(url, ca=ca, retries=0))
    assert hint in printed("bench", url, "--model", "identity_fp32", "--rate", "10", "--ca", ca)
    assert f"use {scheme[:-1]}:// for a server without TLS" in printed(
        "infer", "identity_fp32", "--url", url, "--ca", ca
    )
    if scheme == "https":
        assert hint in printed("status", "--api", url)


def test_other_failures_have_no_such_hint(plain: ServerProcess, open_client: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    for scheme in ("http", "grpc"):
        assert "TLS" not in failure(open_client(f"{scheme}://127.0.0.1:{free}", retries=0))
        assert "TLS" not in printed("infer", "identity_fp32", "--url", f"{scheme}://127.0.0.1:{free}")
    # An answer that breaks off is one in HTTP, and a connection that was answered before is no wrong one.
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf") as place:
        assert "TLS" not in failure(open_client(f"http://{place}", retries=0))
    refused = b'HTTP/1.1 400 Bad Request\r\ncontent-length: 19\r\n\r\n{"error": "x HTTPS"}'
    with answering(refused) as place:
        assert "TLS" not in failure(open_client(f"http://{place}", retries=0))
