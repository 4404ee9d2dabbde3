"""Symbolic links of a model that lead out of its repository.

Whoever writes a model would read any file of the worker through one: as labels, as weights, as the text of an error.
"""

from __future__ import annotations

import os
from pathlib import Path

from isochrone.errors import ConfigError


def check_links(directory: Path, root: Path) -> None:
    """Raises ``ConfigError`` for the first link of a model's directory, or the directory itself, that leads out of the
    repository ``root``. Reads directories and follows links inside of the repository."""
    real_root = os.path.realpath(root)
    seen: set[str] = set()
    pending = [os.fspath(directory)]
    while pending:
        path = pending.pop()
        real = os.path.realpath(path)
        if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
            raise ConfigError(path, "link", f"one that stays inside of the repository {root}", f"one to {real}")
        if real in seen:
            continue
        seen.add(real)
        if os.path.isdir(path):
            pending += [entry.path for entry in os.scandir(path) if entry.is_symlink() or entry.is_dir()]
