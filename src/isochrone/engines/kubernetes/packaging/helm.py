"""A Helm chart of one fleet: its manifests, with the fields of ``helm_values`` as values. Pure.

A field that is a value becomes one action that names it, so that templates have no conditions and no helpers: the chart
with its default values is the plain manifests.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import isochrone
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.packaging.helm_values import Slot, slots, values, values_schema
from isochrone.engines.kubernetes.packaging.yaml_text import MARK, yaml_text

#: Stands for the namespace while a chart is made: Helm decides which one it is.
NAMESPACE = "isochrone-helm-release-namespace"
_TOKEN = "ISOCHRONEVALUE{}X"
_TOKENS = re.compile(r"^(?P<key>\s*(?:- )?[\w.-]+:) ISOCHRONEVALUE(?P<number>\d+)X$", re.MULTILINE)
_NOTES = """\
Put the models into the volume of each repository, then apply the fleet.yaml inside the cluster:

  kubectl --namespace {{ .Release.Namespace }} exec deploy/control -- isochrone apply /srv/isochrone/fleet.yaml --yes
  kubectl --namespace {{ .Release.Namespace }} exec deploy/control -- isochrone status
"""


def helm_files(name: str, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """The chart of a fleet, whose ``parts`` were made with the namespace ``NAMESPACE``."""
    found: list[Slot] = []
    templates = {}
    for part, documents in parts.items():
        # Helm creates the namespace, if it is asked to.
        kept = [document for document in documents if document["kind"] != "Namespace"]
        if kept:
            templates[f"templates/{part}.yaml"] = _template(kept, found)
    schema = json.dumps(values_schema(found), indent=2)
    chart = {
        "apiVersion": "v2",
        "name": name,
        "description": f"The fleet {name} of isochrone",
        "type": "application",
        "version": isochrone.__version__,
        "appVersion": isochrone.__version__,
        "kubeVersion": ">=1.31.0-0",
    }
    return {
        "Chart.yaml": yaml_text([chart]),
        "values.yaml": yaml_text([values(found)]),
        "values.schema.json": f"{schema}\n",
        **templates,
        "templates/NOTES.txt": _NOTES,
    }


def _template(documents: Sequence[Mapping[str, Any]], found: list[Slot]) -> str:
    """The text of one template; adds its slots to ``found``."""
    marked = []
    for document in documents:
        changed = copy.deepcopy(dict(document))
        for slot in slots(document):
            _put(changed, slot.place, _TOKEN.format(len(found)))
            found.append(slot)
        marked.append(changed)
    # Braces of the documents themselves are not actions.
    text = re.sub(r"\{\{|\}\}", lambda braces: f'{{{{ "{braces[0]}" }}}}', yaml_text(marked, MARK))
    text = text.replace(NAMESPACE, "{{ .Release.Namespace }}").replace(names.MANAGER, "{{ .Release.Service }}")
    return _TOKENS.sub(lambda match: _action(match, found[int(match["number"])]), text)


def _action(match: re.Match[str], slot: Slot) -> str:
    key, value = match["key"], reference(slot.value)
    if isinstance(slot.default, dict | list):
        # Below the key. A dash before the key indents it, too.
        indent = len(key) - len(key.lstrip(" -")) + 2
        return f"{key} {{{{- toYaml {value} | nindent {indent} }}}}"
    return f"{key} {{{{ {value} }}}}" if isinstance(slot.default, int) else f"{key} {{{{ {value} | quote }}}}"


def reference(path: tuple[str, ...]) -> str:
    """The value at a path. The names of pools and gateways may have dashes, which need ``index``."""
    if path[0] in ("pools", "gateways", "serviceAccounts"):
        rest = "".join(f".{step}" for step in path[2:])
        return f'(index .Values.{path[0]} "{path[1]}"){rest}'
    return ".Values." + ".".join(path)


def _put(document: Any, place: Sequence[str | int], value: str) -> None:
    for step in place[:-1]:
        document = document[step]
    document[place[-1]] = value
