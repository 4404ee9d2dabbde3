"""The records of rollouts: the states of one, its changes and rules, and the strict switch that it may end with.

The rules of ``records`` hold for their fields.
"""

from __future__ import annotations

import msgspec

from isochrone.control.state.process_records import WorkerRecord

#: States of a rollout, in their order.
PENDING, PREPARING, COMPARING, CANARY, SWITCHING, DRAINING, DONE = (
    "pending",
    "preparing",
    "comparing",
    "canary",
    "switching",
    "draining",
    "done",
)
#: The states of a rollout that fails or is aborted.
ABORTING, ABORTED = "aborting", "aborted"
OVER = frozenset((DONE, ABORTED))

FAST, STRICT = "fast", "strict"

#: Phases of a strict switch.
ANNOUNCED, HOLDING, CANCELLED = "announced", "holding", "cancelled"


class SwitchRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A strict switch in progress: every known gateway acknowledges each phase."""

    identity: str
    phase: str
    models: tuple[str, ...]
    #: The epoch that it replaces.
    epoch: int
    reason: str = ""

    @property
    def rollout(self) -> str:
        """The rollout that it belongs to: a switch's identity is the rollout's and the number of the attempt."""
        return self.identity.partition(".")[0]


class AcknowledgementRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gateway's acknowledgement of one phase of a switch."""

    phase: str
    incarnation: str


class CanaryRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a new version is evaluated on a share of the traffic."""

    #: Shares of traffic, one after the other.
    weights: tuple[float, ...] = (0.05, 0.25, 0.5)
    sticky: bool = True
    header: str = "x-canary"
    #: Requests that each version must have answered in a step before it is judged.
    min_samples: int = 500
    #: Seconds that a step lasts at least, and at most; then the figures so far decide.
    min_seconds: float = 5.0
    max_seconds: float = 600.0
    #: The new version may be slower by this factor at the quantile.
    latency_ratio: float = 1.1
    quantile: float = 0.95
    #: Share of failures that the new version may have beyond the old one's.
    error_margin: float = 0.005
    #: Probability of rolling a good version back, per rollout.
    significance: float = 0.01


class CompareRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the outputs of both versions are compared on live requests, before the new one is visible."""

    samples: int = 50
    relative: float = 1e-3
    absolute: float = 1e-5
    #: Share of samples that may differ.
    allowed: float = 0.0
    #: Seconds to wait for samples.
    timeout: float = 60.0


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model in a rollout."""

    version: str
    #: The version that is served when the rollout starts; "": none.
    before: str = ""
    #: Reported by all workers once it is prepared.
    digest: str = ""
    pools: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    #: Bytes that it needs on a worker; 0: not stated.
    memory: int = 0
    #: The same of the version before it; 0 also until the rollout has begun.
    before_memory: int = 0
    #: Pools that serve the model when the rollout starts, and not afterwards.
    left: tuple[str, ...] = ()
    #: Who signed the version, when, and from what, reported once it is prepared; "": nobody had to.
    signed_by: str = ""

    @property
    def is_new(self) -> bool:
        """Whether the version changes; otherwise the same version moves to other pools."""
        return self.version != self.before


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker in a rollout."""

    #: "waiting", "loading", "ready", "failed".
    state: str = "waiting"
    detail: str = ""


class VerdictRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict of one part of a rollout's evaluation."""

    #: "comparison", or "canary at 5%".
    of: str
    passed: bool
    #: With the figures.
    reason: str = ""


class RolloutRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of one or more models, visible to all clients or to none."""

    identity: str
    changes: dict[str, Change]
    state: str = PENDING
    #: "version", "rollback", or "first" for models that were not served before.
    kind: str = "version"
    cutover: str = FAST
    canary: CanaryRule | None = None
    compare: CompareRule | None = None
    prepare_seconds: float = 300.0
    #: Why it was aborted.
    reason: str = ""
    by: str = ""
    #: Seconds since 1970: when it was requested, and when it entered each state.
    at: float = 0.0
    since: dict[str, float] = {}
    workers: dict[str, Progress] = {}
    #: By pool: the worker that loads it before the others; "": all load it at once.
    first_loads: dict[str, str] = {}
    #: Index into the canary's weights, and the latest progress in words.
    step: int = 0
    note: str = ""
    #: Of the comparison and of each canary step, in their order.
    verdicts: tuple[VerdictRecord, ...] = ()
    #: The epoch it committed last; 0: none.
    epoch: int = 0
    #: Strict switches attempted.
    attempts: int = 0
    #: Why a user asked for an abort; "": none did.
    abort_asked: str = ""
    #: A user asked to promote the canary now, whatever its figures.
    promote_asked: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def summary(self) -> str:
        """``detector 1 → 2, tracker none → 1``."""
        return ", ".join(
            f"{name} {each.before or 'none'} → {each.version}"
            + (f" (signed by {each.signed_by})" if each.signed_by else "")
            for name, each in self.changes.items()
        )

    def goes_after(self, worker: WorkerRecord) -> str:
        """The worker that must have loaded it before this one may; "": none."""
        first = self.first_loads.get(worker.pool, "") if self.state == PREPARING else ""
        return first if first != worker.name else ""
