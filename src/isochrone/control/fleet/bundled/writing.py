"""The fleet that a bare ``isochrone up`` runs: shipped with the package as text, and written to a directory.

The models are in Python and need only numpy. Their files are shipped as ``model.py.txt``: they are data of this
package, not modules of it.
"""

from __future__ import annotations

import os
from pathlib import Path

_SHIPPED = Path(__file__).parent / "shipped"
_DISGUISE = ".py.txt"


def files() -> dict[str, bytes]:
    """Every file of the fleet, by its path beside fleet.yaml."""
    found = {}
    for path in sorted(_SHIPPED.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(_SHIPPED).as_posix()
            found[name.removesuffix(".txt") if name.endswith(_DISGUISE) else name] = path.read_bytes()
    return found


def write_bundled(directory: Path) -> Path:
    """Write the fleet and its models; return its fleet.yaml. Existing files stay: the user may have changed them."""
    for name, content in files().items():
        path = directory / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # Atomic: a worker may be reading the repository, and this process may die.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_bytes(content)
        unfinished.replace(path)
    return directory / "fleet.yaml"
