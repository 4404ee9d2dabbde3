"""Fleets and their rendered documents, for the tests of this folder."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from isochrone.engines.kubernetes.rendering import Format, rendered

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
#: The fleets whose rendered manifests are in deploy/.
FLEETS = ("small", "tiers", "mixed")
STORE = 'store: {url: "etcd:http://etcd:2379"}\n'

Document = dict[str, Any]


@functools.cache
def render(text: str, form: Format = "manifests", name: bool = True) -> dict[str, str]:
    """The files of a fleet.yaml. ``name``: put a name and a store before the text, which need not be secure."""
    text = f"name: demo\n{STORE}{insecure(text)}" if name else text
    return rendered(text, "fleet.yaml", form)


def insecure(text: str) -> str:
    """The same with kubernetes.require_secure: false, on the same lines."""
    if "require_secure" in text:
        return text
    if "kubernetes: {" in text:
        return text.replace("kubernetes: {", "kubernetes: {require_secure: false, ", 1)
    if "kubernetes:\n" in text:
        return text.replace("kubernetes:\n", "kubernetes:\n  require_secure: false\n", 1)
    return f"{text}kubernetes: {{require_secure: false}}\n"


def load(text: str) -> list[Document]:
    # The loader in C is ten times as fast.
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document is not None]


def documents_of(files: dict[str, str]) -> list[Document]:
    """The documents that kubectl would apply."""
    return [document for path, text in files.items() if "/" not in path for document in load(text)]


def documents(text: str) -> list[Document]:
    return documents_of(render(text))


@functools.cache
def example(name: str) -> list[Document]:
    return documents_of(render((DEPLOY / "fleets" / f"{name}.yaml").read_text(), name=False))


def find(found: list[Document], kind: str, name: str) -> Document:
    return next(each for each in found if each["kind"] == kind and each["metadata"]["name"] == name)


def container_of(found: list[Document], kind: str, name: str) -> Document:
    container: Document = find(found, kind, name)["spec"]["template"]["spec"]["containers"][0]
    return container
