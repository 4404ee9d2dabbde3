"""The observed state of a fleet at one moment, by which the next step of a rollout is decided: the records of the
store, the versions that workers report, and the verdicts of the evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from isochrone.control.state.assignment import Placements, is_assigned
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import AcknowledgementRecord, RolloutRecord, SwitchRecord

READY, LOADING = "READY", "LOADING"
#: The state of a version that holds no memory.
UNAVAILABLE = "UNAVAILABLE"
#: Behind the name of a controller that stands for its xDS clients.
XDS_SUFFIX = " (xDS)"


@dataclass(frozen=True, slots=True)
class Loaded:
    """One version on one worker, as the worker reports it."""

    state: str
    digest: str = ""
    reason: str = ""
    #: Who signed it, when, and from what; "": nobody had to.
    signed_by: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker rejected a call to load these versions."""

    versions: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True)
class ObservedWorker:
    """One registered worker."""

    record: WorkerRecord
    #: Model → version → state; None: it has not reported yet.
    models: Mapping[str, Mapping[str, Loaded]] | None = None
    #: By model: the failure of the last load, if it failed.
    failures: Mapping[str, Failure] = field(default_factory=dict)
    #: When it last answered, in seconds of the monotonic clock; -inf: it did not answer the last read, and ``models``
    #: are those of an earlier one. By default it answers now.
    read_at: float = math.inf

    def ready(self, model: str) -> dict[str, Loaded]:
        """Its versions that are ready to serve."""
        found = (self.models or {}).get(model, {})
        return {version: loaded for version, loaded in found.items() if loaded.state == READY}

    def loading(self, model: str) -> set[str]:
        found = (self.models or {}).get(model, {})
        return {version for version, loaded in found.items() if loaded.state == LOADING}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of an evaluation: of the comparison, or of a canary step."""

    #: "wait", "go", "stop".
    kind: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything that a decision depends on."""

    now: float
    epoch: EpochRecord
    workers: Mapping[str, ObservedWorker] = field(default_factory=dict)
    #: Registered gateways, with the epoch that each serves.
    gateways: Mapping[str, GatewayRecord] = field(default_factory=dict)
    #: Gateways that may be serving, registered or not: name → incarnation.
    known_gateways: Mapping[str, str] = field(default_factory=dict)
    #: By a gateway's incarnation: the last epoch that it reported. It never serves an earlier one afterwards.
    epochs_seen: Mapping[str, int] = field(default_factory=dict)
    #: By controller that serves xDS: the epoch that all its clients have taken over.
    xds_epochs: Mapping[str, int] = field(default_factory=dict)
    switch: SwitchRecord | None = None
    #: When the switch entered its phase, by the clock of ``now``.
    switch_since: float = 0.0
    acknowledgements: Mapping[str, AcknowledgementRecord] = field(default_factory=dict)
    #: Open rollouts, including the one to be decided.
    rollouts: tuple[RolloutRecord, ...] = ()
    #: By rollout: the verdict of its comparison, and of its present canary step.
    compared: Mapping[str, Verdict] = field(default_factory=dict)
    judged: Mapping[str, Verdict] = field(default_factory=dict)

    #: By ensemble: the stages in its configuration, for rollouts whose record has none.
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: By worker that the fleet starts: the repositories that it should have.
    repositories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: By planned pool: the workers that have each model.
    placements: Placements = field(default_factory=dict)

    def assigned(self, model: str, pools: Iterable[str]) -> dict[str, ObservedWorker]:
        """Registered workers that have to have a model, which some pools serve."""
        return {name: worker for name, worker in self.of_pools(pools).items() if self.is_assigned(worker, model, pools)}

    def is_assigned(self, worker: ObservedWorker, model: str, pools: Iterable[str]) -> bool:
        return is_assigned(worker.record, model, pools, self.placements)

    def of_pools(self, pools: Iterable[str]) -> dict[str, ObservedWorker]:
        """Registered workers of some pools."""
        names = set(pools)
        return {name: worker for name, worker in self.workers.items() if worker.record.pool in names}

    def is_outdated(self, worker: WorkerRecord) -> bool:
        """Whether a worker is about to be restarted with other repositories, so that its present versions do not
        count."""
        expected = self.repositories.get(worker.name)
        return expected is not None and bool(worker.repositories) and worker.repositories != expected

    @property
    def next_epoch(self) -> int:
        """The number of the next commit. After a store was lost, gateways serve later epochs than it has."""
        seen = [gateway.epoch for gateway in self.gateways.values()]
        return max(self.epoch.epoch, *seen, *self.epochs_seen.values(), *self.xds_epochs.values(), 0) + 1

    def lagging(self, epoch: int) -> list[str]:
        """Gateways that may still serve an earlier epoch, and xDS servers with clients that may."""
        # Their clients are waited for no longer than ``xds.clients.PATIENCE``.
        servers = [name + XDS_SUFFIX for name, seen in sorted(self.xds_epochs.items()) if seen < epoch]
        return self.lagging_gateways(epoch) + servers

    def lagging_gateways(self, epoch: int) -> list[str]:
        """Gateways that may still serve an earlier epoch."""
        return sorted(
            name
            for name, incarnation in self.known_gateways.items()
            if max(self._epoch_of(name), self.epochs_seen.get(incarnation, 0)) < epoch
        )

    def _epoch_of(self, name: str) -> int:
        gateway = self.gateways.get(name)
        return gateway.epoch if gateway is not None else 0
