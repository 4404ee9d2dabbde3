"""What the clients of xDS are to route to: the committed versions, and the workers that serve each. Pure.

A worker is an endpoint of a version if its own index has the version as ready, with the committed digest, and the
worker is registered and not drained. Unknown means unserved, as in a gateway. The version under evaluation gets its
share only while a worker serves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isochrone.control.agents.commitments import commitments
from isochrone.control.state.records import EpochRecord, WorkerRecord
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.housekeeping import finished
from isochrone.gateway.placement.balancer import is_committed
from isochrone.protocol.stages import parse_stages

#: Model → version → digest.
Served = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ServingWorker:
    """A registered worker that is not drained."""

    record: WorkerRecord
    #: Its IP address.
    address: str
    #: What its index said last.
    served: Served
    #: Whether it still answers.
    answers: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one worker is reached by one protocol."""

    address: str
    port: int
    region: str = ""


@dataclass(frozen=True, slots=True)
class RoutedVersion:
    """One version and its endpoints by protocol."""

    version: str
    #: Of an ensemble: the versions of its stages, as in the header ``x-isochrone-stages``.
    stages: bytes
    http: tuple[Endpoint, ...]
    #: Without servers of other kinds: they do not read the version that a route chose.
    grpc: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """One model, the version of requests that name none, and the versions that requests may name."""

    name: str
    version: str
    versions: Mapping[str, RoutedVersion]
    #: The version under evaluation and its share of the requests; "": none.
    canary: str = ""
    share: float = 0.0
    #: A request chooses with ``always`` or ``never`` in this header; "": requests cannot choose.
    canary_header: str = ""


@dataclass(frozen=True, slots=True)
class RoutedFleet:
    """All models of one epoch, by name."""

    epoch: int = 0
    models: Mapping[str, RoutedModel] = field(default_factory=dict)


class _Candidate(NamedTuple):
    """A worker and its endpoints, which all models share."""

    worker: ServingWorker
    http: Endpoint | None
    grpc: Endpoint | None


def routed_fleet(epoch: EpochRecord, workers: Iterable[ServingWorker]) -> RoutedFleet:
    candidates = [_candidate(worker) for worker in sorted(workers, key=lambda worker: worker.record.name)]
    committed = finished(commitments(epoch))
    models = {name: _routed(name, committed, candidates) for name in sorted(committed)}
    return RoutedFleet(epoch.epoch, models)


def loses_endpoints(before: RoutedFleet, after: RoutedFleet) -> bool:
    """Whether a model changes from a version that is served to one that no worker is known to serve."""
    for name, model in after.models.items():
        known = before.models.get(name)
        if known is None or known.version == model.version:
            continue
        if known.versions[known.version].http and not model.versions[model.version].http:
            return True
    return False


def _candidate(worker: ServingWorker) -> _Candidate:
    record = worker.record
    http = Endpoint(worker.address, record.port, record.region) if record.port else None
    reads_pins = record.grpc_port and record.kind == "isochrone"
    return _Candidate(worker, http, Endpoint(worker.address, record.grpc_port, record.region) if reads_pins else None)


def _routed(name: str, committed: Mapping[str, Commitment], workers: list[_Candidate]) -> RoutedModel:
    commitment = committed[name]
    versions = {
        version: _version(name, version, committed, workers) for version in sorted(commitment.digests, key=_number)
    }
    rules = commitment.canary
    tried = versions.get(rules.version) if rules is not None else None
    if rules is None or tried is None or not tried.http:
        return RoutedModel(name, commitment.version, versions)
    return RoutedModel(name, commitment.version, versions, rules.version, rules.weight, rules.header.lower())


def _version(name: str, version: str, committed: Mapping[str, Commitment], workers: list[_Candidate]) -> RoutedVersion:
    stages = committed[name].stages.get(version, b"")
    needed = [
        (model, at, known.digests.get(at, "") if (known := committed.get(model)) is not None else "")
        for model, at in ((name, version), *(parse_stages(stages) if stages else {}).items())
    ]
    having = [each for each in workers if _has_all(each.worker.served, needed)]
    # If none answers, it is the network of this controller that fails, and not all workers at once.
    having = [each for each in having if each.worker.answers] or having
    return RoutedVersion(
        version,
        stages,
        tuple(each.http for each in having if each.http is not None),
        tuple(each.grpc for each in having if each.grpc is not None),
    )


def _has_all(served: Served, needed: Iterable[tuple[str, str, str]]) -> bool:
    """``needed``: model, version and committed digest."""
    for model, version, expected in needed:
        versions = served.get(model)
        digest = versions.get(version) if versions is not None else None
        if digest is None or not is_committed(digest, expected):
            return False
    return True


def _number(version: str) -> tuple[int, str]:
    return (int(version) if version.isdigit() else 0, version)
