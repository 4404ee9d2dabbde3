"""Stages in a canary without the ensembles that run them: no request would reach them. Pure.

A gateway pins the stages of an ensemble's request by the ensemble's version, so a canary of a stage alone gets only the
requests that name the stage itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def lonely_stages(changing: Collection[str], stages: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """By changing model: the ensembles that run it, if none of them changes with it. ``stages``: by ensemble."""
    found = {}
    for model in changing:
        above = _above(model, stages)
        if above and not above & set(changing):
            found[model] = sorted(above)
    return found


def _above(model: str, stages: Mapping[str, Sequence[str]]) -> set[str]:
    """The ensembles that run a model, and those that run them."""
    found: set[str] = set()
    waiting = [model]
    while waiting:
        stage = waiting.pop()
        more = {name for name, run in stages.items() if stage in run} - found - {model}
        found |= more
        waiting += more
    return found


def without_traffic(stage: str, ensembles: Sequence[str]) -> str:
    names = ", ".join(ensembles)
    return (
        f"{stage} is a stage of {names}, whose requests keep the served version of every stage until the commit: a "
        f"canary of {stage} alone gets no traffic from there. Change {ensembles[0]} in the same rollout, or go without "
        "a canary (canary: false)"
    )
