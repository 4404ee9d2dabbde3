"""What the clients of xDS are to route to: the committed versions, and the workers that serve each. Pure.

A worker is an endpoint of a version if its own index has the version as ready, with the committed digest, and the
worker is registered and not drained. Unknown means unserved, as in a gateway. Workers that stand by are endpoints while
no other one answers. The version under evaluation gets its share only while a worker serves it. A model whose newly
committed version no worker is known to serve keeps its route while a worker serves the former version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from isochrone.control.agents.commitments import commitments
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import EpochRecord
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.housekeeping import finished
from isochrone.gateway.placement.balancer import is_committed
from isochrone.protocol.headers.stages import parse_stages

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
    #: Whether it gets no requests while others are well.
    standby: bool = False


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
    #: The version under evaluation and its share of the requests, by the protocols that it has endpoints for; "": none.
    canary: str = ""
    share: float = 0.0
    #: A request chooses with ``always`` or ``never`` in this header; "": requests cannot choose.
    canary_header: str = ""


@dataclass(frozen=True, slots=True)
class RoutedFleet:
    """All models of one epoch, by name."""

    epoch: int = 0
    models: Mapping[str, RoutedModel] = field(default_factory=dict)
    #: The models that are routed as before the epoch.
    kept: frozenset[str] = frozenset()
    #: By model: what it is routed by.
    routed_by: Mapping[str, Commitment] = field(default_factory=dict, compare=False, repr=False)


class _Candidate(NamedTuple):
    """A worker and its endpoints, which all models share."""

    worker: ServingWorker
    http: Endpoint | None
    grpc: Endpoint | None


def routed_fleet(
    epoch: EpochRecord, workers: Iterable[ServingWorker], before: RoutedFleet | None = None
) -> RoutedFleet:
    """``before``: what is routed now."""
    candidates = [_candidate(worker) for worker in sorted(workers, key=lambda worker: worker.record.name)]
    committed = finished(commitments(epoch))
    models, routed_by, kept = {}, {}, set()
    for name in sorted(committed):
        models[name], routed_by[name] = _routed(name, committed, candidates), committed[name]
        former = _former(name, models[name], before, candidates)
        if before is not None and former is not None:
            models[name], routed_by[name] = former, before.routed_by[name]
            kept.add(name)
    return RoutedFleet(epoch.epoch, models, frozenset(kept), routed_by)


def _former(
    name: str, model: RoutedModel, before: RoutedFleet | None, candidates: list[_Candidate]
) -> RoutedModel | None:
    """The model as it was routed before, if its version now is on no worker and the one before is. Workers load a
    version before its commit: those that have it could not be read since."""
    if before is None or _is_served(model):
        return None
    known = before.routed_by.get(name)
    if known is None or known.version == model.version:
        return None
    former = _routed(name, before.routed_by, candidates)
    return former if _is_served(former) else None


def _is_served(model: RoutedModel) -> bool:
    version = model.versions[model.version]
    return bool(version.http or version.grpc)


def _candidate(worker: ServingWorker) -> _Candidate:
    record, address = worker.record, worker.address
    http = _endpoint(address, record.port, record.region) if record.port else None
    reads_pins = record.grpc_port and record.kind == "isochrone"
    return _Candidate(worker, http, _endpoint(address, record.grpc_port, record.region) if reads_pins else None)


@lru_cache(maxsize=16_384)
def _endpoint(address: str, port: int, region: str) -> Endpoint:
    """The same object each time, so that fleets are compared quickly."""
    return Endpoint(address, port, region)


def _routed(name: str, committed: Mapping[str, Commitment], candidates: list[_Candidate]) -> RoutedModel:
    commitment = committed[name]
    versions = {
        version: _version(name, version, committed, candidates) for version in sorted(commitment.digests, key=_number)
    }
    rules = commitment.canary
    tried = versions.get(rules.version) if rules is not None else None
    if rules is None or tried is None or not (tried.http or tried.grpc):
        return RoutedModel(name, commitment.version, versions)
    return RoutedModel(name, commitment.version, versions, rules.version, rules.weight, rules.header.lower())


def _version(
    name: str, version: str, committed: Mapping[str, Commitment], candidates: list[_Candidate]
) -> RoutedVersion:
    stages = committed[name].stages.get(version, b"")
    needed = [
        (model, at, known.digests.get(at, "") if (known := committed.get(model)) is not None else "")
        for model, at in ((name, version), *(parse_stages(stages) if stages else {}).items())
    ]
    having = [each for each in candidates if _has_all(each.worker.served, needed)]
    # By protocol: those that are preferred may have no endpoint for one.
    http = _chosen((each.worker, each.http) for each in having)
    return RoutedVersion(version, stages, http, _chosen((each.worker, each.grpc) for each in having))


def _chosen(having: Iterable[tuple[ServingWorker, Endpoint | None]]) -> tuple[Endpoint, ...]:
    """The endpoints to use of those that have what is needed."""
    found = [(worker, endpoint) for worker, endpoint in having if endpoint is not None]
    answering = [each for each in found if each[0].answers]
    # If none answers, it is the network of this controller that fails, and not all workers at once.
    chosen = [each for each in answering if not each[0].standby] or answering or found
    # Each address once, or gRPC rejects all of them: a worker that started again under another name has two records.
    return tuple({(endpoint.address, endpoint.port): endpoint for _, endpoint in chosen}.values())


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
