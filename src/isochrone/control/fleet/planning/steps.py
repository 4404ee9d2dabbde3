"""The steps of a plan and their actions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Nothing is applied at all.
REFUSE = "refuse"
START, RESTART, STOP, ROLLOUT, CHANGE = "start", "restart", "stop", "rollout", "change"
#: Something that is served goes for good, or for a moment: the user must agree.
RETIRE, INTERRUPT = "retire", "interrupt"
#: A setting that this release reads and does not act on.
IGNORE = "ignore"
#: Something that the user should know before. Nothing changes by it.
WARN = "warn"


@dataclass(frozen=True, slots=True)
class VersionChange:
    """One model in a rollout; ``before`` is "" if it was not served."""

    model: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of applying a file."""

    action: str
    #: controller, gateway, pool, model or fleet.
    kind: str
    #: The pool, the group of gateways, the model, or the key.
    name: str
    detail: str
    #: The processes it starts, restarts or stops.
    processes: tuple[str, ...] = ()
    #: The versions it changes.
    versions: tuple[VersionChange, ...] = ()

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.name}: {self.detail}"


def is_refused(steps: Iterable[Step]) -> bool:
    return any(step.action == REFUSE for step in steps)


def takes_away(steps: Iterable[Step]) -> tuple[str, ...]:
    """What the user must agree to, as "model detector" or "pool cpu", each once."""
    return tuple(dict.fromkeys(f"{step.kind} {step.name}" for step in steps if step.action in (RETIRE, INTERRUPT)))
