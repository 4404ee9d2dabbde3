"""What a rollout's next step is decided by: the store's records and the workers' own word, at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from isochrone.control.state.records import (
    AcknowledgementRecord,
    EpochRecord,
    GatewayRecord,
    RolloutRecord,
    SwitchRecord,
    WorkerRecord,
)

READY, LOADING = "READY", "LOADING"


@dataclass(frozen=True, slots=True)
class Loaded:
    """One version on one worker, in the worker's words."""

    state: str
    digest: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """The worker could not be made to serve these versions."""

    versions: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One registered worker."""

    record: WorkerRecord
    #: Model → version → state; None: it has not answered yet.
    models: Mapping[str, Mapping[str, Loaded]] | None = None
    #: By model: how the last load ended, if it failed.
    failures: Mapping[str, Failure] = field(default_factory=dict)

    def ready(self, model: str) -> dict[str, Loaded]:
        """Its versions that take requests."""
        found = (self.models or {}).get(model, {})
        return {version: loaded for version, loaded in found.items() if loaded.state == READY}

    def loading(self, model: str) -> set[str]:
        found = (self.models or {}).get(model, {})
        return {version for version, loaded in found.items() if loaded.state == LOADING}


@dataclass(frozen=True, slots=True)
class Word:
    """What the leader's own work on a rollout has found: a comparison's or a canary step's verdict."""

    #: "wait", "go", "stop".
    kind: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """Everything."""

    now: float
    epoch: EpochRecord
    workers: Mapping[str, WorkerView] = field(default_factory=dict)
    #: Heard of, and the epoch each serves by.
    gateways: Mapping[str, GatewayRecord] = field(default_factory=dict)
    #: That may be serving, heard of or not: name → incarnation.
    known_gateways: Mapping[str, str] = field(default_factory=dict)
    #: By a gateway's incarnation: the epoch it once told; it does not go back, though it is not heard of now.
    epochs_seen: Mapping[str, int] = field(default_factory=dict)
    switch: SwitchRecord | None = None
    #: When the switch came to its phase, by the clock of ``now``.
    switch_since: float = 0.0
    acknowledgements: Mapping[str, AcknowledgementRecord] = field(default_factory=dict)
    #: Not over yet, the one under decision included.
    rollouts: tuple[RolloutRecord, ...] = ()
    #: By rollout: of its comparison, and of its present canary step.
    compared: Mapping[str, Word] = field(default_factory=dict)
    judged: Mapping[str, Word] = field(default_factory=dict)

    #: Of ensembles whose stages no record tells: what their configuration says.
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: By worker: the repositories that it should have, where the fleet starts it.
    repositories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of_pools(self, pools: Iterable[str]) -> dict[str, WorkerView]:
        """Registered workers of some pools."""
        names = set(pools)
        return {name: worker for name, worker in self.workers.items() if worker.record.pool in names}

    def is_outdated(self, worker: WorkerRecord) -> bool:
        """Whether a worker is about to be restarted with other repositories: what it holds now decides nothing."""
        expected = self.repositories.get(worker.name)
        return expected is not None and bool(worker.repositories) and worker.repositories != expected

    def lagging(self, epoch: int) -> list[str]:
        """Gateways that may still serve by an earlier epoch."""
        return sorted(
            name
            for name, incarnation in self.known_gateways.items()
            if max(self._epoch_of(name), self.epochs_seen.get(incarnation, 0)) < epoch
        )

    def _epoch_of(self, name: str) -> int:
        gateway = self.gateways.get(name)
        return gateway.epoch if gateway is not None else 0
