"""Writes rendered files into a directory, and deletes those of an earlier rendering that are no longer made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from isochrone.engines.kubernetes.packaging.yaml_text import MARK
from isochrone.errors import FlagError


def write_out(out: Path, files: Mapping[str, str], *, deletes: bool = True) -> list[str]:
    """``write_files`` for the directory of a flag ``--out``. Raises ``FlagError`` if it cannot be written."""
    expected = "a directory that can be written"
    if out.exists() and not out.is_dir():
        raise FlagError("--out", expected, f"{out}, which is a file")
    try:
        return write_files(out, files, deletes=deletes)
    except OSError as error:
        raise FlagError("--out", expected, f"{out} ({error.strerror or error})") from None


def write_files(directory: Path, files: Mapping[str, str], *, deletes: bool = True) -> list[str]:
    """Write the texts by path; return the paths that were deleted. A file that is unchanged is not touched."""
    for name, text in files.items():
        path = directory / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # Atomic: another program may be reading the directory.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    return _delete_old(directory, files) if deletes else []


def _delete_old(directory: Path, files: Mapping[str, str]) -> list[str]:
    deleted = []
    for path in sorted(directory.rglob("*.yaml")):
        name = path.relative_to(directory).as_posix()
        if name not in files and _is_rendered(path):
            path.unlink()
            deleted.append(name)
    return deleted


def _is_rendered(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as lines:
        return lines.readline().rstrip("\n") == MARK
