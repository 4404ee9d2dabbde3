"""``python -m bench.gpu.build``: which Isochrone a bench runs; every results file has it.

A copy of the files has no git: the digest of the package's modules says as well which source it was.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import isochrone
from bench.worker.peers.process import REPOSITORY_ROOT
from isochrone.build_info import IS_COMPILED


def commit(directory: Path = REPOSITORY_ROOT) -> str:
    """The commit, with "-dirty" behind it if tracked files have changed; empty without git."""
    words = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def source_digest(package: Path) -> str:
    """Of all modules, with their names: the same for the compiled build, which keeps them."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def describe_build() -> dict[str, Any]:
    """Of the package that this process imports, as a worker that it starts does."""
    (package,) = isochrone.__path__
    return {"compiled": IS_COMPILED, "commit": commit(), "source_sha256": source_digest(Path(package))}


if __name__ == "__main__":
    print(json.dumps(describe_build()))
