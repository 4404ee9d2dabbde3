"""A gateway's metrics page: requests, latencies, rejections, retries and hedges per model; latencies per agent; health
and load per worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import now_ns
from isochrone.gateway.control_calls.agent_page import AgentPage
from isochrone.gateway.control_calls.evaluation_pages import EvaluationPages
from isochrone.gateway.control_calls.figures_page import FiguresPages
from isochrone.gateway.duration_metrics import agent_metrics, duration_metrics
from isochrone.gateway.housekeeping import Steps
from isochrone.gateway.latencies.agent_report import agent_report
from isochrone.observe.access_log.writer import AccessLog
from isochrone.observe.metrics.access_log import access_log_metrics
from isochrone.observe.metrics.page_formats import encoder
from isochrone.observe.metrics.pieces import MetricsPieces
from isochrone.observe.metrics.traces import trace_metrics
from isochrone.observe.metrics.wire import wire_metrics
from isochrone.observe.snapshot import WireSnapshot
from isochrone.protocol.applications.application import error_unless_metrics
from isochrone.protocol.rest.answers import respond_unexpected
from isochrone.resolving.resolver import Resolver, resolver
from isochrone.wire.exchange import Exchange, Head, Headers, Route

if TYPE_CHECKING:
    from isochrone.gateway.fleet.commitment import Commitment
    from isochrone.gateway.fleet.member import Member
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.latencies.agents import Agent

_PREFIX = "isochrone_gateway_"
#: Name, help, attribute of a served model.
_COUNTERS = (
    ("requests", "Requests taken", "requests"),
    ("rejected", "Requests rejected here: no time, no worker, over quota", "rejected"),
    ("retries", "Attempts sent again to another worker", "retries"),
    ("retries_denied", "Retries the budget did not allow", "retries_denied"),
    ("hedges", "Second copies of slow requests", "hedges"),
    ("failures", "Attempts that broke", "failures"),
    ("suspects", "Requests in flight when a worker's process was lost", "suspects"),
    ("quarantines", "Requests that lost two workers' processes", "quarantines"),
    ("quarantine_rejections", "Requests rejected since they are identical to such a one", "quarantine_rejections"),
)
#: Counters that their decisions keep themselves, by name.
_DECISIONS = {
    "admission_moved": "Requests sent to another worker than the policy's, which would have been late",
    "admission_rejected": "Requests rejected because no worker would meet their deadline",
    "admission_probes": "Requests sent although they looked late, to refresh what is known of a worker",
    "tier_spills": "Requests sent past the nearest tier that has workers",
    "shadow_copies": "Copies sent to a shadow",
    "shadow_copies_left_out": "Copies that were not made because too many were in flight",
}
#: Models whose samples are rendered in one turn of the loop: some 0.25 ms each.
_MODELS_PER_PIECE = 1
#: The same of workers and committed versions, which have fewer samples each.
_PER_PIECE = 4
#: The same of agents, which have a histogram each.
_AGENTS_PER_PIECE = 2
#: Bytes of a page up to which it is written at once. A thousand models make 1.3 MB, which take 2 ms to write.
_WRITTEN_AT_ONCE = 131_072


class GatewayCollector(Collector):
    """Reads the gateway's state when the page is asked for: all at once, or in ``pieces``."""

    def __init__(
        self,
        gateway: Gateway,
        wire: Callable[[], WireSnapshot],
        names: Resolver = resolver,
        access_log: AccessLog | None = None,
    ) -> None:
        self._access_log = access_log
        self._gateway = gateway
        self._wire = wire
        self._resolver = names

    def collect(self) -> Iterator[Metric]:
        fleet = self._gateway.fleet
        models = list(fleet.models.values())
        yield from self._of_models(models)
        yield from duration_metrics(models)
        yield from agent_metrics(self._agents())
        yield from self._of_gateway(list(fleet.committed.items()), list(fleet.members.values()))

    def pieces(self) -> Iterator[Iterator[Metric]]:
        """The same families, each with the samples of a few models at a time."""
        models = list(self._gateway.fleet.models.values())
        for start in range(0, max(1, len(models)), _MODELS_PER_PIECE):
            yield self._of_models(models[start : start + _MODELS_PER_PIECE])
            yield duration_metrics(models[start : start + _MODELS_PER_PIECE])
        committed = list(self._gateway.fleet.committed.items()) if self._gateway.fleet.is_led else []
        for start in range(0, len(committed), _PER_PIECE):
            yield self._versions(committed[start : start + _PER_PIECE])
        members = list(self._gateway.fleet.members.values())
        for start in range(0, len(members), _PER_PIECE):
            yield self._workers(members[start : start + _PER_PIECE])
        agents = self._agents()
        for start in range(0, max(1, len(agents)), _AGENTS_PER_PIECE):
            yield agent_metrics(agents[start : start + _AGENTS_PER_PIECE])
        yield self._of_gateway((), ())

    def _of_models(self, models: Sequence[ServedModel]) -> Iterator[Metric]:
        for name, text, attribute in _COUNTERS:
            family = CounterMetricFamily(_PREFIX + name, text, labels=("model",))
            for served in models:
                family.add_metric((served.name,), getattr(served, attribute))
            yield family
        rejections = CounterMetricFamily(
            _PREFIX + "rejections",
            "Requests rejected by reason: the code of the gateway's error, or worker: no worker took it",
            labels=("model", "reason"),
        )
        for served in models:
            for reason, count in served.rejections.items():
                rejections.add_metric((served.name, reason), count)
        yield rejections
        yield from self._decisions(models)
        now = now_ns()
        quarantined = GaugeMetricFamily(
            _PREFIX + "quarantined", "Different requests that are rejected now", labels=("model",)
        )
        for served in models:
            rejected = self._gateway.machine.suspected.cases.quarantined(served.name, now)
            quarantined.add_metric((served.name,), rejected)
        yield quarantined
        waiting = GaugeMetricFamily(_PREFIX + "waiting", "Requests that wait for a worker now", labels=("model",))
        for served in models:
            waiting.add_metric((served.name,), self._gateway.machine.waiting.count(served.name))
        yield waiting

    def _of_gateway(self, committed: Sequence[tuple[str, Commitment]], members: Sequence[Member]) -> Iterator[Metric]:
        """``committed``, ``members``: those whose samples have not come yet."""
        gateway = self._gateway
        yield CounterMetricFamily(
            _PREFIX + "agent_replacements",
            "Agents that lost figures of their own to agents with more requests or misses",
            gateway.fleet.agents.replacements,
        )
        yield GaugeMetricFamily(_PREFIX + "in_flight", "Requests and streams under way", gateway.in_flight)
        yield from self._epochs(committed)
        yield self._store()
        yield from self._workers(members)
        yield from self._names()
        yield self._quotas()
        yield from wire_metrics(self._wire())
        yield from trace_metrics(None if gateway.tracing is None else gateway.tracing.snapshot())
        yield from access_log_metrics(None if self._access_log is None else self._access_log.snapshot())

    def _store(self) -> Metric:
        """Without a sample for a gateway that belongs to no fleet."""
        connected = GaugeMetricFamily(
            _PREFIX + "store_connected", "0: the store is unreachable, and the last epoch is served", labels=()
        )
        if self._gateway.store_connected is not None:
            connected.add_metric((), float(self._gateway.store_connected()))
        return connected

    def _quotas(self) -> Metric:
        """Of the tenants that the rules name; other callers, whom nobody has counted, share one label."""
        family = CounterMetricFamily(
            _PREFIX + "quota_rejections", "Requests over a quota, by the rules' tenants", labels=("tenant", "quota")
        )
        counts: Counter[tuple[str, str]] = Counter()
        for quotas in self._gateway.fleet.all_quotas():
            counts.update(quotas.rejections)
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        return family

    def _agents(self) -> list[Agent]:
        agents = self._gateway.fleet.agents
        return [agents.rest, *agents.tracked.values()] if agents.is_on else []

    def _names(self) -> Iterator[Metric]:
        """Of names that this process has looked up: of workers, and of the store."""
        resolves = GaugeMetricFamily(
            _PREFIX + "name_resolves", "0: lookups fail, and the last addresses are used", labels=("name",)
        )
        failures = CounterMetricFamily(_PREFIX + "name_lookup_failures", "Lookups that failed", labels=("name",))
        for state in self._resolver.states():
            resolves.add_metric((state.name,), float(not state.error))
            failures.add_metric((state.name,), state.failures)
        yield from (resolves, failures)

    def _decisions(self, models: Iterable[ServedModel]) -> Iterator[Metric]:
        """What admission, tiers, shadows and policies have decided."""
        families = {
            name: CounterMetricFamily(_PREFIX + name, text, labels=("model",)) for name, text in _DECISIONS.items()
        }
        policies = CounterMetricFamily(
            _PREFIX + "policy_decisions",
            "Decisions of the routing policy by kind",
            labels=("model", "version", "policy", "decision"),
        )
        divisions = CounterMetricFamily(
            _PREFIX + "division_requests",
            "Requests of divided models by the division that the gateway chose first",
            labels=("model", "division"),
        )
        for served in models:
            admission, shadow = served.admission, served.shadow
            values = {
                "admission_moved": admission.moved,
                "admission_rejected": admission.rejections,
                "admission_probes": admission.probes,
                "tier_spills": served.tiers.spilled,
                "shadow_copies": shadow.copied if shadow is not None else 0,
                "shadow_copies_left_out": shadow.left_out if shadow is not None else 0,
            }
            for name, value in values.items():
                families[name].add_metric((served.name,), value)
            if served.divisions is not None:
                for kind, count in served.divisions.requests.items():
                    divisions.add_metric((served.name, kind), count)
            counts: Counter[tuple[str, str, str]] = Counter()
            for (version, _), replica_set in served.replica_sets.items():
                for each in (replica_set, *replica_set.tiers):
                    policy = each.balancer.policy
                    for decision, count in policy.counts().items():
                        counts[version, policy.name, decision] += count
            for labels, count in counts.items():
                policies.add_metric((served.name, *labels), count)
        yield from (*families.values(), divisions, policies)

    def _epochs(self, committed: Sequence[tuple[str, Commitment]]) -> Iterator[Metric]:
        """Of a gateway that is led by a control plane."""
        fleet = self._gateway.fleet
        if not fleet.is_led:
            return
        yield GaugeMetricFamily(_PREFIX + "epoch", "The committed epoch that is served", fleet.epoch)
        yield from self._versions(committed)
        held = HistogramMetricFamily(_PREFIX + "hold_seconds", "How long requests were held by strict switches")
        held.add_metric((), fleet.hold_times.buckets(), fleet.hold_times.seconds)
        yield held

    def _versions(self, committed: Sequence[tuple[str, Commitment]]) -> Iterator[Metric]:
        versions = GaugeMetricFamily(_PREFIX + "version", "The committed version", labels=("model",))
        for name, each in committed:
            if each.version.isdigit():
                versions.add_metric((name,), int(each.version))
        yield versions

    def _workers(self, members: Sequence[Member]) -> Iterator[Metric]:
        now = now_ns()
        healthy = GaugeMetricFamily(_PREFIX + "worker_healthy", "1: takes requests", labels=("worker",))
        ejected = GaugeMetricFamily(_PREFIX + "worker_ejected", "1: left out as an outlier", labels=("worker",))
        in_flight = GaugeMetricFamily(_PREFIX + "worker_in_flight", "Requests from here", labels=("worker",))
        connections = GaugeMetricFamily(_PREFIX + "worker_connections", "Open connections", labels=("worker",))
        round_trips = GaugeMetricFamily(
            _PREFIX + "worker_round_trip_seconds",
            "Shortest time over the network and back, by the kernel",
            labels=("worker",),
        )
        foreign = CounterMetricFamily(
            _PREFIX + "worker_foreign_answers", "Answers that were not the protocol's", labels=("worker",)
        )
        for member in members:
            endpoint, address = member.endpoint, member.endpoint.address
            healthy.add_metric((address,), float(endpoint.healthy))
            ejected.add_metric((address,), float(endpoint.ejected_until > now))
            in_flight.add_metric((address,), endpoint.in_flight)
            connections.add_metric((address,), member.connections.open)
            round_trip = member.connections.round_trip(now)
            if round_trip is not None:
                round_trips.add_metric((address,), round_trip)
            foreign.add_metric((address,), member.foreign_answers)
        yield from (healthy, ejected, in_flight, connections, round_trips, foreign)


class GatewayMetricsApplication:
    """GET /metrics, for Prometheus."""

    def __init__(self, gateway: Gateway, wire: Callable[[], WireSnapshot], access_log: AccessLog | None = None) -> None:
        self._housekeeping = gateway.housekeeping
        self._collector = GatewayCollector(gateway, wire, access_log=access_log)
        self._process = ProcessCollector(registry=None)
        self._rendering = BackgroundTasks()
        self._pages = EvaluationPages(gateway.evaluations, gateway.sample, lambda: gateway.control_token)
        self._agents = AgentPage(lambda: agent_report(gateway.fleet.agents))
        self._figures = FiguresPages(gateway)

    def route(self, head: Head) -> Route:
        page = self._pages.route(head) or self._agents.route(head) or self._figures.route(head)
        if page is not None:
            return page
        error = error_unless_metrics(head)
        if error is not None:
            return error
        return _MetricsRoute(self, (head.get(b"accept") or b"").decode("latin-1"))

    def answer(self, exchange: Exchange, accept: str) -> None:
        self._rendering.start(self._answer(exchange, accept))

    async def _answer(self, exchange: Exchange, accept: str) -> None:
        try:
            body, content_type = await self._render(accept)
        except Exception as error:
            respond_unexpected(exchange, error)
            return
        headers = ((b"content-type", content_type.encode()),)
        if sum(map(len, body)) <= _WRITTEN_AT_ONCE:
            exchange.respond(200, headers, body)
        else:
            await self._housekeeping.do(_write(exchange, headers, body))

    async def families(self) -> list[Metric]:
        """What a page is made of, for another format; read a piece in each turn of the loop."""
        return await self._housekeeping.do(self._read_families())

    def _read_families(self) -> Steps[list[Metric]]:
        found: list[Metric] = []
        for piece in self._collector.pieces():
            found += piece
            yield
        return [*found, *self._process.collect()]

    async def _render(self, accept: str) -> tuple[list[bytes], str]:
        """(body, content type), rendered a piece in each turn of the loop."""
        encode, content_type = encoder(accept)
        return await self._housekeeping.do(self._put_together(MetricsPieces(encode))), content_type

    def _put_together(self, page: MetricsPieces) -> Steps[list[bytes]]:
        for piece in self._collector.pieces():
            page.add(piece)
            yield
        page.add(self._process.collect())
        body: list[bytes] = []
        for family in page.families():
            # A thousand pieces each: all of them together take some 3 ms.
            body.append(family)
            yield
        return body


def _write(exchange: Exchange, headers: Headers, body: Sequence[bytes]) -> Steps[None]:
    exchange.start(200, headers)
    for part in body:
        for start in range(0, len(part), _WRITTEN_AT_ONCE):
            exchange.write((part[start : start + _WRITTEN_AT_ONCE],))
            yield
    exchange.end()


class _MetricsRoute(Route):
    def __init__(self, application: GatewayMetricsApplication, accept: str) -> None:
        self._application = application
        self._accept = accept

    def handle(self, exchange: Exchange) -> None:
        self._application.answer(exchange, self._accept)
