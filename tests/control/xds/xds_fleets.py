"""Routed fleets and clients of xDS for tests: clients that behave as Envoy and gRPC do, without a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache

from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.control.xds import messages
from isochrone.control.xds.ads import AdsClient, Request, Response
from isochrone.control.xds.resources import CDS, EDS, ENVOY, LDS, RDS, Resources, resources_of
from isochrone.control.xds.snapshot import ServingWorker, routed_fleet
from isochrone.protocol.headers.version_pins import model_authority


def worker(number: int, served: Mapping[str, Mapping[str, str]], **fields: object) -> ServingWorker:
    record = WorkerRecord(f"w{number}", "127.0.0.1", 8000 + number, 9000 + number)
    return ServingWorker(record, "127.0.0.1", served, **fields)  # type: ignore[arg-type]


def resources(epoch: int, version: int, workers: int = 2, models: tuple[str, ...] = ("solo",)) -> Resources:
    """Version ``version`` of each model is committed, and the one before it stands by."""
    return resources_by_model(epoch, workers, **dict.fromkeys(models, version))


@lru_cache(maxsize=2048)
def resources_by_model(epoch: int, workers: int = 2, **versions: int) -> Resources:
    """As ``resources``, with a version for each model."""
    served = {model: {str(number): f"d{number}" for number in range(1, 20)} for model in versions}
    fleet = routed_fleet(
        EpochRecord(epoch, {model: _assignment(version) for model, version in versions.items()}),
        [worker(number, served) for number in range(workers)],
    )
    return resources_of(fleet, epoch)


def without_previous(epoch: int, version: int) -> Resources:
    """Only that version of one model is committed."""
    served = {"solo": {str(version): f"d{version}"}}
    only = EpochRecord(epoch, {"solo": Assignment(str(version), f"d{version}")})
    return resources_of(routed_fleet(only, [worker(0, served)]), epoch)


def _assignment(version: int) -> Assignment:
    previous = (str(version - 1), f"d{version - 1}") if version > 1 else ("", "")
    return Assignment(str(version), f"d{version}", *previous)


class SimulatedClient:
    """The client's end of a stream. ``has``: what it holds of each type, by name.

    Messages wait in both directions until they are delivered, so that any interleaving can be tried. ``routes``: the
    route configurations that it follows. ``routed``: the clusters that its present routes name.
    """

    routes: tuple[str, ...]

    def __init__(self) -> None:
        self.server = AdsClient()
        self.to_server: deque[Request] = deque()
        self.to_client: deque[Response] = deque()
        self.has: dict[str, dict[str, bytes]] = {kind: {} for kind in (CDS, EDS, LDS, RDS)}
        self.nonces: dict[str, str] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        self.routed: frozenset[str] = frozenset()
        #: By the clusters of routes, which differ from commit to commit.
        self._epochs: dict[frozenset[str], set[int]] = {}
        self.epochs_used: set[int] = set()
        self.responses = 0
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def took(self, kind: str) -> None:
        """Something of this type has come: subscribe to what it names."""
        raise NotImplementedError

    def subscribe(self, kind: str, *names: str) -> None:
        if self.names.get(kind) != names:
            self.names[kind] = names
            self.to_server.append(Request(kind, names, self.nonces.get(kind, "")))

    def publish(self, current: Resources) -> None:
        """The server has something, or its client has."""
        routes = frozenset().union(*(current.clusters.get(name, frozenset()) for name in self.routes))
        self._epochs.setdefault(routes, set()).add(current.epoch)
        self.epochs_used |= self._epochs.get(self.routed, set())
        for response in self.server.due(current):
            self.responses += 1
            self.to_client.append(response)

    def deliver_to_server(self, current: Resources) -> None:
        if self.to_server:
            self.server.receive(self.to_server.popleft())
            self.publish(current)

    def deliver_to_client(self, *, rejects: bool = False) -> None:
        if not self.to_client:
            return
        response = self.to_client.popleft()
        kind = response.type_url
        self.nonces[kind] = response.nonce
        # Listeners never change, so that a rejected one never comes again.
        if rejects and kind != LDS:
            self.to_server.append(Request(kind, self.names[kind], response.nonce, "I do not like it"))
            return
        if kind in (CDS, LDS):
            self.has[kind] = dict(response.resources)
        else:
            self.has[kind].update(response.resources)
        self.to_server.append(Request(kind, self.names[kind], response.nonce))
        self.took(kind)
        self.epochs_used |= self._epochs.get(self.routed, set())

    def settle(self, current: Resources) -> None:
        """Deliver everything."""
        self.publish(current)
        for _ in range(200):
            if not self.to_server and not self.to_client:
                return
            self.deliver_to_client()
            self.deliver_to_server(current)
        raise AssertionError("the two talk without end")

    def broken(self) -> set[str]:
        """Clusters of its routes that it has no use of."""
        return {name for name in self.routed if name not in self.has[CDS] or name not in self.has[EDS]}


class SimulatedEnvoy(SimulatedClient):
    """Takes all clusters and listeners. A route to a cluster that it does not have is an error at once."""

    routes = (ENVOY,)

    def begin(self) -> None:
        self.server.own_listener = {ENVOY: b"a listener"}
        self.subscribe(CDS)
        self.subscribe(LDS)

    def took(self, kind: str) -> None:
        if kind == CDS:
            self.has[EDS] = {name: value for name, value in self.has[EDS].items() if name in self.has[CDS]}
            self.subscribe(EDS, *sorted(self.has[CDS]))
        elif kind == LDS and self.has[LDS]:
            self.subscribe(RDS, ENVOY)
        elif kind == RDS:
            self.routed = clusters_of(self.has[RDS][ENVOY])

    def connect_again(self) -> None:
        """A new stream: all subscriptions arrive, with what the client has of each, before anything is answered."""
        self.server = AdsClient()
        self.server.own_listener = {ENVOY: b"a listener"}
        self.to_server.clear()
        self.to_client.clear()
        self.nonces.clear()
        for kind, names in self.names.items():
            self.server.receive(Request(kind, names, version="1.1"))


class SimulatedGrpc(SimulatedClient):
    """Follows listeners to their routes, clusters and endpoints. Uses new routes once it has all of theirs."""

    models: tuple[str, ...] = ("solo",)

    def begin(self) -> None:
        self.routes = tuple(map(model_authority, self.models))
        self._routed: dict[str, frozenset[str]] = {}
        self.subscribe(LDS, *self.routes)

    def took(self, kind: str) -> None:
        if kind == LDS:
            self.subscribe(RDS, *(name for name in self.routes if name in self.has[LDS]))
        coming = {name: clusters_of(self.has[RDS][name]) for name in self.routes if name in self.has[RDS]}
        wanted = sorted(frozenset().union(*coming.values(), *self._routed.values()))
        if kind == RDS:
            self.subscribe(CDS, *wanted)
        if CDS in self.names:
            self.subscribe(EDS, *(name for name in wanted if name in self.has[CDS]))
        ready = {
            name: found
            for name, found in coming.items()
            if all(each in self.has[CDS] and each in self.has[EDS] for each in found)
        }
        self._routed.update(ready)
        self.routed = frozenset().union(*self._routed.values())
        if ready and len(ready) == len(coming):
            self.subscribe(CDS, *sorted(self.routed))
            self.subscribe(EDS, *sorted(self.routed))


class SimulatedGrpcOfTwo(SimulatedGrpc):
    """A process with a channel for each of two models."""

    models = ("solo", "other")


def clusters_of(routes: bytes) -> frozenset[str]:
    found = set()
    for host in messages.RouteConfiguration.FromString(routes).virtual_hosts:
        for route in host.routes:
            found.update(each.name for each in route.route.weighted_clusters.clusters)
            if route.route.cluster:
                found.add(route.route.cluster)
    return frozenset(found)
