"""Renders the charts that we write, without Helm: the few actions that our templates have, and no others.

An action outside this list is an error, so that a template never means something else to Helm than to the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from rendered_fleets import load

NAMESPACE, SERVICE = "rendered", "Helm"
_ACTION = re.compile(r"( ?)\{\{(-?) (.*?) \}\}")
_INDEXED = re.compile(r'\(index \.Values\.(\w+) "([a-z0-9-]+)"\)((?:\.\w+)+)')


def render_chart(files: Mapping[str, str], values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The documents of a chart. ``values`` replaces the chart's own."""
    used = load(files["values.yaml"])[0] if values is None else values
    texts = [_render(text, used) for path, text in files.items() if re.fullmatch(r"templates/.*\.yaml", path)]
    return [document for text in texts for document in load(text)]


def _render(text: str, values: Mapping[str, Any]) -> str:
    return _ACTION.sub(lambda action: _result(action, values), text)


def _result(action: re.Match[str], values: Mapping[str, Any]) -> str:
    before, trims, expression = action.groups()
    before = "" if trims else before
    if expression in ('"{{"', '"}}"'):
        return before + json.loads(expression)
    for name, given in (("Namespace", NAMESPACE), ("Service", SERVICE)):
        if expression == f".Release.{name}":
            return before + given
    if (block := re.fullmatch(r"toYaml (.+) \| nindent (\d+)", expression)) is not None:
        written = yaml.safe_dump(_value(block[1], values), sort_keys=False).rstrip()
        return before + "".join(f"\n{' ' * int(block[2])}{line}" for line in written.splitlines())
    if expression.endswith(" | quote"):
        return before + json.dumps(_value(expression.removesuffix(" | quote"), values))
    return before + str(_value(expression, values))


def _value(reference: str, values: Mapping[str, Any]) -> Any:
    indexed = _INDEXED.fullmatch(reference)
    if indexed is not None:
        path = [indexed[1], indexed[2], *indexed[3].split(".")[1:]]
    else:
        assert re.fullmatch(r"\.Values(\.\w+)+", reference), f"no rule for the action {reference!r}"
        path = reference.split(".")[2:]
    found: Any = values
    for step in path:
        found = found[step]
    return found
