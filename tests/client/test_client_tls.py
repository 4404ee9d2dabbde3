"""Clients over TLS: both protocols, a trusted authority, and one that is not."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from isochrone.errors import Unavailable
from sample_models import write_models
from server_process import ServerProcess, StartServer


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
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
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[tuple[Any, Path, Path]]:
    """A server that asks for client certificates, and the certificate and key of both sides."""
    cert, key = write_certificate(tmp_path_factory.mktemp("client_tls"))
    repository = write_models(tmp_path_factory.mktemp("client_tls_models") / "models", "identity_int32", "repeat")
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(cert))
    with server_factory(repository, *flags) as server:
        yield server, cert, key


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_tls_with_a_client_certificate(
    secured: tuple[ServerProcess, Path, Path], open_client: Any, scheme: str
) -> None:
    server, cert, key = secured
    client = open_client(f"{scheme}://{server.http_url}", ca=cert, cert=cert, key=key)
    for count in (5, 5, 500_000):
        sent = np.arange(count, dtype=np.int32)
        assert np.array_equal(client.infer("identity_int32", {"IN": sent}, deadline_ms=60_000)["OUT"], sent)
    if scheme == "grpcs":
        assert [int(each["OUT"][0]) for each in client.stream("repeat", {"IN": np.int32([1, 2])})] == [1, 2]


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_an_authority_that_is_not_trusted(
    secured: tuple[ServerProcess, Path, Path], open_client: Any, scheme: str, tmp_path: Path
) -> None:
    other, _ = write_certificate(tmp_path)
    client = open_client(f"{scheme}://{secured[0].http_url}", ca=other, retries=0)
    with pytest.raises(
        Unavailable, match=r"cannot connect to .*; name the certificate of the server.s authority with ca=$"
    ):
        client.infer("identity_int32", {"IN": np.int32([1])})
