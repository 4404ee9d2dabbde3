"""The file names of encrypted versions. Reads no content."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: In the version's directory: the digest and a signature cover it.
HEADER: Final = "encryption.json"
SUFFIX: Final = ".encrypted"


def key_name(version: int) -> str:
    """The file of the wrapped key in the model's directory. Neither digest nor signature covers it, so a version can
    get another key; Triton ignores it, stores and manifests bring it."""
    return f"{version}.wrapped-key"


def is_encrypted(version_directory: Path) -> bool:
    return (version_directory / HEADER).exists()


def either(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files, and what they are called where they are encrypted."""
    return (*names, *(name + SUFFIX for name in names))
