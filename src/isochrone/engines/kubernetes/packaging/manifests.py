"""Plain manifests: one file per part of the fleet, for ``kubectl apply -f DIR``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isochrone.engines.kubernetes.packaging.yaml_text import yaml_text
from isochrone.engines.kubernetes.render.autoscaling import adapter_values

#: Values for another chart: kubectl does not look into sub-directories.
ADAPTER_FILE = "values/prometheus-adapter.yaml"
_AUTOSCALER = "HorizontalPodAutoscaler"


def manifest_files(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Texts by path. The numbers keep the order: kubectl applies files by name."""
    files = {f"{number:02d}-{part}.yaml": yaml_text(documents) for number, (part, documents) in _numbered(parts)}
    if any(document["kind"] == _AUTOSCALER for documents in parts.values() for document in documents):
        files[ADAPTER_FILE] = yaml_text([adapter_values()])
    return files


def _numbered(
    parts: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[tuple[int, tuple[str, Sequence[Mapping[str, Any]]]]]:
    """A part's number depends on its kind alone, so that a new pool renames no file."""
    kinds = {"namespace": 0, "network": 10, "control": 20, "gateways": 30, "pool": 40, "edge": 50, "engine": 60}
    return [(kinds[part.partition("-")[0]], (part, documents)) for part, documents in parts.items()]
