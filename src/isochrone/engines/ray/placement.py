"""Turns what a process needs of its machine into the options of a Ray actor and of a placement group. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from isochrone.control.state.needs import Needs
from isochrone.engines.ray.nodes import MEMORY, resources_of

#: The label that Ray gives every node.
_NODE = "ray.io/node-id"
_STRATEGIES = {"any": "PACK", "spread": "SPREAD", "apart": "STRICT_SPREAD", "together": "STRICT_PACK"}


@dataclass(frozen=True, slots=True)
class Group:
    """A placement group: one bundle for each share of a group of processes."""

    name: str
    strategy: str
    bundles: tuple[dict[str, float], ...]
    labels: dict[str, str]


def actor_options(needs: Needs, avoided: Collection[str] = ()) -> dict[str, Any]:
    """Options of an actor. ``avoided``: nodes that Ray counts as alive and that do not answer.

    A process of a group takes its node from the group's bundle, so that labels and the strategy are not repeated.
    """
    options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus}
    resources = dict(needs.resources)
    if (memory := resources.pop(MEMORY, 0.0)) > 0:
        options["memory"] = int(memory)
    if resources:
        options["resources"] = resources
    if needs.group:
        return options
    labels = dict(needs.labels)
    if avoided:
        labels[_NODE] = f"!in({','.join(sorted(avoided))})"
    if labels:
        options["label_selector"] = labels
    # Ray's SPREAD strategy prefers the node with the fewest processes.
    options["scheduling_strategy"] = "SPREAD" if needs.placement == "spread" else "DEFAULT"
    return options


def group_of(fleet: str, needs: Needs) -> Group | None:
    """The placement group of a process; None: it is placed alone. A group's size is part of its name: Ray's groups
    cannot grow, so another size is another group."""
    if not needs.group:
        return None
    # Ray rejects empty bundles.
    bundle = resources_of(needs, needs.processes_per_share) or {"CPU": 0.001}
    marks = [f"{name}={amount:g}" for name, amount in bundle.items()] + ["=".join(label) for label in needs.labels]
    name = f"isochrone/{fleet}/{needs.group}/{needs.placement}/{needs.shares}/{','.join(marks)}"
    return Group(name, _STRATEGIES[needs.placement], (bundle,) * needs.shares, dict(needs.labels))
