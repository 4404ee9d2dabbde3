"""The aggregated discovery service (ADS) of one client: requests in, responses out. Pure.

State of the world: a response carries all resources of its type (clusters, listeners) or those that changed (endpoints,
routes); what has not changed is not sent. A client acknowledges every response (ACK) or rejects it (NACK); the next
response of the type waits for that, so that a slow client gets the newest state and no queue. Rejected contents are not
sent again until they change.

Nothing that a client uses is taken away before it has something else: routes are sent once the client has acknowledged
the clusters and endpoints that they name (Envoy does not wait for those), and a cluster that the client's routes name
stays until it has acknowledged others. Endpoints are sent again with a cluster that changed: Envoy waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from isochrone.control.xds.resources import CDS, EDS, LDS, RDS, Resources
from isochrone.errors import InvalidArgument

#: Types in the order in which they are sent.
ORDER = (CDS, EDS, LDS, RDS)
#: Of these types a response has everything that the client subscribes to: what is missing in it does not exist.
_WHOLE = frozenset((CDS, LDS))
#: Names that one client may subscribe to, per type.
MOST_NAMES = 10_000
#: Types that are not served, of which a client is told no more than that they are ignored.
_MOST_IGNORED = 16


@dataclass(frozen=True, slots=True)
class Request:
    """A DiscoveryRequest, as far as it matters here."""

    type_url: str
    names: Collection[str] = ()
    nonce: str = ""
    #: Why the client rejects the response with that nonce; None: it does not.
    error: str | None = None


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


@dataclass(slots=True)
class _Subscription:
    """What a client subscribes to of one type, and what it has."""

    #: None: everything.
    names: frozenset[str] | None = None
    nonce: str = ""
    version: str = ""
    is_in_flight: bool = False
    is_rejected: bool = False
    #: What was sent last of each name, and what was acknowledged last.
    sent: dict[str, bytes] = field(default_factory=dict)
    acknowledged: dict[str, bytes] = field(default_factory=dict)
    #: What the last response was an answer to; None: there was none.
    answered: frozenset[str] | None = None

    def wants(self, name: str) -> bool:
        return self.names is None or name in self.names

    def forget_unwanted(self) -> None:
        self.sent = {name: value for name, value in self.sent.items() if self.wants(name)}
        self.acknowledged = {name: value for name, value in self.acknowledged.items() if self.wants(name)}


class AdsClient:
    """The protocol's state of one client."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, _Subscription] = {}
        self._responses = 0
        #: The listener of its own that the client asked for, by name.
        self.own_listener: Mapping[str, bytes] = {}
        #: By route configuration: the clusters in what was sent last, and in what was acknowledged last.
        self._clusters_sent: dict[str, frozenset[str]] = {}
        self._clusters_used: dict[str, frozenset[str]] = {}
        #: The epoch that the client routes by; 0: none yet.
        self.epoch = 0
        #: Types that it asked for in vain.
        self.ignored: set[str] = set()

    def receive(self, request: Request) -> Rejection | None:
        """Take a request. Raise ``InvalidArgument`` for one that ends the stream."""
        if len(request.names) > MOST_NAMES:
            raise InvalidArgument(f"resource_names: expected at most {MOST_NAMES} names, given {len(request.names)}")
        if request.type_url not in ORDER:
            if len(self.ignored) < _MOST_IGNORED:
                self.ignored.add(request.type_url)
            return None
        known = self._subscriptions.get(request.type_url)
        if known is None:
            # The nonce of an earlier stream means nothing.
            known = self._subscriptions[request.type_url] = _Subscription()
            self._subscribe(request, known, is_first=True)
            return None
        if request.nonce != known.nonce:
            # It crossed a newer response, which the client answers as well.
            return None
        rejection = None
        if known.is_in_flight:
            known.is_in_flight = False
            known.is_rejected = request.error is not None
            if request.error is not None:
                rejection = Rejection(request.type_url, known.version, request.error)
            else:
                self._acknowledge(request.type_url, known)
        self._subscribe(request, known)
        return rejection

    def _subscribe(self, request: Request, known: _Subscription, *, is_first: bool = False) -> None:
        names = frozenset(request.names)
        is_everything = "*" in names or (not names and (is_first or known.names is None))
        known.names = None if is_everything and request.type_url in _WHOLE else names
        known.forget_unwanted()
        if request.type_url == RDS:
            self._clusters_sent = {name: found for name, found in self._clusters_sent.items() if known.wants(name)}
            self._clusters_used = {name: found for name, found in self._clusters_used.items() if known.wants(name)}

    def _acknowledge(self, type_url: str, known: _Subscription) -> None:
        known.acknowledged = dict(known.sent)
        if type_url == RDS:
            self._clusters_used = dict(self._clusters_sent)

    def due(self, resources: Resources) -> list[Response]:
        """The responses to send now."""
        found = []
        for type_url in ORDER:
            known = self._subscriptions.get(type_url)
            response = None if known is None or known.is_in_flight else self._due(type_url, known, resources)
            if response is not None:
                found.append(response)
        if self._follows(resources):
            self.epoch = resources.epoch
        return found

    def _due(self, type_url: str, known: _Subscription, resources: Resources) -> Response | None:
        existing = self._existing(type_url, known, resources)
        wanted = {name: value for name, value in existing.items() if known.wants(name)}
        changed = {name: value for name, value in wanted.items() if known.sent.get(name) != value}
        if type_url == RDS:
            changed = {name: value for name, value in changed.items() if self._is_ready(name, resources)}
        if type_url in _WHOLE:
            asked = known.names if known.names is not None else frozenset(("*",))
            is_new = known.answered is None or not asked <= known.answered
            if not is_new and not changed and known.sent.keys() <= wanted.keys():
                return None
            known.answered, carried = asked, wanted
        elif changed:
            carried = changed
        else:
            return None
        return self._send(type_url, known, carried, changed, resources)

    def _send(
        self,
        type_url: str,
        known: _Subscription,
        carried: Mapping[str, bytes],
        changed: Mapping[str, bytes],
        resources: Resources,
    ) -> Response:
        self._responses += 1
        known.nonce, known.version = str(self._responses), resources.version
        known.is_in_flight, known.is_rejected = True, False
        known.sent = dict(carried) if type_url in _WHOLE else {**known.sent, **carried}
        endpoints = self._subscriptions.get(EDS)
        if type_url == CDS and endpoints is not None:
            for name in changed:
                endpoints.sent.pop(name, None)
                endpoints.acknowledged.pop(name, None)
        if type_url == RDS:
            self._clusters_sent.update({name: resources.clusters[name] for name in carried})
        return Response(type_url, known.version, known.nonce, carried)

    def _existing(self, type_url: str, known: _Subscription, resources: Resources) -> Mapping[str, bytes]:
        found = resources.messages.get(type_url, {})
        if type_url == LDS and known.names is None:
            # Listeners of gRPC clients are asked for by name.
            return self.own_listener
        if type_url == CDS:
            used = {*_all(self._clusters_used), *_all(self._clusters_sent)}
            kept = {name: value for name, value in known.sent.items() if name in used and name not in found}
            return {**found, **kept} if kept else found
        return found

    def _is_ready(self, routes: str, resources: Resources) -> bool:
        """Whether a client that takes all clusters has those of these routes. Others ask for them once they have the
        routes."""
        clusters = self._subscriptions.get(CDS)
        if clusters is None or clusters.names is not None:
            return True
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
        subscriptions = self._subscriptions.values()
        if not subscriptions or any(known.is_in_flight or known.is_rejected for known in subscriptions):
            return False
        routes = self._subscriptions.get(RDS)
        if routes is None:
            return True
        # Routes that wait for their clusters are not in flight.
        for name, value in resources.messages.get(RDS, {}).items():
            if routes.wants(name) and routes.acknowledged.get(name) != value:
                return False
        return CDS not in self._subscriptions or self._has_all(_all(self._clusters_used))


def _all(clusters: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*clusters.values())
