"""Certificates that must be refused, and TLS clients that offer what is old or weak, byte by byte."""

from __future__ import annotations

import socket
import struct
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from development_ca import DevelopmentCa

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
SERVER, CLIENT = BOTH[:1], BOTH[1:]
DAY = timedelta(days=1)


def forge(
    folder: Path,
    name: str,
    signer: tuple[str, str] | None = None,
    usages: tuple[x509.ObjectIdentifier, ...] = BOTH,
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
    host: str = "127.0.0.1",
) -> tuple[str, str]:
    """Files of a certificate and its key. ``signer``: those of an issuer; None: it signs itself."""
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing = key
    if signer is not None:
        issuer = x509.load_pem_x509_certificate(Path(signer[0]).read_bytes()).subject
        loaded = serialization.load_pem_private_key(Path(signer[1]).read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signing = loaded
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier("spiffe://example.org/alice"),
        x509.IPAddress(ip_address(host)),
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(signing, hashes.SHA256())
    )
    files = folder / f"{name}.crt", folder / f"{name}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(files[0]), str(files[1])


def forgeries(folder: Path, ca: DevelopmentCa, *, for_server: bool) -> dict[str, tuple[str, str]]:
    """Certificates for one side of a connection, each wrong in one way."""
    signer = str(ca.ca), str(ca.directory / "ca.key")
    wrong, right = (CLIENT, SERVER) if for_server else (SERVER, CLIENT)
    foreign = DevelopmentCa(folder / "foreign")
    leaf = forge(folder, "leaf", signer)
    made = {
        "expired": forge(folder, "expired", signer, right, -2 * DAY, -DAY),
        "not yet valid": forge(folder, "early", signer, right, DAY, 2 * DAY),
        "self-signed": forge(folder, "self", None, right),
        "of another authority": forge(folder, "foreign", (str(foreign.ca), str(foreign.directory / "ca.key")), right),
        "for the other side": forge(folder, "side", signer, wrong),
        "signed by one that is no authority": forge(folder, "minor", leaf, right),
    }
    if for_server:
        made["of another host"] = forge(folder, "host", signer, right, host="10.9.9.9")
    return made


def hello(version: int, suites: list[int], compressions: bytes = b"\0") -> bytes:
    """The first message of a client that speaks ``version`` at most."""

    def extension(kind: int, content: bytes) -> bytes:
        return struct.pack("!HH", kind, len(content)) + content

    extensions = (
        extension(10, struct.pack("!HHH", 4, 29, 23))  # x25519, P-256
        + extension(11, b"\1\0")
        + extension(13, struct.pack("!HHHHH", 8, 0x0403, 0x0804, 0x0401, 0x0201))
    )
    body = struct.pack("!H", version) + bytes(range(32)) + b"\0"
    body += struct.pack("!H", 2 * len(suites)) + b"".join(struct.pack("!H", suite) for suite in suites)
    body += bytes([len(compressions)]) + compressions + struct.pack("!H", len(extensions)) + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16" + struct.pack("!HH", min(version, 0x0301), len(message)) + message


def answer_to(port: int, sent: bytes) -> bytes:
    """The first bytes of a server's answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""
