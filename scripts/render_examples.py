"""Writes the rendered examples in deploy/ from the fleets in deploy/fleets.

    python scripts/render_examples.py deploy

``make docs`` runs it, and a test fails while a file is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from isochrone.cli.render.writing import write_files
from isochrone.control.fleet.reading.parsing import load_fleet
from isochrone.engines.kubernetes.rendering import Format, rendered

#: Directory in deploy/ → the fleet and the format that it shows.
EXAMPLES: dict[str, tuple[str, Format]] = {
    "manifests/small": ("small", "manifests"),
    "manifests/tiers": ("tiers", "manifests"),
    "manifests/mixed": ("mixed", "manifests"),
    "engine/small": ("small", "engine"),
    "helm/small": ("small", "helm"),
    "kustomize/tiers": ("tiers", "kustomize"),
    "kserve": ("small", "kserve"),
    "kuberay": ("mixed", "kuberay"),
}


def examples(deploy: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Each example's directory, with its files."""
    for directory, (fleet, form) in EXAMPLES.items():
        path = deploy / "fleets" / f"{fleet}.yaml"
        yield deploy / directory, rendered(load_fleet(path), path.read_text(encoding="utf-8"), str(path), None, form)


if __name__ == "__main__":
    for directory, files in examples(Path(sys.argv[1])):
        write_files(directory, files)
