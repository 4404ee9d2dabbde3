"""The nodes of a Ray cluster, and why a process has no place on any of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isochrone.control.state.needs import Needs

#: A resource that every node has, in bytes, and that is an option of its own.
MEMORY = "memory"
#: Seconds that Ray may need to start an actor on a busy node that has room for it.
_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """One node that Ray counts as alive."""

    identity: str
    address: str
    #: Totals by Ray's names: CPU, GPU and custom ones.
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def read_nodes(rows: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The nodes that are alive, of the rows of ``ray.nodes()``."""
    return [
        Node(
            str(row["NodeID"]),
            str(row.get("NodeManagerAddress", "")),
            dict(row.get("Resources") or {}),
            dict(row.get("Labels") or {}),
        )
        for row in rows
        if row.get("Alive")
    ]


def resources_of(needs: Needs, processes: int = 1) -> dict[str, float]:
    """By Ray's names: what several processes with these needs take of a node."""
    named = {"CPU": needs.cpus, "GPU": needs.gpus, **dict(needs.resources)}
    return {name: amount * processes for name, amount in named.items() if amount}


def waiting_reason(needs: Needs, nodes: Sequence[Node], seconds: float) -> str:
    """Why Ray has not started a process with these needs for so many seconds; "": it is probably starting it."""
    if not nodes:
        return "Ray has no node"
    wanted = resources_of(needs, needs.processes_per_share)
    fit = [node for node in nodes if _has_labels(node, needs) and _has_room(node, wanted)]
    if not fit:
        return f"no Ray node has {_words(wanted, needs)}"
    if needs.placement == "apart" and len(fit) < needs.shares:
        return f"{needs.shares} Ray nodes must have {_words(wanted, needs)} (placement: apart), {len(fit)} have"
    if needs.placement == "together":
        whole = {name: amount * needs.shares for name, amount in wanted.items()}
        if not any(_has_room(node, whole) for node in fit):
            return f"no Ray node has {_words(whole, needs)} for all of them (placement: together)"
    if seconds < _START_SECONDS:
        return ""
    count = f"the {len(fit)} Ray nodes that have" if len(fit) > 1 else "the Ray node that has"
    return f"{count} {_words(wanted, needs)} {'have' if len(fit) > 1 else 'has'} no room for it now"


def _has_labels(node: Node, needs: Needs) -> bool:
    return all(node.labels.get(name) == value for name, value in needs.labels)


def _has_room(node: Node, wanted: Mapping[str, float]) -> bool:
    return all(node.resources.get(name, 0.0) >= amount for name, amount in wanted.items())


def _words(wanted: Mapping[str, float], needs: Needs) -> str:
    keys = {"CPU": "cpus", "GPU": "gpus"}
    words = [f"{keys.get(name, name)}: {amount:g}" for name, amount in wanted.items()]
    words += [f"label {name}={value}" for name, value in needs.labels]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0] if words else "room"
