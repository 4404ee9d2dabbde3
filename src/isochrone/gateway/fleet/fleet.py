"""The servers behind a gateway, and the models they serve. Kept on the loop's thread; monitors tell what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random

import structlog

from isochrone.clock import now_ns
from isochrone.errors import InvalidArgument, NotFound, Unavailable
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.hold_times import HoldTimes
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.fleet.served_model import PolicyMaker, ServedModel, policy_of_rules
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.resilience.outliers import Ejection, Outliers
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.traffic.affinity import AGENT_HEADER
from isochrone.gateway.traffic.quotas import Quotas
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.gateway.upstream.connections import Connections
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.turn import Turn

log = structlog.get_logger()

#: Epochs that callers may ask for, and whose versions keep their replica sets.
_EPOCHS_KEPT = 2
#: Models a gateway keeps replica sets for; more are served without a replica set of their own.
_MAX_GROUPS = 10_000


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
        self.agent_header = AGENT_HEADER.encode()
        #: Over all models.
        self.quotas: tuple[Quotas, ...] = (Quotas(rules.quota),) if rules.quota.enabled else ()
        #: Led by a control plane: what it has committed is served, and nothing else.
        self.is_led = False
        #: By epoch, the last one last: what is committed of each model. Of the one before, requests may still be under
        #: way, and callers may ask for it.
        self.epochs: dict[int, Mapping[str, Commitment]] = {}
        #: Models that wait for a switch; and how long switches took that are over, for the metrics page.
        self.holding: frozenset[str] = frozenset()
        self.hold_times = HoldTimes()
        self._held_since = 0
        #: The listener's, where callers' and workers' connections take turns together.
        self.turn: Turn | None = None
        self._limits = limits
        self._outliers = outliers
        self._random = Random(seed)
        #: Serves names nobody has heard of, so that inventing names costs no memory.
        self.unknown = self._make_model("")

    def _make_model(self, name: str) -> ServedModel:
        return ServedModel(self, name, self.rules.of(name), self._outliers, Random(self._random.random()))

    def model(self, name: str) -> ServedModel:
        """The model of a name; names that nobody serves share one."""
        served = self.models.get(name)
        if served is not None:
            return served
        if self.is_led:
            known = name in self.committed
        else:
            known = name in self.rules.models or any(name in (member.serves or ()) for member in self.members.values())
        if not known or len(self.models) >= _MAX_GROUPS:
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

    # What a control plane says.

    @property
    def epoch(self) -> int:
        """0: nothing is committed yet."""
        return next(reversed(self.epochs), 0)

    @property
    def committed(self) -> Mapping[str, Commitment]:
        return self.epochs.get(self.epoch, {})

    def lead(self) -> None:
        """From now on what is committed is served, and until something is, nothing."""
        self.is_led = True
        self.rebuild()

    def commit(self, epoch: int, committed: Mapping[str, Commitment]) -> None:
        """An epoch, in one turn of the loop: every request before it goes by the last one, every one after by this."""
        # Last, whatever its number: it is what holds from now on.
        self.epochs.pop(epoch, None)
        self.epochs[epoch] = committed
        while len(self.epochs) > _EPOCHS_KEPT:
            del self.epochs[next(iter(self.epochs))]
        now = self.clock()
        for name in committed:
            self.model(name)
        for name, served in self.models.items():
            served.commit(committed.get(name), now)

    def committed_digest(self, model: str, version: str) -> str:
        """What a worker must serve as a version; "": whatever it does."""
        for epoch in reversed(self.epochs.values()):
            commitment = epoch.get(model)
            if commitment is not None and version in commitment.digests:
                return commitment.digests[version]
        return ""

    def committed_replica_sets(self, model: str) -> set[tuple[str, bytes]]:
        """Versions, with their stages, that requests may still go by."""
        return {
            (version, commitment.stages.get(version, b""))
            for epoch in self.epochs.values()
            if (commitment := epoch.get(model)) is not None
            for version in commitment.digests
        }

    def committed_at(self, epoch: bytes, model: str) -> Commitment:
        """What an epoch that a caller has seen says of a model."""
        text = epoch[:20].decode("latin-1")
        if not epoch.isdigit() or len(epoch) > 18:
            raise InvalidArgument(f"x-isochrone-epoch: expected a number or 'current', given '{text}'")
        number = int(epoch)
        if number not in self.epochs:
            kept = " and ".join(map(str, self.epochs)) or "none"
            if number > self.epoch:
                raise Unavailable(f"epoch {text} has not reached this gateway yet, which serves {kept}; try again")
            raise NotFound(f"epoch {text} is not served any more; this gateway serves {kept}")
        commitment = self.epochs[number].get(model)
        if commitment is None:
            raise NotFound(f"Request for unknown model: '{model}' is not found in epoch {number}")
        return commitment

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
        if rules.outliers != before.outliers:
            self._outliers.configure(rules.outliers, self.clock())
        if rules.quota != before.quota:
            self.quotas = (Quotas(rules.quota),) if rules.quota.enabled else ()
        for name, served in (("", self.unknown), *self.models.items()):
            if rules.of(name) != before.of(name) or rules.quota != before.quota:
                served.configure(rules.of(name))

    # Members.

    def set_members(self, upstreams: Iterable[Upstream]) -> tuple[list[Member], list[Member]]:
        """These are the servers from now on; returns who is new and who went."""
        wanted = {upstream.address: upstream for upstream in upstreams}
        gone = [member for address, member in self.members.items() if wanted.get(address) != member.upstream]
        for member in gone:
            del self.members[member.upstream.address]
            member.endpoint.healthy = False
            member.endpoint.removed = True
        now = self.clock()
        new = [self.make_member(upstream, now) for address, upstream in wanted.items() if address not in self.members]
        for member in new:
            self.members[member.upstream.address] = member
        if new or gone:
            self.rebuild()
        return new, gone

    def make_member(self, upstream: Upstream, now: int) -> Member:
        """A server that nothing is sent to yet."""
        member = Member(upstream, Connections(upstream, self._limits, self.turn), now)
        if upstream.metrics_port:
            pages = replace(upstream, port=upstream.metrics_port)
            member.metrics_connections = Connections(pages, self._limits)
        return member

    def rebuild(self) -> None:
        """What is served where has changed."""
        now = self.clock()
        for served in (self.unknown, *self.models.values()):
            served.rebuild(now)

    def refresh(self, now: int) -> None:
        """Health, ejections and slow start have moved on."""
        for served in (self.unknown, *self.models.values()):
            served.tick(now)

    def ejected(self, ejection: Ejection) -> None:
        """An outlier was found."""
        log.warning("a worker is left out", worker=ejection.endpoint.address, reason=ejection.reason)
        self.refresh(self.clock())

    def reported(self, member: Member, report: LoadReport, now: int) -> None:
        """A probe's answer: news for every model there, of its server's load alone."""
        address = member.upstream.address
        was_draining = member.endpoint.draining
        for served in self.models.values():
            for replica_set in served.replica_sets.values():
                replica = replica_set.replicas.get(address)
                if replica is not None:
                    # A probe reports no times of a model: those of the last answer are kept. The wait is a time from
                    # then on, so what has passed of it is over; a probe must not make it new.
                    known = replica.report
                    wait_ns = max(0, known.wait_ns - (now - replica.reported_at)) if report.queue else 0
                    kept = report._replace(wait_ns=wait_ns, run_ns=known.run_ns, alone_ns=known.alone_ns)
                    replica_set.balancer.reported(replica, kept, now)
                    for part in replica_set.tiers:
                        part.balancer.policy.reported(replica, now)
        if member.endpoint.draining != was_draining:
            # A replica set notices the change only if the report reached it first.
            self.refresh(now)

    def pending_reported(self, member: Member, pending: Mapping[str, int], now: int) -> None:
        """A server's metrics page was read: how many requests of each model wait there, from everybody."""
        address = member.upstream.address
        everybody = sum(pending.values())
        for model, served in self.models.items():
            for replica_set in served.replica_sets.values():
                replica = replica_set.replicas.get(address)
                if replica is not None:
                    waiting = pending.get(model, 0)
                    in_flight = max(replica.endpoint.in_flight, everybody)
                    replica_set.balancer.reported(replica, LoadReport(in_flight, waiting), now)

    @property
    def healthy(self) -> list[Member]:
        return [member for member in self.members.values() if member.endpoint.healthy]
