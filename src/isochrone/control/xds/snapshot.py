"""What the clients of xDS are to route to: the committed versions, and the workers that serve each. Pure.

A worker is an endpoint of a version if its own index has the version as ready, with the committed digest, and the
worker is registered and not drained. Unknown means unserved, as in a gateway. The version under evaluation gets its
share only while a worker serves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, order=True)
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


def routed_fleet(epoch: EpochRecord, workers: Iterable[ServingWorker]) -> RoutedFleet:
    workers = sorted(workers, key=lambda worker: worker.record.name)
    committed = finished(commitments(epoch))
    models = {name: _routed(name, committed, workers) for name in sorted(committed)}
    return RoutedFleet(epoch.epoch, models)


def _routed(name: str, committed: Mapping[str, Commitment], workers: list[ServingWorker]) -> RoutedModel:
    commitment = committed[name]
    versions = {
        version: _version(name, version, committed, workers) for version in sorted(commitment.digests, key=_number)
    }
    rules = commitment.canary
    tried = versions.get(rules.version) if rules is not None else None
    if rules is None or tried is None or not tried.http:
        return RoutedModel(name, commitment.version, versions)
    return RoutedModel(name, commitment.version, versions, rules.version, rules.weight, rules.header.lower())


def _version(
    name: str, version: str, committed: Mapping[str, Commitment], workers: list[ServingWorker]
) -> RoutedVersion:
    stages = committed[name].stages.get(version, b"")
    needed = {name: version, **(parse_stages(stages) if stages else {})}
    having = [worker for worker in workers if _has_all(worker.served, needed, committed)]
    # If none answers, it is the network of this controller that fails, and not all workers at once.
    having = [worker for worker in having if worker.answers] or having
    return RoutedVersion(
        version,
        stages,
        _endpoints((worker, worker.record.port) for worker in having),
        _endpoints((worker, worker.record.grpc_port) for worker in having if worker.record.kind == "isochrone"),
    )


def _has_all(served: Served, needed: Mapping[str, str], committed: Mapping[str, Commitment]) -> bool:
    for model, version in needed.items():
        digest = served.get(model, {}).get(version)
        known = committed.get(model)
        expected = known.digests.get(version, "") if known is not None else ""
        if digest is None or not is_committed(digest, expected):
            return False
    return True


def _endpoints(found: Iterable[tuple[ServingWorker, int]]) -> tuple[Endpoint, ...]:
    return tuple(sorted({Endpoint(worker.address, port, worker.record.region) for worker, port in found if port}))


def _number(version: str) -> tuple[int, str]:
    return (int(version) if version.isdigit() else 0, version)
