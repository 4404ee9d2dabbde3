"""Compares a version with its signature: whose it is, which files it lists, and their bytes.

Raises ``SignatureRefused`` with a reason for people, which names the model, the version and the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isochrone.models.repository.signed.covered import files_of_version, is_inside, signature_name
from isochrone.models.repository.signed.hashing import hash_file
from isochrone.secure.signing.bundles import MAX_BYTES
from isochrone.secure.signing.signed_version import Provenance, SignatureRefused, SignedVersion, subject
from isochrone.secure.signing.trust import Trust


def read_signature(
    trust: Trust, model: str, directory: Path, version: int, configurations: Sequence[str]
) -> SignedVersion:
    """The verified content of a version's signature, which lists the files that are there. Their bytes are not read.

    ``configurations``: files of which a worker would read the first that exists.
    """
    name = f"model '{model}' version {version}"
    try:
        signed = trust.verify(_content(directory / signature_name(version), model, version))
    except SignatureRefused as refused:
        raise refused.within(name, " is refused: ") from None
    if (signed.model, signed.version) != (model, str(version)):
        given = subject(signed.model, signed.version)
        raise SignatureRefused(f"{name} is refused: its signature is that of {given}; sign the version itself")
    signer = signed.provenance.signer
    for file in signed.files:
        if not is_inside(file):
            raise SignatureRefused(f"{name} is refused: its signature lists {file!r}, which leads out of the model")
    present = set(files_of_version(directory, version))
    present.update(file for file in configurations if (directory / file).is_file())
    for file in sorted(present - signed.files.keys()):
        raise SignatureRefused(f"{name} is refused: {file!r} is not among the files that {signer} signed")
    for file in signed.files:
        if not (directory / file).is_file():
            raise SignatureRefused(f"{name} is refused: {file!r}, which {signer} signed, is missing")
    return signed


def check_file(signed: SignedVersion, file: str, found: str) -> None:
    """``found``: the SHA-256 of the bytes that count."""
    if found != signed.files[file]:
        name, signer = f"model '{signed.model}' version {signed.version}", signed.provenance.signer
        raise SignatureRefused(f"{name} is refused: {file!r} has other bytes than {signer} signed")


def verify_in_place(
    trust: Trust, model: str, directory: Path, version: int, configurations: Sequence[str]
) -> Provenance:
    """Verifies a version where it is, as long as nobody writes there."""
    signed = read_signature(trust, model, directory, version, configurations)
    for file in signed.files:
        check_file(signed, file, _hash(directory / file))
    return signed.provenance


def _hash(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise SignatureRefused(f"{path} cannot be read: {error.strerror or error}") from None


def _content(path: Path, model: str, version: int) -> bytes:
    """One byte more than is allowed, of a larger file."""
    try:
        if path.exists() and not path.is_file():
            raise SignatureRefused(f"{path.name} is not a regular file")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        remedy = f"isochrone sign REPOSITORY {model} --version {version} --key FILE"
        raise SignatureRefused(f"it is not signed, there is no {path.name} beside it; sign it: {remedy}") from None
    except OSError as error:
        raise SignatureRefused(f"{path.name} cannot be read: {error.strerror or error}") from None
