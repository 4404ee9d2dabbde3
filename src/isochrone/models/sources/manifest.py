"""``isochrone-repository.json``: the files of a repository with their sizes and SHA-256, at its root.

A web server cannot be asked for its files, so a repository there needs one. In an object store it is optional; where it
exists, it states which files there are. ``isochrone repository index`` writes it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from isochrone.errors import ConfigError
from isochrone.models.sources.files import StoredFile, usable

MANIFEST = "isochrone-repository.json"
_FORMAT = 1
_CHUNK = 1 << 20


class ManifestFile(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    files: list[ManifestFile]


def parse_manifest(content: bytes, where: str) -> list[StoredFile]:
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where, "manifest", "JSON as isochrone repository index writes it", str(error)) from None
    if manifest.format != _FORMAT:
        raise ConfigError(where, "format", f"{_FORMAT}", str(manifest.format))
    for index, file in enumerate(manifest.files):
        if file.size < 0:
            raise ConfigError(where, f"files[{index}].size", "a number of bytes", str(file.size))
        if not is_sha256(file.sha256):
            raise ConfigError(where, f"files[{index}].sha256", "64 hexadecimal digits in lower case", file.sha256[:80])
    return usable(StoredFile(file.path, file.size, file.sha256, file.sha256) for file in manifest.files)


def is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def manifest_of(directory: Path) -> bytes:
    """The manifest of a repository on disk. Hidden files and Python's caches are left out."""
    found = []
    for folder, folders, names in os.walk(directory, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        names = sorted(name for name in names if not name.startswith("."))
        if not folders and not names and Path(folder) != directory:
            # The version of an ensemble may be empty.
            found.append(ManifestFile(Path(folder).relative_to(directory).as_posix(), 0, hashlib.sha256().hexdigest()))
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            if relative != MANIFEST:
                found.append(ManifestFile(relative, *_measure(path)))
    content = msgspec.json.encode(Manifest(_FORMAT, sorted(found, key=lambda file: file.path)))
    return msgspec.json.format(content, indent=1) + b"\n"


def _measure(path: Path) -> tuple[int, str]:
    total, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                total.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
    return size, total.hexdigest()
