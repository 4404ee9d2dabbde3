"""The actions of the console: which operation of the API each one is, and what a reader confirms. Pure.

The browser sends the operation itself, with the token of its session: the API checks the rights, here nothing is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

#: Characters of a name that a browser may send: longer ones are no rollouts or models.
_LONGEST = 256


@dataclass(frozen=True, slots=True)
class Action:
    method: str
    path: str
    #: The question, what follows from yes, and the word on the button.
    title: str
    explanation: str
    label: str
    body: dict[str, Any] = field(default_factory=dict)
    #: Whether it takes something away from callers.
    is_grave: bool = False


def action_of(kind: str, about: str) -> Action | None:
    """``about``: a rollout of "promote" and "abort", a model of "rollback". None: there is no such action."""
    if not about or len(about) > _LONGEST:
        return None
    name = quote(about, safe="")
    if kind == "promote":
        return Action(
            "POST",
            f"/v1/rollouts/{name}/promote",
            f"Promote the canary of {about}?",
            "All traffic gets the new version now, whatever its figures are.",
            "Promote",
        )
    if kind == "abort":
        return Action(
            "POST",
            f"/v1/rollouts/{name}/abort",
            f"Abort rollout {about}?",
            "Callers keep, or get back, the version that is served now. The new version is no longer visible.",
            "Abort rollout",
            {"reason": "by the console"},
            is_grave=True,
        )
    if kind == "rollback":
        return Action(
            "POST",
            f"/v1/models/{name}/rollback",
            f"Roll back {about}?",
            "The previous version is served again, also of the models that changed together with it. A canary of the "
            "model is aborted.",
            "Roll back",
            is_grave=True,
        )
    return None


def start_of(model: str, version: str, cutover: str, canary: str) -> Action:
    """A rollout of one model. ``cutover`` and ``canary`` "": as in fleet.yaml; ``canary`` "on" or "off" otherwise."""
    body: dict[str, Any] = {"changes": {model: version}}
    if cutover:
        body["cutover"] = cutover
    if canary:
        body["canary"] = canary == "on"
    how = [f"{cutover} cutover" if cutover else "", {"on": "with a canary", "off": "without a canary"}.get(canary, "")]
    said = ", ".join(each for each in how if each) or "as fleet.yaml says"
    return Action(
        "POST",
        "/v1/rollouts",
        f"Roll out {model} {version}?",
        f"Workers load version {version} first; callers get it when all have it ({said}).",
        "Start rollout",
        body,
    )
