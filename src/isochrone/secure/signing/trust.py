"""Whose signatures count: public keys, and certificates of authorities, in PEM files.

The files are read again for every verification: a key that is taken out of a file counts no more at the next load.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError, IsochroneError
from isochrone.secure.signing.bundles import MAX_BYTES, library, read_bundle, verified_content
from isochrone.secure.signing.signed_version import (
    Provenance,
    SignatureRefused,
    SignedVersion,
    name_of_key,
    plain_text,
)
from isochrone.secure.signing.usable_keys import check_certificate, check_key

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\r?\n.*?-----END \1-----", re.DOTALL)
#: Files of a directory that are read; others are ignored.
_SUFFIXES = (".pem", ".pub", ".crt", ".cer")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


class Trust:
    """The keys and authorities of some files, as they are now. Raises ``ConfigError``."""

    def __init__(self, places: Sequence[Path]) -> None:
        #: The hint by which a bundle names its key → fingerprint, and the library's verifier.
        self._keys: dict[str, tuple[str, Any]] = {}
        self._authorities: list[Any] = []
        for path in _files(places):
            self._read(path)
        if not self._keys and not self._authorities:
            where = ", ".join(map(str, places)) or "nothing"
            raise ConfigError("trusted signers", where, "a public key or a certificate in PEM", "none")

    def verify(self, content: bytes) -> SignedVersion:
        """What a signature file states, if somebody trusted signed it. Raises ``SignatureRefused``."""
        if len(content) > MAX_BYTES:
            raise SignatureRefused(f"the signature is larger than {MAX_BYTES} bytes")
        try:
            signature = read_bundle(content)
            material = signature.bundle.verification_material
            chain = getattr(material, "x509_certificate_chain", None)
            key = getattr(material, "public_key", None)
        except IsochroneError:
            raise
        except Exception as error:
            raise SignatureRefused(f"the signature is no Sigstore bundle ({_brief(error)})") from None
        if chain is not None and chain.certificates:
            verifier, signer, fingerprint = self._of_certificate([each.raw_bytes for each in chain.certificates])
        elif key is not None and key.hint in self._keys:
            fingerprint, verifier = self._keys[key.hint]
            signer = name_of_key(fingerprint)
        else:
            raise SignatureRefused("it is signed with a key that is not trusted")
        try:
            name, files, stated = verified_content(verifier, signature)
        except Exception as error:
            raise SignatureRefused(f"the signature of {signer} is wrong ({_brief(error)})") from None
        model, _, version = name.rpartition("/")
        at = plain_text(stated.get("signed_at"))
        provenance = Provenance(
            signer, fingerprint, at if _TIME.fullmatch(at) else "", plain_text(stated.get("source"))
        )
        return SignedVersion(model, version, files, provenance)

    # Reading.

    def _read(self, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from None
        blocks = [(match.group(1), match.group(0)) for match in _BLOCK.finditer(content)]
        for kind, block in blocks:
            if kind == b"PUBLIC KEY":
                self._add_key(path, block)
            elif kind == b"CERTIFICATE":
                self._add_authority(path, block)
            else:
                # A private key does not belong on the machines that verify.
                raise _unusable(path, kind.decode().lower())
        if not blocks:
            raise _unusable(path, "no PEM")

    def _add_key(self, path: Path, block: bytes) -> None:
        serialization = library("cryptography.hazmat.primitives.serialization")
        try:
            key = serialization.load_pem_public_key(block)
        except Exception as error:
            raise _unusable(path, str(error)) from None
        check_key(key, "trusted signers", str(path))
        pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        with tempfile.NamedTemporaryFile() as file:
            file.write(pem)
            file.flush()
            verifier = library("model_signing._signing.sign_ec_key").Verifier(Path(file.name))
        self._keys[hashlib.sha256(pem).hexdigest()] = (_fingerprint(key), verifier)

    def _add_authority(self, path: Path, block: bytes) -> None:
        try:
            self._authorities.append(library("cryptography.x509").load_pem_x509_certificate(block))
        except ValueError as error:
            raise _unusable(path, str(error)) from None

    # Certificates.

    def _of_certificate(self, chain: list[bytes]) -> tuple[Any, str, str]:
        """The library's verifier, the identity and the fingerprint of a signer whose chain ends at an authority.

        The library checks a chain as of the first day of the certificate, so that one that has expired or is not yet
        valid passes. A signature that no service has stamped does not prove when it was made: the chain must be valid
        now.
        """
        x509, crypto = library("cryptography.x509"), library("OpenSSL.crypto")
        if not self._authorities:
            raise SignatureRefused("it is signed with a certificate, and no authority is trusted")
        try:
            leaf, *others = [x509.load_der_x509_certificate(raw) for raw in chain]
            signer = _identity(leaf)
            check_certificate(leaf, signer)
            store = crypto.X509Store()
            for each in self._authorities:
                store.add_cert(crypto.X509.from_cryptography(each))
            between = [crypto.X509.from_cryptography(each) for each in others]
            crypto.X509StoreContext(store, crypto.X509.from_cryptography(leaf), between).verify_certificate()
        except Exception as error:
            raise SignatureRefused(f"the certificate of its signer is not trusted ({_brief(error)})") from None
        return self._chain_verifier(), signer, _fingerprint(leaf.public_key())

    def _chain_verifier(self) -> Any:
        # A new one each time: the library's has a clock that each verification sets.
        serialization = library("cryptography.hazmat.primitives.serialization")
        with tempfile.NamedTemporaryFile() as file:
            for each in self._authorities:
                file.write(each.public_bytes(serialization.Encoding.PEM))
            file.flush()
            return library("model_signing._signing.sign_certificate").Verifier([Path(file.name)])


def _files(places: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += sorted(each for each in place.iterdir() if each.suffix in _SUFFIXES)
        else:
            found.append(place)
    return found


def _unusable(path: Path, given: str) -> ConfigError:
    return ConfigError("trusted signers", str(path), "public keys or certificates in PEM", given)


def _fingerprint(key: Any) -> str:
    serialization = library("cryptography.hazmat.primitives.serialization")
    return hashlib.sha256(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def _identity(certificate: Any) -> str:
    """The first alternative name of a certificate, or its subject."""
    x509 = library("cryptography.x509")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for kind in (x509.UniformResourceIdentifier, x509.RFC822Name, x509.DNSName):
            for name in names.get_values_for_type(kind):
                return plain_text(str(name)) or "a certificate"
    except x509.ExtensionNotFound:
        pass
    return plain_text(certificate.subject.rfc4514_string()) or "a certificate"


def _brief(error: Exception) -> str:
    """One line about an error of a library, which may quote what an attacker wrote."""
    text = " ".join(str(error).split())[:200]
    shown = "".join(each if each.isprintable() else "?" for each in text)
    return shown or {"InvalidSignature": "it does not fit its content"}.get(type(error).__name__, type(error).__name__)
