"""YAML text of documents: the same documents give the same bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

#: First line of every rendered file. A later rendering into the same directory deletes files that have it.
MARK = "# Rendered by isochrone; change fleet.yaml and render again."


class _Dumper(yaml.SafeDumper):
    """No anchors, texts of several lines as blocks, and lists indented as Kubernetes' own examples are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # YAML cannot write lines that end with blanks as a block.
    block = "\n" in value and not any(line.endswith((" ", "\t")) for line in value.split("\n"))
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if block else None)


_Dumper.add_representer(str, _text)


def yaml_text(documents: Sequence[Any], mark: str = MARK) -> str:
    """A file with these documents."""
    written = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100000, allow_unicode=True)
        for document in documents
    ]
    return f"{mark}\n---\n" + "---\n".join(written)
