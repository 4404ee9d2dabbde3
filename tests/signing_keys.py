"""Keys, authorities and certificates for tests of signatures, made in an instant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Key:
    """A private key and its public half, as files."""

    private: Path
    public: Path
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Certificate:
    path: Path
    certificate: x509.Certificate
    key: Key


def make_key(directory: Path, name: str = "release", curve: ec.EllipticCurve | None = None) -> Key:
    key = ec.generate_private_key(curve or ec.SECP256R1())
    private, public = directory / f"{name}.key", directory / f"{name}.pub"
    pem = serialization.Encoding.PEM
    private.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return Key(private, public, key)


def make_certificate(
    directory: Path,
    name: str,
    issuer: Certificate | None = None,
    *,
    is_authority: bool = False,
    names: tuple[x509.GeneralName, ...] = (),
    purposes: tuple[ObjectIdentifier, ...] = (ExtendedKeyUsageOID.CODE_SIGNING,),
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
    may_sign: bool = True,
) -> Certificate:
    """Without an issuer, it signs itself."""
    key = make_key(directory, name)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(may_sign, False, not may_sign, False, False, is_authority, is_authority, False, False), True
        )
    )
    if purposes and not is_authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = builder.sign((key if issuer is None else issuer.key).key, hashes.SHA256())
    path = directory / f"{name}.crt"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return Certificate(path, made, key)
