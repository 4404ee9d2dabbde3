"""The aggregated discovery service (ADS) of one client: requests in, responses out. Pure.

State of the world: a response carries all resources of its type (clusters, listeners) or those that changed (endpoints,
routes); what has not changed is not sent. A client acknowledges every response (ACK) or rejects it (NACK); the next
response of the type waits for that, so that a slow client gets the newest state and no queue. Rejected contents are not
sent again until they change.

Nothing that a client uses is taken away before it has something else: routes are sent once the client has acknowledged
the clusters and endpoints that they name (Envoy does not wait for those), and a cluster that the client's routes name
stays until it has acknowledged others. Endpoints are sent again with a cluster that changed: Envoy waits for them.
A client that returns with clusters of an earlier stream gets its routes first, if these need no other clusters.

A client that has everything costs next to nothing: resources that are the same object as last time are not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from isochrone.control.xds.resources import CDS, EDS, LDS, RDS, Resources
from isochrone.control.xds.subscription import Subscription
from isochrone.errors import InvalidArgument

#: Types in the order in which they are sent.
ORDER = (CDS, EDS, LDS, RDS)
#: Of these types a response has everything that the client subscribes to: what is missing in it does not exist.
_WHOLE = frozenset((CDS, LDS))
#: Names that one client may subscribe to, per type, besides those that exist: Envoy names every cluster.
MOST_NAMES = 10_000
#: Types that are not served, as far as one client's are remembered: requests for them are ignored.
_MOST_IGNORED = 16
_NONE: Mapping[str, bytes] = {}
_NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class Request:
    """A DiscoveryRequest, as far as it matters here."""

    type_url: str
    names: Collection[str] = ()
    nonce: str = ""
    #: Why the client rejects the response with that nonce; None: it does not.
    error: str | None = None
    #: What the client has of this type, from this stream or an earlier one; empty: nothing.
    version: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """A DiscoveryResponse."""

    type_url: str
    version: str
    nonce: str
    resources: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A NACK."""

    type_url: str
    version: str
    message: str


class AdsClient:
    """The protocol's state of one client."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        self._responses = 0
        #: The listener of its own that the client asked for, by name.
        self.own_listener: Mapping[str, bytes] = {}
        #: By route configuration: the clusters that the client may route to, and those in the response under way.
        self._clusters_used: dict[str, frozenset[str]] = {}
        self._clusters_under_way: dict[str, frozenset[str]] = {}
        #: Whether the client takes all clusters, and has some of an earlier stream.
        self.is_returning = False
        #: The epoch that the client routes by; 0: none yet.
        self.epoch = 0
        #: Types that it asked for in vain.
        self.ignored: set[str] = set()

    @property
    def is_subscribed(self) -> bool:
        """Whether it has asked for anything that is served."""
        return bool(self._subscriptions)

    def receive(self, request: Request, resources: Resources = _NOTHING) -> Rejection | None:
        """Take a request. Raise ``InvalidArgument`` for one that ends the stream."""
        names = frozenset(request.names)
        known = self._subscriptions.get(request.type_url)
        if len(names) > MOST_NAMES:
            existing = resources.messages.get(request.type_url, _NONE)
            sent = known.sent if known is not None else _NONE
            absent = sum(name not in existing and name not in sent for name in names)
            if absent > MOST_NAMES:
                raise InvalidArgument(
                    f"resource_names: expected at most {MOST_NAMES} names that do not exist, given {absent}"
                )
        if request.type_url not in ORDER:
            if len(self.ignored) < _MOST_IGNORED:
                self.ignored.add(request.type_url)
            return None
        if known is None:
            # The nonce of an earlier stream means nothing.
            known = self._subscriptions[request.type_url] = Subscription(request.type_url in _WHOLE)
            self._subscribe(request.type_url, names, known, is_first=True)
            self.is_returning |= request.type_url == CDS and known.names is None and bool(request.version)
            return None
        rejection = None
        # With another nonce it crossed a newer response, which the client answers as well. Its names count: the client
        # has dropped what is not among them, even if it asks for that again with its next request.
        if known.under_way is not None and request.nonce == known.nonce:
            known.answer(is_rejection=request.error is not None)
            if request.type_url == RDS:
                self._take_over(known, is_rejection=request.error is not None)
            if request.error is not None:
                rejection = Rejection(request.type_url, known.version, request.error)
        self._subscribe(request.type_url, names, known)
        return rejection

    def _subscribe(self, type_url: str, names: frozenset[str], known: Subscription, *, is_first: bool = False) -> None:
        is_everything = "*" in names or (not names and (is_first or known.names is None))
        is_changed = known.subscribe(None if is_everything and known.is_whole else names)
        if type_url == RDS and is_changed:
            self._clusters_used = {name: found for name, found in self._clusters_used.items() if known.wants(name)}
            self._look_at_clusters()

    def _take_over(self, routes: Subscription, *, is_rejection: bool) -> None:
        """Routes that were sent are answered."""
        # Of several route configurations a client may reject one and use the others.
        if not is_rejection or len(self._clusters_under_way) > 1:
            for name, clusters in self._clusters_under_way.items():
                before = self._clusters_used.get(name, frozenset()) if is_rejection else frozenset()
                if routes.wants(name):
                    self._clusters_used[name] = before | clusters
        self._clusters_under_way = {}
        self._look_at_clusters()

    def _look_at_clusters(self) -> None:
        """Some may have stayed for routes that are not in use any longer."""
        clusters = self._subscriptions.get(CDS)
        if clusters is not None:
            clusters.settled = None

    def due(self, resources: Resources) -> list[Response]:
        """The responses to send now."""
        found = []
        for type_url in ORDER:
            known = self._subscriptions.get(type_url)
            if known is None or known.under_way is not None:
                continue
            response = self._due(type_url, known, resources)
            if response is not None:
                found.append(response)
        if self.epoch != resources.epoch and self._follows(resources):
            self.epoch = resources.epoch
        return found

    def _due(self, type_url: str, known: Subscription, resources: Resources) -> Response | None:
        found = resources.messages.get(type_url, _NONE)
        if known.settled is found or (type_url == CDS and self._is_held(known, resources)):
            return None
        existing = self._existing(type_url, known, found)
        # A client of one model looks at its few names, not at a thousand models.
        names = known.names
        wanted = existing if names is None else {name: existing[name] for name in names if name in existing}
        changed = {name: value for name, value in wanted.items() if known.sent.get(name) != value}
        ready = changed
        if type_url == RDS:
            ready = {name: value for name, value in changed.items() if self._is_ready(name, resources)}
        if len(ready) == len(changed):
            known.settled = found
        if known.is_whole:
            is_new = known.answered is None or not known.asked <= known.answered
            if not is_new and not changed and known.sent.keys() <= wanted.keys():
                return None
            return self._send(type_url, known, wanted, changed, resources)
        return self._send(type_url, known, ready, ready, resources) if ready else None

    def _send(
        self,
        type_url: str,
        known: Subscription,
        carried: Mapping[str, bytes],
        changed: Mapping[str, bytes],
        resources: Resources,
    ) -> Response:
        self._responses += 1
        if known.names is not None:
            carried = dict(sorted(carried.items()))
        known.send(carried, resources.version, str(self._responses))
        endpoints = self._subscriptions.get(EDS)
        if type_url == CDS and endpoints is not None:
            for name in changed:
                endpoints.forget(name)
        if type_url == RDS:
            self._clusters_under_way = {name: resources.clusters[name] for name in carried}
        return Response(type_url, known.version, known.nonce, carried)

    def _existing(self, type_url: str, known: Subscription, found: Mapping[str, bytes]) -> Mapping[str, bytes]:
        if type_url == LDS and known.names is None:
            # Listeners of gRPC clients are asked for by name.
            return self.own_listener
        gone = known.sent.keys() - found.keys() if type_url == CDS else ()
        if not gone:
            return found
        if known.names is not None:
            # The client names them for as long as it uses them, also while it has acknowledged other routes already.
            return {**found, **{name: known.sent[name] for name in gone}}
        used = _all(self._clusters_used) | _all(self._clusters_under_way)
        return {**found, **{name: known.sent[name] for name in gone if name in used}}

    def _is_held(self, clusters: Subscription, resources: Resources) -> bool:
        """Whether the first clusters wait for routes: the client has those of an earlier stream, which its present
        routes may name and these clusters lack."""
        routes = self._subscriptions.get(RDS)
        if not self.is_returning or clusters.answered is not None or routes is None:
            return False
        existing = resources.messages.get(RDS, _NONE)
        return routes.under_way is not None or any(
            name in existing and name not in routes.sent and self._is_ready(name, resources) for name in routes.asked
        )

    def _is_ready(self, routes: str, resources: Resources) -> bool:
        """Whether a client that takes all clusters has those of these routes. Others ask for them once they have the
        routes."""
        clusters, endpoints = self._subscriptions.get(CDS), self._subscriptions.get(EDS)
        if clusters is None or clusters.names is not None:
            return True
        if self.is_returning and clusters.answered is None:
            # It asks for the endpoints of the clusters that it has.
            return endpoints is not None and resources.clusters[routes] <= endpoints.asked
        return self._has_all(resources.clusters[routes])

    def _has_all(self, names: Collection[str]) -> bool:
        clusters, endpoints = self._subscriptions.get(CDS), self._subscriptions.get(EDS)
        return (
            clusters is not None
            and endpoints is not None
            and all(name in clusters.acknowledged and name in endpoints.acknowledged for name in names)
        )

    def _follows(self, resources: Resources) -> bool:
        """Whether the client has acknowledged everything, and so routes by these resources.

        A client that connects again may route by others until then. It sends all its subscriptions before it
        acknowledges the first answer.
        """
        if not self._subscriptions:
            return False
        for type_url, known in self._subscriptions.items():
            if known.under_way is not None or known.has_rejected(resources.messages.get(type_url, _NONE)):
                return False
        routes = self._subscriptions.get(RDS)
        if routes is None:
            return True
        # Routes that wait for their clusters are not in flight.
        existing = resources.messages.get(RDS, _NONE)
        for name in routes.asked:
            if name in existing and routes.acknowledged.get(name) != existing[name]:
                return False
        return CDS not in self._subscriptions or self._has_all(_all(self._clusters_used))


def _all(clusters: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*clusters.values())
