"""``SHA256SUMS`` in the folder of a version, as sha256sum(1) writes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from isochrone.errors import ConfigError
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.manifest import is_sha256

CHECKSUMS = "SHA256SUMS"


def parse_checksums(content: bytes, where: str) -> dict[str, str]:
    """Path in the folder → SHA-256."""
    found: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        digest, name = line[:64].lower(), line[66:].removeprefix("./")
        if not is_sha256(digest) or line[64:66] not in ("  ", " *") or not name:
            raise ConfigError(where, f"line {number}", "SHA-256, two spaces, path, as of sha256sum", repr(line[:120]))
        found[name] = digest
    return found


def with_checksums(files: Sequence[StoredFile], folder: str, sums: Mapping[str, str], where: str) -> list[StoredFile]:
    """The files, those below ``folder`` with the digests that its ``SHA256SUMS`` states."""
    there = {file.path for file in files}
    for name in sums:
        if f"{folder}/{name}" not in there:
            raise ConfigError(where, name, "a file that is there", "nothing there")
    return [
        replace(file, sha256=sums.get(file.path.removeprefix(f"{folder}/"), file.sha256))
        if file.path.startswith(f"{folder}/")
        else file
        for file in files
    ]
