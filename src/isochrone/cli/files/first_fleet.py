"""The text of a first fleet.yaml for the models of a repository, with comments. Pure: models in, text out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
#: Words that YAML does not read as text.
_SPECIAL = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))

_HEAD = """\
# A fleet on this machine: what runs, and what it serves.
#   isochrone validate fleet.yaml    check this file and the models it names
#   isochrone up fleet.yaml          start it
#   isochrone apply fleet.yaml       apply a changed file: shows the plan first
# Paths are relative to this file. Every key has a default; docs/fleet.md describes all keys.
name: {name}

# Model repositories in Triton's layout: <model>/config.pbtxt and <model>/<version>/.
repository: {repository}

# All state of the fleet, in one file; logs are beside it. For several machines: etcd:http://HOST:2379
store: {{url: "{store}"}}

# The API of the controller, for isochrone status, rollout, apply and the other commands.
control: {{listen: "127.0.0.1:8003"}}

# Clients send requests here, HTTP and gRPC. 0.0.0.0:8000 lets other machines in.
gateways:
  gw: {{listen: "127.0.0.1:8000", metrics_port: 9000}}

# Workers are the processes that run models. Change their number while it runs with: isochrone scale cpu 4
pools:
  cpu: {{workers: 2}}
"""
_MODELS = """
# What is served. A model that is not named here is not served, except for the steps of an ensemble.
models:
"""
_HINTS = """\
    # slo: {deadline_ms: 50}                        # of requests that bring no deadline of their own
    # rollout: {canary: {steps: [5%, 25%, 50%]}}    # try a new version on a part of the traffic first
"""


@dataclass(frozen=True, slots=True)
class FoundModel:
    name: str
    #: Ascending.
    versions: tuple[int, ...]
    #: Of an ensemble: the models that its steps run.
    stages: tuple[str, ...] = ()
    #: Why it cannot be served; "": it can.
    problem: str = ""


def without_missing_steps(models: Sequence[FoundModel]) -> list[FoundModel]:
    """Mark ensembles as not servable if one of their steps is missing or not servable."""
    left = list(models)
    while True:
        served = {model.name for model in left if not model.problem}
        missing = {model.name: [step for step in model.stages if step not in served] for model in left}
        if not any(missing[name] for name in served):
            return left
        left = [
            replace(model, problem=f"its step {missing[model.name][0]} cannot be served")
            if not model.problem and missing[model.name]
            else model
            for model in left
        ]


def fleet_text(name: str, repository: str, store: str, models: Sequence[FoundModel]) -> str:
    text = _HEAD.format(name=_scalar(name), repository=_scalar(repository), store=store)
    served = [model for model in models if not model.problem]
    if served:
        text += _MODELS
        for index, model in enumerate(served):
            text += _entry(model) + (_HINTS if index == 0 else "")
    broken = [model for model in models if model.problem]
    if broken:
        text += "\n# Left out, since they cannot be served as they are:\n"
        text += "".join(f"#   {model.name}: {' '.join(model.problem.split())}\n" for model in broken)
    return text


def _entry(model: FoundModel) -> str:
    there = ", ".join(map(str, model.versions))
    lines = [f"  {_scalar(model.name)}:", f"    version: {model.versions[-1]}    # there: {there}"]
    if model.stages:
        stages = ", ".join(map(_scalar, model.stages))
        lines.append(f"    with: [{stages}]    # its steps: an apply that changes several of them is one rollout")
    return "\n".join(lines) + "\n"


def fleet_name(directory: str) -> str:
    """A valid name of a fleet, derived from a directory's name."""
    return re.sub(r"[^a-z0-9]+", "-", directory.lower()).strip("-")[:40].strip("-") or "fleet"


def _scalar(text: str) -> str:
    """The text as a YAML scalar that reads back as the same text."""
    is_plain = text.startswith(("./", "../")) and _PLAIN.fullmatch(text.replace("/", "").replace(".", "") or "-")
    if (_PLAIN.fullmatch(text) and text.lower() not in _SPECIAL) or is_plain:
        return text
    return json.dumps(text, ensure_ascii=False)
