"""The records in the store, as types. They are stored as JSON.

Fields are only ever added, each with a default: controllers of two releases may share a store for a while. Unknown
fields are ignored. A record that cannot be read is never fatal: ``View`` skips it and reports it as a ``Fault``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from isochrone.control.state.needs import Needs
from isochrone.errors import Unavailable
from isochrone.store.seals import refusal

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


#: The engine of one machine, and the one that gives every process a pod of its own.
LOCAL, KUBERNETES = "local", "kubernetes"
#: The author of the supervisor's drains and events. The supervisor does not end the drains of users.
SUPERVISOR = "supervisor"

#: In place of an incarnation: the leader registered the worker, by its address.
BY_ADDRESS = "address"
#: Headers of a controller that proves nothing.
NO_FIELDS: Final[Mapping[str, str]] = {}


class Split(msgspec.Struct, frozen=True, omit_defaults=True):
    """A second version that gets a share of a model's traffic."""

    version: str
    digest: str = ""
    #: Share of agents, 0 to 1.
    weight: float = 0.0
    sticky: bool = True
    header: str = "x-canary"


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model in one epoch."""

    version: str
    #: SHA-256 of artifact and configuration; "": its servers report none.
    digest: str = ""
    #: The version served before, which stays warm for an instant rollback; "": none.
    previous: str = ""
    previous_digest: str = ""
    #: Bytes that the previous version needs; 0: not stated, or recorded by an earlier release.
    previous_memory: int = 0
    canary: Split | None = None
    #: Of an ensemble: the models that its steps run, in the versions of the same epoch.
    stages: tuple[str, ...] = ()
    #: Pools whose workers serve it.
    pools: tuple[str, ...] = ()
    #: Bytes that one version needs on a worker; 0: not stated.
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
    #: Seconds since 1970. For display only.
    at: float = 0.0


def _scheme(is_tls: bool) -> str:
    return "https" if is_tls else "http"


def _url(is_tls: bool, host: str, port: int) -> str:
    return f"{_scheme(is_tls)}://{f'[{host}]' if ':' in host else host}:{port}"


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that registered itself, or that the leader registered (a real Triton)."""

    name: str
    host: str
    port: int
    grpc_port: int
    metrics_port: int = 0
    pool: str = ""
    tier: str = ""
    device: str = ""
    region: str = ""
    #: Bytes that it may use for models; 0: unknown.
    memory: int = 0
    #: "isochrone", or "triton" for any other server of the protocol.
    kind: str = "isochrone"
    #: Differs from one start to the next.
    incarnation: str = ""
    pid: int = 0
    #: The token that control calls must carry; "": none is needed. Never shown.
    control_token: str = ""
    #: Its model repositories; (): not stated.
    repositories: tuple[str, ...] = ()
    #: All its ports speak TLS, and also accept plain connections.
    tls: bool = False
    permissive: bool = False

    @property
    def is_of_fleet(self) -> bool:
        """Whether it registered itself: servers at addresses get no credential of the fleet, which they could use."""
        return self.kind == "isochrone" and self.incarnation != BY_ADDRESS

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{_scheme(self.tls)}://{self.address}"

    @property
    def metrics_url(self) -> str:
        return _url(self.tls, self.host, self.metrics_port)


class GatewayRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gateway that registered."""

    name: str
    host: str
    port: int
    metrics_port: int = 0
    incarnation: str = ""
    pid: int = 0
    #: The epoch that it serves; 0: none yet.
    epoch: int = 0
    #: The token that a controller sends to read its samples of requests.
    control_token: str = ""
    #: What it would not answer now, and why: by model, by worker's address, by key of a record that it cannot read.
    unserved: dict[str, str] = {}
    workers: dict[str, str] = {}
    faults: dict[str, str] = {}
    #: By name that does not resolve: why. Its last addresses are used.
    names: dict[str, str] = {}
    #: Its metrics port speaks TLS, and the port of its callers.
    tls: bool = False
    callers_tls: bool = False

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{_scheme(self.callers_tls)}://{self.address}"

    @property
    def metrics_url(self) -> str:
        return _url(self.tls, self.host, self.metrics_port)


class XdsServerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A controller that serves xDS."""

    name: str
    host: str
    port: int
    #: The epoch that rollouts wait for no longer: all its clients have acknowledged it, or their time for it is over.
    #: And how many clients there are, late ones included.
    epoch: int = 0
    clients: int = 0


class ProcessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that died, until it serves again; its supervisor writes the record. A status also uses it for a process
    that is not registered yet."""

    name: str
    role: str
    pool: str = ""
    #: Deaths since it last served, how the last process ended, and the last error in its log. 0: it is starting.
    deaths: int = 1
    how: str = ""
    error: str = ""
    #: After a death: why the next process has no machine yet; "": it has one, or the engine knows no reason.
    waits: str = ""
    #: Seconds since 1970. For display only.
    at: float = 0.0


class RestartsRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the applied file makes restart. Only the supervisor writes it."""

    #: Of the fleet record that it has read.
    generation: int
    #: Processes that do not serve with the settings of that file yet, sorted.
    processes: tuple[str, ...] = ()
    #: Since when, in seconds since 1970. For display only.
    at: float = 0.0


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


class KeptPool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pool that the applied file dropped or gave no workers, and that still serves committed versions."""

    #: Arguments of the ``isochrone`` command, by the name of the process.
    processes: dict[str, tuple[str, ...]] = {}
    #: Servers at addresses.
    servers: tuple[WorkerRecord, ...] = ()
    #: What the processes need of their machines; {}: the engine has one machine.
    needs: dict[str, Needs] = {}


class FleetRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The applied fleet.yaml: its text, and the checked fleet with all defaults, as JSON."""

    generation: int
    text: str
    spec: dict[str, Any]
    #: The directory that relative paths refer to.
    directory: str = ""
    by: str = ""
    at: float = 0.0
    #: Pools of earlier files that run until no committed version needs them.
    kept: dict[str, KeptPool] = {}
    #: The engine that runs the processes, as ``isochrone up --engine`` named it.
    engine: str = LOCAL


class AccessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The access rules of the fleet: the content of the access file, which the leader follows. Only it writes them."""

    generation: int
    #: As JSON.
    document: dict[str, Any]
    #: When the file was written, in seconds since 1970: an older copy on another machine must not replace it.
    written: float = 0.0
    #: The controller that read it.
    by: str = ""
    at: float = 0.0


class AccessFaultRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the leader does not follow its access file; there is no record while it does. Only the leader writes it."""

    reason: str
    #: The controller that says so.
    by: str = ""
    at: float = 0.0

    @property
    def text(self) -> str:
        """As status shows it."""
        return f"the access file of controller {self.by} is not used, and the last rules stay in force: {self.reason}"


class LoadFailuresRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """By worker, by model: the versions that it cannot load, and why."""

    workers: dict[str, dict[str, str]] = {}


class SignersRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """By model, by version that workers have ready: who signed it, when, and from what."""

    models: dict[str, dict[str, str]] = {}


class PoolSizeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of workers that the autoscaler gave a pool; it counts instead of ``workers`` in fleet.yaml."""

    workers: int
    #: Why, in one word of ``control.autoscaler.decision.Reason``; and the figures that led to it.
    reason: str = ""
    detail: str = ""
    at: float = 0.0


class PlacementRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which workers of a planned pool have each model. A pool without such a record has all of its models on every
    worker. Only the leader writes it."""

    #: By model: the names of its workers, sorted.
    replicas: dict[str, tuple[str, ...]] = {}
    #: By worker: bytes that stay free for models that are about to load there, or that have not been unloaded yet.
    reserved: dict[str, int] = {}
    #: By model that has replicas or is not unloaded everywhere: bytes of one version.
    memory: dict[str, int] = {}
    #: By model that the pool should have and that no worker can take: why.
    unplaced: dict[str, str] = {}
    #: By model that gets fewer than ``min_replicas``: why.
    short: dict[str, str] = {}


class FiguresRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is measured of the models of planned pools and of workers. What is not is absent. Only the leader writes
    it."""

    #: By model: rows per second that callers offer, accepted or not.
    rates: dict[str, float] = {}
    #: By model, by kind of device: (rows, seconds) of its batches, by growing rows.
    curves: dict[str, dict[str, tuple[tuple[int, float], ...]]] = {}
    #: By model: batches that one replica runs at the same time.
    instances: dict[str, int] = {}
    #: By worker: seconds from gateways to it and back.
    round_trips: dict[str, float] = {}


class SloTotalsRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests of one model over the last day: good ones, which met its SLO, and bad ones. A few KB at most. Only the
    leader writes it, once a minute in which there were requests."""

    #: Minutes since 1970: the last one that is counted, and the first one ever.
    minute: int
    since: int
    #: (minutes before ``minute``, good, bad): single minutes of the last hour, before it sums of five. Those without
    #: requests are left out.
    cells: tuple[tuple[int, int, int], ...] = ()


class WaitingRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Models whose requests wait at one gateway until a worker is ready. There is no record while none waits."""

    #: By model: how many waited when this was written, at least 1.
    models: dict[str, int] = {}


class ReconciledRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the leader has reconciled the fleet record: the versions that the file asked for, so that a version that
    was rolled out or back by hand stands until the file asks for another one."""

    generation: int
    versions: dict[str, str] = {}
    #: Models that are retired once the rollouts of the same file are done.
    retiring: tuple[str, ...] = ()
    #: Those rollouts. If one of them aborts, no model is retired.
    rollouts: tuple[str, ...] = ()


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the fleet: time, author, kind."""

    at: float
    who: str
    what: str
    #: The model, worker or rollout concerned.
    about: str = ""
    detail: str = ""


class Fault(msgspec.Struct, frozen=True):
    """A record that cannot be read. It is ignored, and reported until it is rewritten or deleted."""

    key: str
    revision: int
    reason: str


Record = TypeVar("Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


def decode(value: bytes, kind: type[Record]) -> Record:
    """Raise ``Unreadable`` if the value is not a valid record of this kind, or was refused by its seal."""
    if reason := refusal(value):
        raise Unreadable(reason)
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from None


class Unreadable(Unavailable):
    """A record of the store that cannot be decoded."""

    code = "unreadable_record"
