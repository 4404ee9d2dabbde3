"""Who signs: a private key on an elliptic curve, alone or with a certificate and its chain."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError
from isochrone.secure.signing.bundles import library, write_bundle
from isochrone.secure.signing.signed_version import plain_text, subject
from isochrone.secure.signing.usable_keys import check_certificate, check_key


class Signer:
    """Signs versions with one key. Raises ``ConfigError`` for files that cannot be used."""

    def __init__(self, key: Path, certificate: Path | None = None, chain: Sequence[Path] = ()) -> None:
        serialization = library("cryptography.hazmat.primitives.serialization")
        try:
            private = serialization.load_pem_private_key(_content(key), None)
        except (ValueError, TypeError) as error:
            expected = "an unencrypted private key in PEM (openssl ecparam -name prime256v1 -genkey -noout)"
            raise ConfigError("--key", str(key), expected, str(error)) from None
        check_key(private.public_key(), "--key", str(key))
        if certificate is None:
            self._signer = library("model_signing._signing.sign_ec_key").Signer(key)
            return
        self._check(certificate, chain, private.public_key())
        # The library fails on an empty chain; a certificate that is there twice does no harm.
        self._signer = library("model_signing._signing.sign_certificate").Signer(
            key, certificate, chain or (certificate,)
        )

    def sign(self, model: str, version: int, files: Mapping[str, str], source: str = "") -> bytes:
        """The signature file over a version's files (path → SHA-256)."""
        if source and not plain_text(source):
            raise ConfigError("--source", "text", "at most 200 printable characters", repr(source[:250]))
        stated = {"signed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "source": source}
        return write_bundle(self._signer, subject(model, version), files, stated)

    @staticmethod
    def _check(certificate: Path, chain: Sequence[Path], public: Any) -> None:
        x509 = library("cryptography.x509")
        for path in (certificate, *chain):
            try:
                found = x509.load_pem_x509_certificates(_content(path))
            except ValueError as error:
                raise ConfigError("--certificate", str(path), "a certificate in PEM", str(error)) from None
            if path is certificate:
                check_certificate(found[0], str(path))
                if found[0].public_key() != public:
                    raise ConfigError("--certificate", str(path), "the certificate of --key", "one of another key")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("signatures", str(path), "a readable file", error.strerror or str(error)) from None
