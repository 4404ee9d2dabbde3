"""A gateway's metrics page: requests, refusals, retries and hedges per model; health and load per worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from isochrone.clock import now_ns
from isochrone.errors import MethodNotAllowed, NotFound
from isochrone.protocol.rest import ErrorRoute
from isochrone.wire.exchange import Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway

_PREFIX = "isochrone_gateway_"
#: Name, help, attribute of a group.
_COUNTERS = (
    ("requests", "Requests taken", "requests"),
    ("refused", "Requests refused here: no time, no worker, over quota", "refused"),
    ("retries", "Attempts sent again to another worker", "retries"),
    ("retries_denied", "Retries the budget did not allow", "retries_denied"),
    ("hedges", "Second copies of slow requests", "hedges"),
    ("failures", "Attempts that broke", "failures"),
)


class GatewayCollector(Collector):
    """Reads the gateway's state when the page is asked for."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        gateway = self._gateway
        for name, text, attribute in _COUNTERS:
            family = CounterMetricFamily(_PREFIX + name, text, labels=("model",))
            for group in gateway.fleet.groups.values():
                family.add_metric((group.name,), getattr(group, attribute))
            yield family
        yield GaugeMetricFamily(_PREFIX + "in_flight", "Requests and streams under way", gateway.in_flight)
        yield from self._workers()

    def _workers(self) -> Iterator[Metric]:
        now = now_ns()
        healthy = GaugeMetricFamily(_PREFIX + "worker_healthy", "1: takes requests", labels=("worker",))
        ejected = GaugeMetricFamily(_PREFIX + "worker_ejected", "1: left out as an outlier", labels=("worker",))
        in_flight = GaugeMetricFamily(_PREFIX + "worker_in_flight", "Requests from here", labels=("worker",))
        connections = GaugeMetricFamily(_PREFIX + "worker_connections", "Open connections", labels=("worker",))
        for address, member in self._gateway.fleet.members.items():
            endpoint = member.endpoint
            healthy.add_metric((address,), float(endpoint.healthy))
            ejected.add_metric((address,), float(endpoint.ejected_until > now))
            in_flight.add_metric((address,), endpoint.in_flight)
            connections.add_metric((address,), member.connections.open)
        yield from (healthy, ejected, in_flight, connections)


class GatewayMetricsApplication:
    """GET /metrics, for Prometheus."""

    def __init__(self, gateway: Gateway) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(GatewayCollector(gateway))
        ProcessCollector(registry=self._registry)

    def route(self, head: Head) -> Route:
        path = head.target.partition(b"?")[0]
        if path not in (b"/metrics", b"/metrics/"):
            return ErrorRoute(NotFound(f"no such path: {path.decode('latin-1')[:200]}; metrics are under /metrics"))
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed("/metrics: expected GET"))
        return _MetricsRoute(self._registry, (head.get(b"accept") or b"").decode("latin-1"))


class _MetricsRoute(Route):
    def __init__(self, registry: CollectorRegistry, accept: str) -> None:
        self._registry = registry
        self._accept = accept

    def handle(self, exchange: Exchange) -> None:
        encode, content_type = choose_encoder(self._accept)
        exchange.respond(200, ((b"content-type", content_type.encode()),), [encode(self._registry)])
