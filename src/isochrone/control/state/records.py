"""The records of the fleet itself, as types: what is applied, committed, placed and measured, and what has happened.

``rollout_records`` and ``process_records`` have the others. They are stored as JSON (``codec``).

Fields are only ever added, each with a default: controllers of two releases may share a store for a while. Unknown
fields are ignored. A record that cannot be read is never fatal: ``View`` skips it and reports it as a ``Fault``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isochrone.control.state.needs import Needs
from isochrone.control.state.process_records import WorkerRecord

#: The engine of one machine, and the one that gives every process a pod of its own.
LOCAL, KUBERNETES = "local", "kubernetes"
#: The author of the supervisor's drains and events. The supervisor does not end the drains of users.
SUPERVISOR = "supervisor"


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
