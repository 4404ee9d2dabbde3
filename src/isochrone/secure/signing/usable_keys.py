"""Which keys and certificates can sign versions: what the library supports, and stricter rules for certificates."""

from __future__ import annotations

from typing import Any

from isochrone.errors import ConfigError
from isochrone.secure.signing.bundles import library

_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def check_key(key: Any, where: str, name: str) -> None:
    """Raises ``ConfigError`` for a public key that the format does not support."""
    curve = getattr(getattr(key, "curve", None), "name", "")
    if curve not in _CURVES:
        given = f"one on {curve}" if curve else f"another kind ({type(key).__name__.strip('_')})"
        raise ConfigError(where, name, "a key on the curve P-256, P-384 or P-521", given)


def check_certificate(certificate: Any, name: str) -> None:
    """Raises ``ConfigError`` for a certificate that was not issued for signatures.

    The library accepts any certificate whose key may sign: then every TLS server of an authority could sign models.
    """
    x509, oid = library("cryptography.x509"), library("cryptography.x509.oid")
    check_key(certificate.public_key(), "certificate", name)
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        usage = None
    if usage is None or not usage.digital_signature:
        raise ConfigError("certificate", name, "keyUsage with digitalSignature", "one without")
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if oid.ExtendedKeyUsageOID.CODE_SIGNING not in purposes:
        raise ConfigError("certificate", name, "codeSigning among its extended key usages", "others alone")
