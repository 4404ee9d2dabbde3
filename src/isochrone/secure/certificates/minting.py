"""Makes and reads certificates, in memory: the one module that needs the library ``cryptography``.

Keys are ECDSA on P-256: every TLS library has it, and a handshake costs a twentieth of one with RSA-2048.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from isochrone.errors import Unsupported
from isochrone.secure.certificates.subject_names import SubjectNames

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise Unsupported("certificates need the package cryptography: pip install 'isochrone[secure]'") from None

#: Clocks of machines differ: a new certificate is valid from a little earlier.
_BACKDATED = timedelta(minutes=5)
_USAGE = dict.fromkeys(
    (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    ),
    False,
)


@dataclass(frozen=True, slots=True)
class Minted:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a certificate of a process says."""

    name: str
    names: SubjectNames
    is_server: bool
    is_client: bool
    lifetime: timedelta


@dataclass(frozen=True, slots=True)
class Facts:
    """What a certificate says, for people."""

    subject: str
    issuer: str
    #: Hexadecimal, as ``openssl x509 -serial`` prints it.
    serial: str
    expires: datetime


def make_authority(lifetime: timedelta, now: datetime) -> Minted:
    """A self-signed authority. Its name has a part of its key's identifier: two of them are never confused."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"Isochrone development CA {identifier.digest[:4].hex()}")
    builder = (
        _builder(key, name, name, lifetime, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**_USAGE, "key_cert_sign": True, "crl_sign": True}), critical=True)
    )
    return _minted(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Minted, leaf: Leaf, now: datetime) -> Minted:
    """A certificate with a new key, valid no longer than its authority."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    lifetime = min(leaf.lifetime, signer.not_valid_after_utc - now)
    usages = [
        *([ExtendedKeyUsageOID.SERVER_AUTH] if leaf.is_server else []),
        *([ExtendedKeyUsageOID.CLIENT_AUTH] if leaf.is_client else []),
    ]
    authority_id = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(key, _name(leaf.name), signer.subject, lifetime, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**_USAGE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
        .add_extension(x509.SubjectAlternativeName(_general_names(leaf.names)), critical=False)
    )
    return _minted(builder.sign(_key(authority.key), hashes.SHA256()), key)


def leaf_of(certificate: bytes) -> Leaf:
    """What to issue in place of a certificate that ``issue`` has made."""
    read = x509.load_pem_x509_certificate(certificate)
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usages = read.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return Leaf(
        _text(read.subject),
        SubjectNames(
            tuple(names.get_values_for_type(x509.DNSName)),
            tuple(map(str, names.get_values_for_type(x509.IPAddress))),
            tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
        ),
        ExtendedKeyUsageOID.SERVER_AUTH in usages,
        ExtendedKeyUsageOID.CLIENT_AUTH in usages,
        read.not_valid_after_utc - read.not_valid_before_utc - _BACKDATED,
    )


def facts_of(certificate: bytes) -> Facts:
    read = x509.load_pem_x509_certificate(certificate)
    serial = f"{read.serial_number:X}"
    return Facts(
        _text(read.subject), _text(read.issuer), serial.zfill(len(serial) + len(serial) % 2), read.not_valid_after_utc
    )


def certificates_in(bundle: bytes) -> list[bytes]:
    """The certificates of a PEM file, one by one. Raises ``ValueError`` if there is none."""
    return [_pem(read) for read in x509.load_pem_x509_certificates(bundle)]


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    try:
        signer = x509.load_pem_x509_certificate(authority)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificate_of_key(certificates: Sequence[bytes], key: bytes) -> bytes | None:
    """The one of the certificates that belongs to the key."""
    public = _key(key).public_key()
    return next((each for each in certificates if x509.load_pem_x509_certificate(each).public_key() == public), None)


def _builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, lifetime: timedelta, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _text(name: x509.Name) -> str:
    values = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(values[0].value) if values else name.rfc4514_string()


def _general_names(names: SubjectNames) -> list[x509.GeneralName]:
    return [
        *map(x509.UniformResourceIdentifier, names.uris),
        *map(x509.DNSName, names.dns),
        *(x509.IPAddress(ipaddress.ip_address(each)) for each in names.addresses),
    ]


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("expected an elliptic-curve key")
    return key


def _minted(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Minted:
    pkcs8, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Minted(_pem(certificate), key.private_bytes(serialization.Encoding.PEM, pkcs8, none))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
