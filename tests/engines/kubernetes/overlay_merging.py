"""Applies the overlays that we write, without Kustomize: strategic merges of maps, and of containers by their name.

tests/peers runs the same overlays through kubectl.
"""

from __future__ import annotations

import copy
from typing import Any

from rendered_fleets import load

Document = dict[str, Any]


def merged(files: dict[str, str], overlay: str) -> list[Document]:
    """The documents of an overlay. A patch of an object that is not in the base is an error."""
    base = _documents(files, "base")
    directory = f"overlays/{overlay}"
    found = {_key(each): each for each in base}
    for patch in _kustomization(files, directory).get("patches", ()):
        for document in load(files[f"{directory}/{patch['path']}"]):
            found[_key(document)] = _merge(found[_key(document)], document)
    return list(found.values())


def _documents(files: dict[str, str], directory: str) -> list[Document]:
    paths = _kustomization(files, directory)["resources"]
    return [each for path in paths for each in load(files[f"{directory}/{path}"])]


def _kustomization(files: dict[str, str], directory: str) -> Document:
    return load(files[f"{directory}/kustomization.yaml"])[0]


def _key(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def _merge(base: Any, patch: Any, key: str = "") -> Any:
    if isinstance(base, dict) and isinstance(patch, dict):
        result = copy.deepcopy(base)
        for name, value in patch.items():
            result[name] = _merge(base[name], value, name) if name in base else value
        return result
    if key == "containers":
        changes = {each["name"]: each for each in patch}
        assert changes.keys() <= {each["name"] for each in base}
        return [_merge(each, changes[each["name"]]) if each["name"] in changes else each for each in base]
    return patch
