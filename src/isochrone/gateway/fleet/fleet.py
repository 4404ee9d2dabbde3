"""The servers behind a gateway, and the models they serve. Kept on the loop's thread; monitors tell what changed.

There may be thousands of models on thousands of servers, and the loop must never be held for long. A change marks what
depends on it, in a time that does not depend on models times servers. A model takes the change before it places its
next request (``ServedModel.outdated``, ``endpoint_changes``). ``rebuilds`` and ``tick`` do the rest, a little per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random

import structlog

from isochrone.clock import now_ns
from isochrone.errors import NotFound
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.committed_epochs import CommittedEpochs
from isochrone.gateway.fleet.endpoint_changes import EndpointChanges
from isochrone.gateway.fleet.hold_times import HoldTimes
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.fleet.prepared_epoch import PreparedEpoch
from isochrone.gateway.fleet.rebuilds import Rebuilds
from isochrone.gateway.fleet.served_model import PolicyMaker, ServedModel, policy_of_rules
from isochrone.gateway.latencies.agents import AgentLatencies
from isochrone.gateway.replicas import Endpoint, EndpointReport, LoadReport, PendingReport
from isochrone.gateway.resilience.outliers import Ejection, Outliers
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.traffic.affinity import AGENT_HEADER
from isochrone.gateway.traffic.quota_ledger import QuotaLedger
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.gateway.traffic.quotas import Quotas
from isochrone.gateway.upstream.addresses import OUTSIDE, PLAIN, TLS, Upstream
from isochrone.gateway.upstream.connections import Connections
from isochrone.gateway.upstream.credential import Credential
from isochrone.observe.flights.messages import EJECTED, EPOCH
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.turn import Turn

log = structlog.get_logger(__name__)

#: Models a gateway keeps replica sets for; more are served without a replica set of their own.
_MAX_GROUPS = 10_000
#: Replicas looked at in one turn of the loop by ``tick``: some 0.4 µs each.
_TICKED_PER_TURN = 768
#: The index of a server that serves nothing: always the same one, so that what differs from it is found once.
_NOTHING: Mapping[str, Mapping[str, str]] = {}
#: Of so many ticks each model takes part in one, whether it has requests or not.
_TICKS = 100


class Fleet:
    """All members and all models."""

    def __init__(
        self,
        rules: GatewayRules,
        limits: WireLimits,
        outliers: Outliers,
        seed: int | None = None,
        *,
        clock: Callable[[], int] = now_ns,
        make_policy: PolicyMaker = policy_of_rules,
    ) -> None:
        self.rules = rules
        self.clock = clock
        self.make_policy = make_policy
        self.members: dict[str, Member] = {}
        self.models: dict[str, ServedModel] = {}
        #: What has changed about endpoints, for models that look.
        self.endpoint_changes = EndpointChanges()
        self.rebuilds = Rebuilds(clock, self.model)
        self._ticks = 0
        #: The last two indexes that were compared, and what differs.
        self._differed: tuple[object, object, Collection[str]] | None = None
        self.agent_header = AGENT_HEADER.encode()
        #: Latencies per agent, for the metrics page.
        self.agents = AgentLatencies(rules.agents)
        #: Over all models.
        #: What processes of this gateway share; None: it is one process.
        self._ledger: QuotaLedger | None = None
        #: Of all limits: this gateway's in its fleet.
        self._quota_share = 1.0
        self.quotas = self.make_quotas(rules.quota, "")
        #: Led by a control plane: what it has committed is served, and nothing else.
        self.is_led = False
        self.epochs = CommittedEpochs()
        #: The last of them, which every request asks for; 0: nothing is committed yet.
        self.epoch = 0
        #: Called with the kind of an event, when it began and ended, and a sentence: for the flight recorder.
        self.on_event: Callable[[str, int, int, str], None] | None = None
        #: Models that wait for a switch; and how long switches took that are over, for the metrics page.
        self.holding: frozenset[str] = frozenset()
        self.hold_times = HoldTimes()
        self._held_since = 0
        #: The listener's, where callers' and workers' connections take turns together.
        self.turn: Turn | None = None
        #: What connections to workers need; None: they have no TLS.
        self.upstream_tls: ClientTls | None = None
        #: Workers of the fleet that have no TLS yet get requests, too.
        self.permits_plain = False
        self._limits = limits
        #: Of questions to workers. Set before the first member is made.
        self.credential = Credential()
        self._outliers = outliers
        self._random = Random(seed)
        self._slow_start_ns, self._asks_memory = _endpoint_rules(rules)
        #: Serves names nobody has heard of, so that inventing names costs no memory.
        self.unknown = self._make_model("")

    def _make_model(self, name: str) -> ServedModel:
        return ServedModel(self, name, self.rules.of(name), self._outliers, Random(self._random.random()))

    def model(self, name: str) -> ServedModel:
        """The model of a name; names that nobody serves share one."""
        served = self.models.get(name)
        if served is not None:
            return served
        if not self.knows(name) or len(self.models) >= _MAX_GROUPS:
            if self.is_led and self.epoch:
                # Clients match the first words.
                raise NotFound(f"Request for unknown model: '{name[:200]}' is not found")
            return self.unknown
        served = self.models[name] = self._make_model(name)
        served.commitment = self.committed.get(name)
        if name in self.holding:
            served.is_held = True
        served.rebuild(self.clock())
        return served

    def knows(self, name: str) -> bool:
        """Whether anything is known of a model of this name."""
        if name in self.models:
            return True
        if self.is_led:
            return name in self.committed
        return name in self.rules.models or any(name in (member.serves or ()) for member in self.members.values())

    # What a control plane says.

    @property
    def committed(self) -> Mapping[str, Commitment]:
        return self.epochs.models

    def lead(self) -> None:
        """From now on what is committed is served, and until something is, nothing."""
        self.is_led = True
        self.rebuild()

    def prepare(self, committed: Mapping[str, Commitment]) -> Generator[None, None, PreparedEpoch]:
        """Find in steps what a commit will change; nothing changes yet."""
        return self.epochs.prepare(committed)

    def commit(self, epoch: int, committed: Mapping[str, Commitment], prepared: PreparedEpoch | None = None) -> None:
        """An epoch, in one turn of the loop: every request before it goes by the last one, every one after by this.

        ``prepared``: what ``prepare`` found; it counts unless another epoch has been committed since.
        """
        changed = self.epochs.commit(epoch, committed, prepared)
        self.epoch = epoch
        self._note(EPOCH, str(epoch))
        known = False
        unmade = []
        for name in changed:
            commitment = committed.get(name)
            served = self.models.get(name)
            if served is not None:
                served.commit(commitment)
                known = True
            elif commitment is not None:
                unmade.append(name)
            else:
                self.rebuilds.do_not_make(name)
        if known:
            self.rebuilds.outdate_ensembles()
        self.rebuilds.make(unmade)

    def hold(self, models: Iterable[str]) -> None:
        """Requests of these models that name no version wait until ``release``."""
        self.holding = frozenset(models)
        self._held_since = self.clock()
        for name, served in self.models.items():
            if name in self.holding and not served.is_held:
                served.hold(True)

    def release(self, now: int) -> None:
        """End the hold."""
        held = [served for served in self.models.values() if served.is_held]
        self.holding = frozenset()
        for served in held:
            served.hold(False)
        if held:
            self.hold_times.add((now - self._held_since) / 1e9)

    @property
    def has_quotas(self) -> bool:
        """Whether requests of any model may be over a quota."""
        rules = self.rules
        return bool(self.quotas) or any(each.quota.enabled for each in (rules.defaults, *rules.models.values()))

    def configure(self, rules: GatewayRules) -> None:
        """These are the rules from now on; models whose own did not change keep all they have learned."""
        before, self.rules = self.rules, rules
        self._slow_start_ns, self._asks_memory = _endpoint_rules(rules)
        if rules.outliers != before.outliers:
            self._outliers.configure(rules.outliers, self.clock())
        # Ejections and slow starts may have ended by it.
        self.endpoint_changes.states_changed()
        if rules.quota != before.quota:
            self.quotas = self.make_quotas(rules.quota, "")
        if rules.agents != before.agents:
            self.agents = AgentLatencies(rules.agents)
        for name, served in (("", self.unknown), *self.models.items()):
            if rules.of(name) != before.of(name) or rules.quota != before.quota:
                served.configure(rules.of(name))

    # Quotas.

    def make_quotas(self, rules: QuotaRules, model: str) -> tuple[Quotas, ...]:
        """``model``: whose; "": all models together."""
        return (Quotas(rules, model, self._ledger, self._quota_share),) if rules.enabled else ()

    def share_quotas(self, ledger: QuotaLedger) -> None:
        """Several processes are this gateway. Called before it serves."""
        self._ledger = ledger
        self.quotas = self.make_quotas(self.rules.quota, "")
        for served in self._served():
            served.configure(served.rules)

    def count_gateways(self, count: int) -> None:
        """So many processes of gateways are registered in the fleet: each has an equal part of all limits."""
        own = 1 if self._ledger is None else self._ledger.count
        share = min(1.0, own / max(1, count))
        if share == self._quota_share:
            return
        self._quota_share = share
        for quotas in self.all_quotas():
            quotas.set_share(share)

    def all_quotas(self) -> Iterator[Quotas]:
        """Those over all models, and each model's own."""
        yield from self.quotas
        for served in self._served():
            yield from served.own_quotas

    def _served(self) -> tuple[ServedModel, ...]:
        return (self.unknown, *self.models.values())

    # Members.

    def set_members(self, upstreams: Iterable[Upstream]) -> tuple[list[Member], list[Member]]:
        """These are the servers from now on; returns who is new and who went."""
        wanted = {upstream.address: upstream for upstream in upstreams}
        gone = [member for address, member in self.members.items() if wanted.get(address) != member.upstream]
        for member in gone:
            del self.members[member.endpoint.address]
            member.endpoint.healthy = False
            member.endpoint.removed = True
            self.endpoint_changes.forget(member.endpoint)
            self._outdate(member.serves, None)
        now = self.clock()
        new = [self.make_member(upstream, now) for address, upstream in wanted.items() if address not in self.members]
        for member in new:
            self.members[member.endpoint.address] = member
            self._outdate(None, member.serves)
        if new or gone:
            self.endpoint_changes.states_changed()
        return new, gone

    def make_member(self, upstream: Upstream, now: int) -> Member:
        """A server that nothing is sent to yet."""
        own = self.credential if upstream.is_of_fleet or not self.credential.is_internal else None
        tls, refusal = self.tls_of(upstream)
        connections = Connections(upstream, self._limits, self.turn, tls=tls, credential=own, refusal=refusal)
        member = Member(upstream, connections, now)
        if upstream.metrics_port:
            pages = replace(upstream, port=upstream.metrics_port)
            # Those of other servers are plain: a token that belongs to TLS does not go there.
            plain = own if tls is None else None
            member.metrics_connections = Connections(pages, self._limits, credential=plain)
        return member

    def tls_of(self, upstream: Upstream) -> tuple[ClientTls | None, str]:
        """How connections to a server are made, and why they are not; "": they are."""
        tls = self.upstream_tls
        if upstream.tls == TLS and tls is None:
            return None, "it speaks TLS, and this gateway has no --upstream-ca"
        if upstream.tls == PLAIN and tls is not None and not self.permits_plain:
            return None, "it speaks plain HTTP, and this gateway has --upstream-ca without --tls-permissive"
        return (None if upstream.tls in (PLAIN, OUTSIDE) else tls), ""

    @property
    def scheme(self) -> bytes:
        """Of requests to workers."""
        return b"http" if self.upstream_tls is None else b"https"

    # Changes.

    def rebuild(self) -> None:
        """Anything about what is served where may have changed."""
        self.unknown.outdate()
        for served in self.models.values():
            served.outdate()
        self.endpoint_changes.states_changed()

    def serves_changed(self, member: Member, serves: Mapping[str, Mapping[str, str]] | None) -> None:
        """A server's index was read, and differs from the last one."""
        before, member.serves = member.serves, serves
        self._outdate(before, serves)

    def health_changed(self, member: Member) -> None:
        """A server became healthy or drains, or does so no more."""
        self.endpoint_changes.states_changed()
        if self.is_led:
            # What is committed is served, whoever is healthy: nothing to look at, however many models a server has.
            return
        for name in member.serves or ():
            served = self.models.get(name)
            # Where nothing is committed, the version that most healthy servers have is served.
            if served is not None and not served.outdated and served.commitment is None:
                served.outdate()

    def set_standbys(self, addresses: Container[str]) -> None:
        """Members that get no requests until they are named no more. They are watched like all others."""
        for address, member in self.members.items():
            standby = address in addresses
            if member.endpoint.standby != standby:
                member.endpoint.standby = standby
                self.health_changed(member)

    def endpoint_lost(self, endpoint: Endpoint) -> None:
        """The process of an endpoint has ended."""
        endpoint.healthy = False
        self.endpoint_changed(endpoint)

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        """It is not healthy any more, or an answer said that it drains or does so no more."""
        member = self.members.get(endpoint.address)
        if member is not None and member.endpoint is endpoint:
            self.health_changed(member)

    def _outdate(
        self, before: Mapping[str, Mapping[str, str]] | None, after: Mapping[str, Mapping[str, str]] | None
    ) -> None:
        """One server's index was ``before`` and is ``after``: rebuild what depends on the difference."""
        if before is None and after is None:
            return
        if not self.is_led and (before is None or after is None):
            # What no server is known to serve goes to all whose index is known.
            self.rebuild()
            return
        for name in self._difference(before or _NOTHING, after or _NOTHING):
            served = self.models.get(name)
            if served is not None and not served.outdated:
                served.outdate()
        self.rebuilds.outdate_ensembles()

    def _difference(
        self, before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
    ) -> Collection[str]:
        """Models whose entries differ. A rollout changes the index of one server after the other in the same way."""
        known = self._differed
        if known is None or known[0] is not before or known[1] is not after:
            names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
            known = self._differed = before, after, names
        return known[2]

    # By the clock.

    def refresh(self, now: int) -> None:
        """Ten times a second while there are requests, else once a second: health, ejections and slow start have moved
        on; counts are collected."""
        for _ in self.tick(now):
            pass

    def tick(self, now: int) -> Generator[None, None, None]:
        """The same; yields between two turns of the loop."""
        self.look(now)
        self._ticks += 1
        looked = 0
        for place, served in enumerate((self.unknown, *self.models.values())):
            looked += 1
            if served.is_tick_due or place % _TICKS == self._ticks % _TICKS:
                served.tick(now)
                looked += 16 + sum(len(each.replicas) for each in served.replica_sets.values())
            if looked >= _TICKED_PER_TURN:
                looked = 0
                yield

    def look(self, now: int) -> None:
        """Models look again at which replicas are eligible, if anything about endpoints has changed."""
        endpoints = (member.endpoint for member in self.members.values())
        self.endpoint_changes.look(endpoints, now, self._slow_start_ns, memory=self._asks_memory)

    def ejected(self, ejection: Ejection) -> None:
        """An outlier was found."""
        log.warning("a worker is left out", worker=ejection.endpoint.address, reason=ejection.reason)
        self._note(EJECTED, f"{ejection.endpoint.address}: {ejection.reason}")
        self.endpoint_changes.states_changed()

    def _note(self, kind: str, detail: str) -> None:
        if self.on_event is not None:
            now = self.clock()
            self.on_event(kind, now, now, detail)

    def reported(self, member: Member, report: LoadReport, now: int) -> None:
        """A probe's answer: a report for every model there, of its server's load alone."""
        endpoint = member.endpoint
        was_draining, endpoint.draining = endpoint.draining, report.draining
        if report.free_memory >= 0:
            endpoint.free_memory = report.free_memory
        self.endpoint_changes.reported(EndpointReport(endpoint, report, now))
        if endpoint.draining != was_draining:
            self.health_changed(member)

    def pending_reported(self, member: Member, pending: Mapping[str, int], now: int) -> None:
        """A server's metrics page was read: how many requests of each model wait there, from everybody."""
        self.endpoint_changes.reported(PendingReport(member.endpoint, pending, now))

    @property
    def healthy(self) -> list[Member]:
        return [member for member in self.members.values() if member.endpoint.healthy]


def _endpoint_rules(rules: GatewayRules) -> tuple[int, bool]:
    """The longest slow start of any model, and whether any asks for free memory."""
    every = (rules.defaults, *rules.models.values())
    return max(each.balancer.slow_start_ns for each in every), any(each.placement.memory for each in every)
