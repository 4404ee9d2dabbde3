"""PodDisruptionBudgets: a drained node takes one pod of a group at a time. Pure."""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes.render.pods import metadata


def budget(fleet: Fleet, name: str, selector: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(fleet, name, selector),
        "spec": {
            "maxUnavailable": 1,
            # A pod that does not serve must not keep its node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector},
        },
    }
