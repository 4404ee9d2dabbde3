"""One model behind a gateway: its rules, the replica sets that lead to its versions, and what guards each request.

Which version "the model" means now, so that it never means two things: the one a control plane has committed, or, where
there is none, the newest that most workers have. Beside that admission, retries, hedging, canary, affinity and quotas,
and the counts for the metrics page. Kept on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Protocol

import structlog

from isochrone.clock import NEVER
from isochrone.errors import IsochroneError, NotFound, NoWorkerReady, Unavailable
from isochrone.gateway.evaluation.counts import EvaluationCounts
from isochrone.gateway.fleet.alerting import Alerting
from isochrone.gateway.fleet.commitment import ANY_EPOCH, Commitment
from isochrone.gateway.fleet.committed_epochs import CommittedEpochs
from isochrone.gateway.fleet.endpoint_changes import EndpointChanges
from isochrone.gateway.fleet.rebuilds import Rebuilds
from isochrone.gateway.fleet.replica_set import ReplicaSet
from isochrone.gateway.fleet.sequences import Sequences
from isochrone.gateway.fleet.serving import newest, serving
from isochrone.gateway.fleet.unserved import has_server, nobody
from isochrone.gateway.latencies.version_durations import ModelDurations, VersionDurations
from isochrone.gateway.placement.admission import NO_ESTIMATE, Admission
from isochrone.gateway.placement.balancer import Balancer, Placement
from isochrone.gateway.policies import make, reads_prompts
from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import Replica
from isochrone.gateway.resilience.breaker import Breaker
from isochrone.gateway.resilience.hedging import Hedging
from isochrone.gateway.resilience.outliers import Ejection, Outliers
from isochrone.gateway.resilience.retry_budget import Kind, retry_budget
from isochrone.gateway.rules.gateway_rules import ModelRules
from isochrone.gateway.traffic.affinity import Affinity
from isochrone.gateway.traffic.canary import Canary
from isochrone.gateway.traffic.divisions import Divisions
from isochrone.gateway.traffic.fields import Fields
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.gateway.traffic.quotas import Quotas
from isochrone.gateway.traffic.shadow import Shadow
from isochrone.gateway.traffic.tiers import NOBODY, UNKNOWN, Tiers

if TYPE_CHECKING:
    from isochrone.gateway.fleet.member import Member

log = structlog.get_logger(__name__)

#: One answer in eight tells hedges how long answers take; one in 64 once they are sent.
_FIRST_LATENCIES, _LATER_LATENCIES = 7, 63
#: Reasons of rejections: workers rejected a request, and no other took it; and codes of errors. The metrics page has
#: these from the start: the rate of a series that begins with its first rejection misses that one.
_BY_WORKER = "worker"
_USUAL_REJECTIONS = ("deadline_exceeded", "queue_full", "unavailable", _BY_WORKER)
#: Workers of a tier looked at to tell what it would take there.
_TIER_SAMPLE = 8
#: Subsets of one version that are remembered.
_MOST_SUBSETS = 64


PolicyMaker = Callable[[ModelRules, Random], Policy]


class FleetOfModels(Protocol):
    """What a model knows of its fleet: members, the commitments of its control plane, what all models share."""

    quotas: tuple[Quotas, ...]
    clock: Callable[[], int]
    make_policy: PolicyMaker
    members: dict[str, Member]
    agent_header: bytes
    is_led: bool
    endpoint_changes: EndpointChanges
    rebuilds: Rebuilds
    epochs: CommittedEpochs

    def make_quotas(self, rules: QuotaRules, model: str) -> tuple[Quotas, ...]: ...

    def ejected(self, ejection: Ejection) -> None: ...


def policy_of_rules(rules: ModelRules, random: Random) -> Policy:
    """The routing policy that a model's rules name."""
    return make(rules.policy, random, **rules.policy_options)


class ServedModel:
    """One model."""

    def __init__(self, fleet: FleetOfModels, name: str, rules: ModelRules, outliers: Outliers, random: Random) -> None:
        self.name = name
        self._fleet = fleet
        self._outliers = outliers
        self._random = random
        self.sequences = Sequences()
        self._requests_seen = 0
        # For the metrics page.
        self.requests = self.rejected = self.retries = self.retries_denied = self.hedges = self.failures = 0
        self.suspects = self.quarantines = self.quarantine_rejections = 0
        #: By reason; those of the gateway are ``rejected`` as well.
        self.rejections = dict.fromkeys(_USUAL_REJECTIONS, 0)
        #: How long requests took.
        self.durations = ModelDurations()
        #: Some requests of it may be like one that cost a worker its process: each is looked at.
        self.suspected = False
        #: What a control plane has committed; None: there is none, or it has committed nothing of this model.
        self.commitment: Commitment | None = None
        #: A strict switch is in progress: requests without a version wait.
        self.is_held = False
        #: Requests wait for a worker: others stand behind them.
        self.has_waiting = False
        #: Counts of a canary and of what it is compared with; None: there is none.
        self.evaluation: EvaluationCounts | None = None
        #: By version, and the stages an ensemble is to run.
        self.replica_sets: dict[tuple[str, bytes], ReplicaSet] = {}
        #: What all requests without a version go by: nothing else has to be looked at. None: ``choose`` decides.
        self.plain: ReplicaSet | None = None
        #: ``rebuild`` is due: what is served where may have changed since the last one.
        self.outdated = False
        #: Attempts were in flight, or circuit breakers there, at the last ``tick``.
        self._is_busy = False
        self.configure(rules)
        self._current = self._make("", self._placement(""), b"")
        self.outdate()
        self._settle()

    def configure(self, rules: ModelRules) -> None:
        """These are its rules from now on. What was learned under others is forgotten."""
        random = self._random
        self.rules = rules
        #: How requests of a divided model run; None: its workers decide, or it is not divided.
        self.divisions = Divisions(rules.division) if rules.division.order else None
        self.admission = Admission(rules.admission, self.divisions)
        self.budget = retry_budget(rules.retries)
        self.hedging = Hedging(rules.hedge, random)
        self.affinity = Affinity(rules.affinity)
        self.tiers = Tiers(rules.tiers)
        self.shadow = Shadow(rules.shadow, random) if rules.shadow.share else None
        #: The gateway's own over all models, and this model's; mostly none.
        self.own_quotas = self._fleet.make_quotas(rules.quota, self.name)
        self.quotas = (*self._fleet.quotas, *self.own_quotas)
        self.counts_tokens = any(quotas.rules.counts_tokens for quotas in self.quotas)
        #: A deadline for requests that bring none, in ns; 0: none.
        self.deadline_ns = rules.deadline_ns
        self.priority = rules.priority
        #: What most requests are to a policy: no key, no deadline.
        self.plain_demand = Demand(priority=rules.priority)
        #: Its policy goes by the prompts of requests.
        self.reads_prompts = reads_prompts(rules.policy)
        #: After how long a second copy may go, looked up ten times a second; 0: none does.
        self.hedge_delay_ns = 0
        self._hedges = rules.hedge.enabled and rules.retries.idempotent
        #: Requests whose number has none of these bits tell hedges how long answers take; 0: none do.
        self.latency_mask = _FIRST_LATENCIES if self._hedges else 0
        #: Of one model on one worker from here; 0: no limit.
        self.max_in_flight = rules.breaker.max_in_flight if rules.breaker.enabled else 0
        if self.replica_sets:
            # The rules name other policies.
            self.replica_sets.clear()
            self.outdate()

    def _settle(self) -> None:
        """What follows from the commitment, the rules and a switch under way."""
        committed = self.commitment
        rules = self.rules.canary if committed is None else committed.canary
        self.canary = Canary(rules, self.name, self._random) if rules is not None and rules.version else None
        if rules is None or not rules.version:
            self.evaluation = None
        else:
            stable = rules.stable or self._current.version
            if self.evaluation is None or (self.evaluation.stable, self.evaluation.canary) != (stable, rules.version):
                self.evaluation = EvaluationCounts(stable, rules.version)
        is_plain = self.canary is None and not (self.is_held or self.has_waiting)
        is_plain = is_plain and (committed is not None or not self._fleet.is_led)
        self.plain = self._current if is_plain and not self.outdated else None

    # Versions.

    @property
    def current(self) -> ReplicaSet:
        """What a request without a version goes by."""
        if self.outdated:
            self.rebuild(self._fleet.clock())
        return self._current

    def outdate(self) -> None:
        """Members came or went or serve something else than before, or something else is committed.

        Whoever looks next at what is served where rebuilds it first, or ``Rebuilds.steps`` does.
        """
        self.outdated = True
        self.plain = None
        self._fleet.rebuilds.add(self)

    def commit(self, commitment: Commitment | None) -> None:
        """What a control plane has committed, in one step: requests before it go by the last, those after by this."""
        self.commitment = commitment
        self.outdate()
        if self.canary is not None or commitment is None or commitment.canary is not None:
            # What is counted of a canary begins now. All else follows with ``rebuild``: thousands may be committed.
            self._settle()

    def hold(self, is_held: bool) -> None:
        """Requests without a version wait from now on, or go on."""
        self.is_held = is_held
        self._settle()

    def set_waiting(self, has_waiting: bool) -> None:
        """Requests wait for a worker from now on, or none does any more."""
        if self.has_waiting != has_waiting:
            self.has_waiting = has_waiting
            self._settle()

    def replica_set(self, version: str) -> ReplicaSet:
        """The way to a version that a caller asks for."""
        if self.outdated:
            self.rebuild(self._fleet.clock())
        if self._fleet.is_led:
            committed = self.commitment
            if committed is None or version not in committed.digests:
                raise self._not_committed(version)
            return self._way(version, committed.stages.get(version, b""))
        return self._way(version)

    def _not_committed(self, version: str) -> IsochroneError:
        if not self._fleet.epochs.last:
            return Unavailable("this gateway does not know yet what its fleet has committed; try again")
        # Clients match the first words.
        if self.commitment is None:
            return NotFound(f"Request for unknown model: '{self.name}' is not found")
        return NotFound(
            f"Request for unknown model: '{self.name}' version {version} is not found: committed are "
            f"{', '.join(sorted(self.commitment.digests))}"
        )

    def _way(self, version: str, stages: bytes = b"") -> ReplicaSet:
        """Made when it is first asked for."""
        replica_set = self.replica_sets.get((version, stages))
        if replica_set is None:
            placement = self._placement(version)
            replica_set = self._make(version, placement, stages)
            if len(self.replica_sets) > 64:
                # Versions nobody serves, by callers who guess: a way of their own, which is not kept.
                replica_set.update(self._members(version, stages), self._fleet.clock())
                return replica_set
            self.replica_sets[version, stages] = replica_set
            if stages:
                self._fleet.rebuilds.add_ensemble(self)
            parts = [self._make(version, replace(placement, tiers=(tier,)), stages) for tier in self.tiers.names]
            for part in parts:
                part.whole = replica_set
            replica_set.tiers = tuple(parts)
            replica_set.update(self._members(version, stages), self._fleet.clock())
        return replica_set

    def _placement(self, version: str) -> Placement:
        """The model's row of the routing table; a committed version's digest stands in it."""
        placement = self.rules.placement
        digest = self._fleet.epochs.digest(self.name, version)
        return replace(placement, digest=digest) if digest else placement

    def _make(self, version: str, placement: Placement, stages: bytes) -> ReplicaSet:
        rules = self.rules
        policy = self._fleet.make_policy(rules, Random(self._random.random()))
        if isinstance(policy, Alerting):
            policy.on_alert = policy.on_alert or self._alert
            policy.timer = self._fleet.clock
        balancer = Balancer(policy, self._random, placement, rules.balancer)
        durations = self._durations(version)
        return ReplicaSet(self.name, version, balancer, self._fleet.endpoint_changes, stages, durations)

    def _durations(self, version: str) -> VersionDurations:
        """Where the durations of a version are counted: callers may name versions that nobody serves.

        One that was served is known: in an outage, its series go on.
        """
        known = self.durations.known(version)
        if known is not None:
            return known
        members = self._fleet.members.values()
        is_committed = self.commitment is not None and version in self.commitment.digests
        if is_committed or any(version in (member.serves or {}).get(self.name, ()) for member in members):
            return self.durations.of(version, {known for known, _ in self.replica_sets})
        return self.durations.other

    def _alert(self, reason: str) -> None:
        log.error("a policy raised an alert", model=self.name, reason=reason)

    def in_tier(self, replica_set: ReplicaSet, deadline: int, now: int) -> ReplicaSet:
        """The part of a replica set a request goes by: the nearest tier that is expected to be in time."""
        index = self.tiers.choose([self._expected(part, now) for part in replica_set.tiers], deadline, now)
        return replica_set.tiers[index] if index >= 0 else replica_set

    def within(self, replica_set: ReplicaSet, addresses: frozenset[str], now: int) -> ReplicaSet:
        """The part of a replica set with these endpoints. Tiers do not count there: the caller has chosen."""
        made_from, part = replica_set.subsets.get(addresses, (None, None))
        if part is None:
            part = self._make(replica_set.version, replica_set.balancer.placement, replica_set.stages)
            # Of few endpoints, that most are unhealthy says nothing of the health checks.
            part.balancer.rules = replace(part.balancer.rules, panic_threshold=0.0)
        placement = replica_set.balancer.placement
        if made_from is not replica_set.replicas or part.balancer.placement is not placement:
            part.replicas = {each: replica for each, replica in replica_set.replicas.items() if each in addresses}
            part.balancer.placement = placement
            part.balancer.update(list(part.replicas.values()), max(now, part.endpoint_changes.looked_at))
            if len(replica_set.subsets) >= _MOST_SUBSETS:
                replica_set.subsets.clear()
            replica_set.subsets[addresses] = replica_set.replicas, part
        if part.seen != part.endpoint_changes.revision:
            part.catch_up(now)
        return part

    def _expected(self, replica_set: ReplicaSet, now: int) -> float:
        """What a request would take in a tier, by a few of its workers."""
        eligible = replica_set.balancer.eligible
        if not eligible:
            return NOBODY
        known = [self.admission.expected_ns(replica, now) for replica in eligible[:_TIER_SAMPLE]]
        return min((expected for expected in known if expected != NO_ESTIMATE), default=UNKNOWN)

    def choose(self, head: Fields, epoch: bytes | None = None) -> ReplicaSet:
        """The version a request without one gets. ``epoch``: the one it asks to be served by."""
        if self.outdated:
            self.rebuild(self._fleet.clock())
        committed = self.commitment
        canary = self.canary
        if epoch is not None and epoch != ANY_EPOCH and self._fleet.is_led:
            committed = self._fleet.epochs.at(epoch, self.name)
            rules = committed.canary
            canary = Canary(rules, self.name, self._random) if rules is not None else None
        if committed is None:
            if self._fleet.is_led:
                raise self._not_committed("")
            version, current = "", self.current
        else:
            version, current = committed.version, self._way(committed.version, _stages(committed))
        if canary is None:
            return current
        agent = head.get(self._fleet.agent_header) or b""
        tried = canary.version(agent, (head.get(canary.header) or b"") if canary.header else b"")
        if not tried or tried == version:
            return current
        return self._way(tried, _stages(committed, tried))

    def _members(self, version: str, stages: bytes = b"") -> list[Member]:
        fleet = self._fleet
        found = serving(fleet.members.values(), self.name, version, stages, fleet.epochs.digest)
        if found or fleet.is_led:
            # What is committed waits for its workers.
            return found
        # No server is known to serve it: any that is known to speak the protocol says so in its own words.
        return [member for member in fleet.members.values() if member.serves is not None]

    def rebuild(self, now: int) -> None:
        """Look again at which members serve which version."""
        self.outdated = False
        self._fleet.rebuilds.done(self)
        committed = self.commitment
        before = set(self.replica_sets)
        if committed is not None:
            self._current = self._way(committed.version, _stages(committed))
        else:
            found = newest(self._fleet.members.values(), self.name)
            self._current = self._way(self._current.version if found is None else found)
        if self._current.version:
            self.durations.usual = self._durations(self._current.version)
        self._settle()
        kept = self._fleet.epochs.replica_sets(self.name)
        for version, stages in before:
            replica_set = self.replica_sets[version, stages]
            members = self._members(version, stages)
            if self._fleet.is_led:
                served = (version, stages) in kept
            else:
                served = not version or any(version in (member.serves or {}).get(self.name, ()) for member in members)
            if replica_set is not self._current and not served:
                del self.replica_sets[version, stages]
                # Sequences that began on it have lost their home.
                for one in (replica_set, *replica_set.tiers):
                    one.replicas = {}
            else:
                self._place_replica_set(replica_set)
                replica_set.update(members, now)

    def _place_replica_set(self, replica_set: ReplicaSet) -> None:
        """What was not known when the replica set was made may be known now: its digest, or that somebody serves it."""
        durations = self._durations(replica_set.version)
        digest = self._fleet.epochs.digest(self.name, replica_set.version)
        for one in (replica_set, *replica_set.tiers):
            one.durations = durations
            if one.balancer.placement.digest != digest and digest:
                one.balancer.placement = replace(one.balancer.placement, digest=digest)

    # Around one request.

    def affinity_key(self, head: Fields) -> bytes:
        """What keeps a caller's requests together; empty: nothing does."""
        header = self.affinity.header
        return self.affinity.key(b"", head.get(header) or b"") if header else b""

    def reject(self, error: IsochroneError) -> None:
        """Count a request that the gateway rejects."""
        self.rejected += 1
        self.rejections[error.code] = self.rejections.get(error.code, 0) + 1

    def rejected_by_worker(self) -> None:
        """Count a request whose answer is a worker's rejection."""
        self.rejections[_BY_WORKER] += 1

    def failed(self, replica: Replica, now: int, *, lost: bool) -> None:
        """An attempt broke. What is kept for trouble alone begins here: good answers cost nothing extra.

        ``lost``: no answer came. Only that is counted against the endpoint: a model that fails on some input must not
        take its worker from all other models.
        """
        self.failures += 1
        if replica.breaker is None and self.rules.breaker.enabled:
            replica.breaker = Breaker(self.rules.breaker)
        self._book(replica)
        if not lost:
            return
        ejection = self._outliers.ended(replica.endpoint, self.name, 0, True, now)
        if ejection is not None:
            self._fleet.ejected(ejection)

    def _book(self, replica: Replica) -> None:
        self._outliers.succeeded(replica.endpoint, self.name, replica.well, replica.well_ns)
        replica.well = replica.well_ns = 0

    @property
    def is_tick_due(self) -> bool:
        """Requests have come since the last ``tick``, or were under way then."""
        return self._is_busy or self.budget.unbooked > 0

    def tick(self, now: int) -> None:
        """Ten times a second while there are requests: what was gathered since goes where it belongs."""
        self.budget.book(now)
        if self._hedges:
            self.hedging.sent(self.requests - self._requests_seen, now)
            self._requests_seen = self.requests
            self.hedge_delay_ns = self.hedging.delay_ns(Kind.STATELESS, NEVER, now) or 0
            if self.hedge_delay_ns:
                self.latency_mask = _LATER_LATENCIES
        self._is_busy = False
        for replica_set in self.replica_sets.values():
            for replica in replica_set.replicas.values():
                if replica.well:
                    self._book(replica)
                if replica.breaker is not None:
                    if replica.breaker.is_idle(now):
                        replica.breaker = None
                    else:
                        self._is_busy = True
                if replica.in_flight:
                    self._is_busy = True

    def unserved(self, replica_set: ReplicaSet) -> str:
        """Why a request for this replica set would not be answered now; "": it would.

        A healthy replica that can serve the model is enough: where outlier ejection leaves too few, it is ignored.
        """
        return "" if has_server(replica_set, self._fleet.clock()) else self.nobody(replica_set).message

    def nobody(self, replica_set: ReplicaSet) -> NoWorkerReady:
        """Why a request for this replica set can go nowhere."""
        return nobody(self.name, replica_set, self._fleet.members, is_led=self._fleet.is_led)


def _stages(committed: Commitment | None, version: str = "") -> bytes:
    """The stages an ensemble's version is to run; empty: it has none."""
    return committed.stages.get(version or committed.version, b"") if committed is not None else b""
