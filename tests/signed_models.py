"""Signs versions in the repositories of tests."""

from __future__ import annotations

from pathlib import Path

from isochrone.models.repository.signed.covered import covered_files, signature_name
from isochrone.models.repository.signed.hashing import hash_file
from isochrone.secure.signing.signer import Signer


def sign_version(signer: Signer, model: Path, version: int = 1, source: str = "") -> Path:
    """Write the signature of a version; returns its path."""
    files = {file: hash_file(model / file) for file in covered_files(model, version)}
    path = model / signature_name(version)
    path.write_bytes(signer.sign(model.name, version, files, source))
    return path
