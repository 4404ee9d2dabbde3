"""TLS for both stock clients, and both protocols on every port."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from stock_clients import KINDS, StockClient

from sample_models import write_models
from server_process import ServerProcess, StartServer

NUMBERS = np.arange(5, dtype=np.int32)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def tls_server(
    certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer
) -> Iterator[ServerProcess]:
    repository = write_models(tmp_path_factory.mktemp("tls_models") / "models", "identity_int32", "repeat")
    with server_factory(repository, "--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])) as server:
        yield server


def connect(kind: str, server: ServerProcess, certificate: Path, url: str = "") -> StockClient:
    if kind == "http":
        return StockClient(kind, server, url, ssl=True, ssl_options={"ca_certs": str(certificate)})
    if kind == "http.aio":
        context = ssl.create_default_context(cafile=str(certificate))
        return StockClient(kind, server, url, ssl=True, ssl_context=context)
    return StockClient(kind, server, url, ssl=True, root_certificates=str(certificate))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("port", ["http_port", "grpc_port"])
def test_stock_clients_over_tls(
    tls_server: ServerProcess, certificate: tuple[Path, Path], kind: str, port: str
) -> None:
    """Either port: ALPN tells the protocols apart."""
    client = connect(kind, tls_server, certificate[0], f"127.0.0.1:{getattr(tls_server, port)}")
    assert client.call("is_server_ready")
    assert client.infer("identity_int32", {"IN": NUMBERS}).as_numpy("OUT").tolist() == NUMBERS.tolist()
    large = np.arange(200_000, dtype=np.int32)
    assert np.array_equal(client.infer("identity_int32", {"IN": large}).as_numpy("OUT"), large)
    client.close()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), (["h2"], "h2"), ([], None), (["spdy/1", "h2"], "h2")],
)
def test_alpn(
    tls_server: ServerProcess, certificate: tuple[Path, Path], offered: list[str], chosen: str | None
) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    if offered:
        context.set_alpn_protocols(offered)
    with (
        socket.create_connection(("127.0.0.1", tls_server.http_port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.selected_alpn_protocol() == chosen
        if chosen != "h2":
            secure.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: test\r\n\r\n")
            assert secure.recv(100).startswith(b"HTTP/1.1 200")


def test_plain_text_to_a_tls_port_is_refused(tls_server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", tls_server.http_port), timeout=60) as plain:
        plain.sendall(b"GET /v2 HTTP/1.1\r\nHost: test\r\n\r\n")
        try:
            assert b"HTTP/1.1 200" not in plain.recv(1000)
        except ConnectionResetError:
            pass


def test_client_certificates(certificate: tuple[Path, Path], tmp_path: Path, server_factory: StartServer) -> None:
    """With --tls-client-ca, who shows no certificate gets no answer."""
    repository = write_models(tmp_path / "models", "identity_int32")
    files = (
        "--tls-cert",
        str(certificate[0]),
        "--tls-key",
        str(certificate[1]),
        "--tls-client-ca",
        str(certificate[0]),
    )
    with server_factory(repository, *files) as server:
        stranger = ssl.create_default_context(cafile=str(certificate[0]))
        known = ssl.create_default_context(cafile=str(certificate[0]))
        known.load_cert_chain(*certificate)
        assert _ready_over(known, server) == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _ready_over(stranger, server)
        assert _ready_over(known, server) == 200


def _ready_over(context: ssl.SSLContext, server: ServerProcess) -> int:
    connection = http.client.HTTPSConnection(server.http_url, timeout=60, context=context)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("port", ["http_port", "grpc_port"])
def test_every_port_speaks_both_protocols(sample_server: ServerProcess, kind: str, port: str) -> None:
    client = StockClient(kind, sample_server, f"127.0.0.1:{getattr(sample_server, port)}")
    assert client.infer("identity_int32", {"IN": NUMBERS}).as_numpy("OUT").tolist() == NUMBERS.tolist()
    client.close()
