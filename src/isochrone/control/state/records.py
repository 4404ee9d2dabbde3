"""What the store holds, as typed records in JSON.

Fields are only ever added, each with a default: controllers of two releases may share a store for a while. Unknown
fields are skipped. A record that cannot be read is never fatal: ``View`` skips it and names it as a ``Fault``.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from isochrone.errors import Unavailable

#: States of a rollout, in the order they are gone through.
PENDING, PREPARING, COMPARING, CANARY, SWITCHING, DRAINING, DONE = (
    "pending",
    "preparing",
    "comparing",
    "canary",
    "switching",
    "draining",
    "done",
)
#: Its other end.
ABORTING, ABORTED = "aborting", "aborted"
OVER = frozenset((DONE, ABORTED))

FAST, STRICT = "fast", "strict"

#: Phases of a strict switch.
ANNOUNCED, HOLDING, CANCELLED = "announced", "holding", "cancelled"


#: In place of an incarnation: the worker was registered for its address alone, by the leader.
BY_ADDRESS = "address"


class Split(msgspec.Struct, frozen=True, omit_defaults=True):
    """A second version that gets a part of a model's traffic."""

    version: str
    digest: str = ""
    #: Share of agents, 0 to 1.
    weight: float = 0.0
    sticky: bool = True
    header: str = "x-canary"


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model in one epoch."""

    version: str
    #: SHA-256 of artifact and configuration; "": its servers tell none.
    digest: str = ""
    #: What was served before, and stays warm for an instant way back; "": nothing.
    previous: str = ""
    previous_digest: str = ""
    canary: Split | None = None
    #: Of an ensemble: the models its steps run. Their versions are those of this same epoch.
    stages: tuple[str, ...] = ()
    #: Pools whose workers serve it.
    pools: tuple[str, ...] = ()
    #: Bytes one version needs on a worker; 0: not stated.
    memory: int = 0
    #: The epoch that last changed it.
    epoch: int = 0


class EpochRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The committed assignment of all models. Writing it is the only commit point."""

    epoch: int
    models: dict[str, Assignment] = {}
    #: The rollout that wrote it.
    rollout: str = ""
    by: str = ""
    #: Seconds since 1970, for people; decides nothing.
    at: float = 0.0


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that registered, or that the controller registered for it (a real Triton)."""

    name: str
    host: str
    port: int
    grpc_port: int
    metrics_port: int = 0
    pool: str = ""
    tier: str = ""
    device: str = ""
    region: str = ""
    #: Bytes it may use for models; 0: not known.
    memory: int = 0
    #: "isochrone", or "triton" for any other server of the protocol.
    kind: str = "isochrone"
    #: Differs from one start to the next.
    incarnation: str = ""
    pid: int = 0
    #: What calls that change it must carry; "": it asks for nothing. Never shown.
    control_token: str = ""
    #: Its model repositories; (): not stated.
    repositories: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class GatewayRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gateway that registered."""

    name: str
    host: str
    port: int
    metrics_port: int = 0
    incarnation: str = ""
    pid: int = 0
    #: What it serves by; 0: nothing yet.
    epoch: int = 0
    #: What a controller sends to read its samples of requests.
    control_token: str = ""
    #: Its own view of what would not be answered now: by model, by worker's address, by record that it cannot read.
    unserved: dict[str, str] = {}
    workers: dict[str, str] = {}
    faults: dict[str, str] = {}


class ProcessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that ended without being asked to, from then until it serves again; its supervisor writes it. In a
    status also one that the fleet should have and that is not registered yet."""

    name: str
    role: str
    pool: str = ""
    #: Deaths since it last served, how the last one came, and the last error in its log. No death: it starts.
    deaths: int = 1
    how: str = ""
    error: str = ""
    #: Seconds since 1970, for people.
    at: float = 0.0


class SwitchRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A strict switch under way: every known gateway acknowledges each phase."""

    identity: str
    phase: str
    models: tuple[str, ...]
    #: The epoch that is to be replaced.
    epoch: int
    reason: str = ""

    @property
    def rollout(self) -> str:
        """Whose it is: its identity is the rollout's, and the number of the attempt."""
        return self.identity.partition(".")[0]


class AcknowledgementRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gateway's word that it has done what a phase asks."""

    phase: str
    incarnation: str


class CanaryRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a new version is tried on a part of the traffic, and by what it is judged."""

    #: Shares of traffic, one after the other.
    weights: tuple[float, ...] = (0.05, 0.25, 0.5)
    sticky: bool = True
    header: str = "x-canary"
    #: Requests each version must have answered in a step before it is judged.
    min_samples: int = 500
    #: Seconds a step lasts at least, and at most: then what is known decides.
    min_seconds: float = 5.0
    max_seconds: float = 600.0
    #: The new version may be slower by this factor at the quantile.
    latency_ratio: float = 1.1
    quantile: float = 0.95
    #: Share of failures the new version may have beyond the old one's.
    error_margin: float = 0.005
    #: Chance of calling a good version bad, per rollout.
    significance: float = 0.01


class CompareRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outputs of old and new on live requests, compared before anything is visible."""

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
    #: What is served when it starts; "": nothing.
    before: str = ""
    #: Agreed by all workers once it is prepared.
    digest: str = ""
    pools: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    #: Bytes it needs on a worker; 0: not stated.
    memory: int = 0
    #: Pools that serve it when it starts and do not any more afterwards.
    left: tuple[str, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether it is another version than before; otherwise the same one moves to other pools."""
        return self.version != self.before


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker in a rollout."""

    #: "waiting", "loading", "ready", "failed".
    state: str = "waiting"
    detail: str = ""


class VerdictRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one part of a rollout's evaluation ended."""

    #: "comparison", or "canary at 5%".
    of: str
    passed: bool
    #: With the figures.
    reason: str = ""


class RolloutRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of one or more models, seen by all or by none."""

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
    #: Seconds since 1970: when it was asked for, when it entered each state, for people and for timeouts.
    at: float = 0.0
    since: dict[str, float] = {}
    workers: dict[str, Progress] = {}
    #: By pool: the worker that loads it before the others do; "": all do.
    first_loads: dict[str, str] = {}
    #: Place in the canary's weights, and what was last said of it.
    step: int = 0
    note: str = ""
    #: How the comparison and each step of the canary ended, in their order.
    verdicts: tuple[VerdictRecord, ...] = ()
    #: The epoch it committed last; 0: none.
    epoch: int = 0
    #: Strict switches tried.
    attempts: int = 0
    #: Somebody asked for it to be aborted, and why.
    abort_asked: str = ""
    #: Somebody asked for the canary to go on now, whatever its figures.
    promote_asked: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def goes_after(self, worker: WorkerRecord) -> str:
        """The worker that has to have loaded it before this one does; "": none."""
        first = self.first_loads.get(worker.pool, "") if self.state == PREPARING else ""
        return first if first != worker.name else ""


class KeptPool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pool that the applied file no longer has, or gives no workers, and that still serves what is committed."""

    #: Arguments of the ``isochrone`` command, by the name of the process.
    processes: dict[str, tuple[str, ...]] = {}
    #: Servers at addresses.
    servers: tuple[WorkerRecord, ...] = ()


class FleetRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The applied fleet.yaml: its text, and the same checked and in full, as JSON."""

    generation: int
    text: str
    spec: dict[str, Any]
    #: Directory that relative paths in it are of.
    directory: str = ""
    by: str = ""
    at: float = 0.0
    #: Pools of the files before it that run until nothing committed needs them.
    kept: dict[str, KeptPool] = {}


class ConvergedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the leader has followed the fleet record: what was asked for of each model, so that a version that was
    rolled out or back by hand stands until the file asks for another one."""

    generation: int
    versions: dict[str, str] = {}
    #: Models that are retired once the rollouts of the same file are done.
    retiring: tuple[str, ...] = ()
    #: Those rollouts; an abort of one of them calls it off.
    rollouts: tuple[str, ...] = ()


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who changed what, when."""

    at: float
    who: str
    what: str
    #: Of a model, a worker, a rollout: what it is about.
    about: str = ""
    detail: str = ""


class Fault(msgspec.Struct, frozen=True):
    """A record that cannot be read. It is skipped, and reported until it is written again or deleted."""

    key: str
    revision: int
    reason: str


Record = TypeVar("Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


def decode(value: bytes, kind: type[Record]) -> Record:
    """Raises ``Unreadable``, whatever is wrong with it."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from None


class Unreadable(Unavailable):
    """A record of the store that makes no sense."""

    code = "unreadable_record"
