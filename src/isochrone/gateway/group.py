"""One model behind a gateway: its rules, the lanes that lead to its versions, and what guards each request.

A ``Lane`` is one version: its targets and the balancer that chooses among them. A ``Group`` is the model: which version
"the model" means now, so that it never means two things; admission, retries, hedging, canary, affinity and quotas; and
the counts for the metrics page. Kept on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import structlog

from isochrone.clock import NEVER, now_ns
from isochrone.errors import IsochroneError, QueueFull, Unavailable
from isochrone.gateway.admission import UNTOLD, Admission
from isochrone.gateway.balancer import Balancer, Placement
from isochrone.gateway.grpc_messages import version_field
from isochrone.gateway.policies import make
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.resilience.breaker import Breaker
from isochrone.gateway.resilience.hedging import Hedging
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.resilience.retry_budget import Kind, retry_budget
from isochrone.gateway.sequences import Sequences
from isochrone.gateway.targets import Target
from isochrone.gateway.traffic.affinity import Affinity
from isochrone.gateway.traffic.canary import Canary
from isochrone.gateway.traffic.quotas import Quotas
from isochrone.gateway.traffic.rules import ModelRules
from isochrone.gateway.traffic.shadow import Shadow
from isochrone.gateway.traffic.tiers import NOBODY, UNKNOWN, Tiers

if TYPE_CHECKING:
    from isochrone.gateway.attempt import Attempt
    from isochrone.gateway.fleet import Fleet, Member
    from isochrone.gateway.forwarding import Forward
    from isochrone.wire.exchange import Head

log = structlog.get_logger()

#: How an attempt ended: with an answer (a caller's own mistake included), refused before it began (another worker may
#: take it), or broken.
ANSWERED, REFUSED, BROKEN = 0, 1, 2
#: Candidates an explanation lists.
_EXPLAINED = 16
#: Workers of a tier looked at to tell what it would take there.
_TIER_SAMPLE = 8


@runtime_checkable
class Alerting(Protocol):
    """A policy that watches itself and says when it gives up."""

    on_alert: Callable[[str], None] | None
    #: What its own budget of time is kept by.
    timer: Callable[[], int] | None


class Lane:
    """One version of one model, and who serves it."""

    __slots__ = ("balancer", "stamp", "targets", "tiers", "version", "whole")

    def __init__(self, version: str, balancer: Balancer) -> None:
        #: Stamped on every request that goes this way; "": nothing is stamped.
        self.version = version
        #: The same as a field of a gRPC message.
        self.stamp = version_field(version) if version else b""
        self.balancer = balancer
        self.targets: dict[str, Target] = {}
        #: Its parts by tier, nearest first, where tiers matter; and of a part, the whole.
        self.tiers: tuple[Lane, ...] = ()
        self.whole: Lane | None = None

    def update(self, members: Iterable[Member], model: str, now: int) -> None:
        """These members serve it; targets that stay keep what is known of them."""
        targets: dict[str, Target] = {}
        for member in members:
            address = member.upstream.address
            target = self.targets.get(address)
            if target is None or target.endpoint is not member.endpoint:
                target = Target(member.endpoint)
            target.digest = (member.serves or {}).get(model, {}).get(self.version, "")
            targets[address] = target
        if targets == self.targets:
            self.balancer.refresh(now)
        else:
            self.targets = targets
            self.balancer.update(list(targets.values()), now)
        for part in self.tiers:
            # The same targets: what is known of them is known in every part.
            part.targets = targets
            part.balancer.update(list(targets.values()), now)

    def refresh(self, now: int) -> None:
        """Health, ejections and slow start have moved on."""
        self.balancer.refresh(now)
        for part in self.tiers:
            part.balancer.refresh(now)


class Group:
    """One model."""

    def __init__(self, fleet: Fleet, name: str, rules: ModelRules, outliers: Outliers, random: Random) -> None:
        self.name = name
        self.rules = rules
        self._fleet = fleet
        self._outliers = outliers
        self._random = random
        self.admission = Admission(rules.admission)
        self.budget = retry_budget(rules.retries)
        self.hedging = Hedging(rules.hedge, random)
        self.affinity = Affinity(rules.affinity)
        self.sequences = Sequences()
        self.tiers = Tiers(rules.tiers)
        self.shadow = Shadow(rules.shadow, random) if rules.shadow.share else None
        self.canary = Canary(rules.canary, name, random) if rules.canary.version else None
        #: The gateway's own over all models, and this model's; mostly none.
        self.quotas = (*fleet.quotas, *((Quotas(rules.quota),) if rules.quota.enabled else ()))
        #: A deadline for requests that bring none, in ns; 0: none.
        self.deadline_ns = rules.deadline_ns
        self.priority = rules.priority
        #: What most requests are to a policy: no key, no deadline.
        self.plain_demand = Demand(priority=rules.priority)
        #: After how long a second copy may go, looked up ten times a second; 0: none does.
        self.hedge_delay_ns = 0
        self._hedges = rules.hedge.enabled and rules.retries.idempotent
        self._requests_seen = 0
        #: Of one model on one worker from here; 0: no limit.
        self.max_in_flight = rules.breaker.max_in_flight if rules.breaker.enabled else 0
        # For the metrics page.
        self.requests = self.refused = self.retries = self.retries_denied = self.hedges = self.failures = 0
        self.lanes: dict[str, Lane] = {}
        #: What a request without a version goes by.
        self.current = self.lane("")

    # Versions.

    def lane(self, version: str) -> Lane:
        """The way to one version; made when it is first asked for."""
        lane = self.lanes.get(version)
        if lane is None:
            if len(self.lanes) > 64:
                # Versions nobody serves, by callers who guess: a way of their own, which is not kept.
                lane = self._make_lane(version, self.rules.placement)
                lane.update(self._members(version), self.name, now_ns())
                return lane
            lane = self.lanes[version] = self._make_lane(version, self.rules.placement)
            parts = [
                self._make_lane(version, replace(self.rules.placement, tiers=(tier,))) for tier in self.tiers.names
            ]
            for part in parts:
                part.whole = lane
            lane.tiers = tuple(parts)
            lane.update(self._members(version), self.name, now_ns())
        return lane

    def _make_lane(self, version: str, placement: Placement) -> Lane:
        rules = self.rules
        policy = make(rules.policy, Random(self._random.random()), **rules.policy_options)
        if isinstance(policy, Alerting):
            policy.on_alert = self._alert
            policy.timer = now_ns
        return Lane(version, Balancer(policy, self._random, placement, rules.balancer))

    def _alert(self, reason: str) -> None:
        log.error("a policy raised an alert", model=self.name, reason=reason)

    def in_tier(self, lane: Lane, deadline: int, now: int) -> Lane:
        """The part of a lane a request goes by: the nearest tier that is expected to be in time."""
        index = self.tiers.choose([self._expected(part, now) for part in lane.tiers], deadline, now)
        return lane.tiers[index] if index >= 0 else lane

    def _expected(self, lane: Lane, now: int) -> float:
        """What a request would take in a tier, by a few of its workers."""
        eligible = lane.balancer.eligible
        if not eligible:
            return NOBODY
        known = [self.admission.expected_ns(target, now) for target in eligible[:_TIER_SAMPLE]]
        return min((expected for expected in known if expected != UNTOLD), default=UNKNOWN)

    def choose_lane(self, head: Head) -> Lane:
        """The version a request without one gets."""
        canary = self.canary
        if canary is None:
            return self.current
        agent = head.get(self._fleet.agent_header) or b""
        version = canary.version(agent, (head.get(canary.header) or b"") if canary.header else b"")
        return self.lane(version) if version else self.current

    def _members(self, version: str) -> list[Member]:
        members = list(self._fleet.members.values())
        found = [
            member
            for member in members
            if member.serves is None
            or (version in member.serves.get(self.name, ()) if version else bool(member.serves.get(self.name)))
        ]
        # Nobody is known to serve it: any server says so in its own words.
        return found or members

    def rebuild(self, now: int) -> None:
        """Members came or went, or serve something else than before."""
        self.current = self.lane(self._newest())
        for version, lane in list(self.lanes.items()):
            members = self._members(version)
            served = any(version in (member.serves or {}).get(self.name, ()) for member in members)
            if version and lane is not self.current and not served:
                del self.lanes[version]
                # Sequences that began on it have lost their home.
                lane.targets = {}
            else:
                lane.update(members, self.name, now)

    def _newest(self) -> str:
        """The version that "the model" means: the highest of those that most members have."""
        counts: dict[str, int] = {}
        for member in self._fleet.members.values():
            if not member.endpoint.healthy or member.endpoint.draining:
                continue
            if member.serves is None:
                return ""
            for version in member.serves.get(self.name, ()):
                counts[version] = counts.get(version, 0) + 1
        if not counts:
            return self.current.version
        return max(counts, key=lambda version: (counts[version], _number(version)))

    # Around one request.

    def affinity_key(self, head: Head) -> bytes:
        """What keeps a caller's requests together; empty: nothing does."""
        header = self.affinity.header
        return self.affinity.key(b"", head.get(header) or b"") if header else b""

    def enter(self, forward: Forward, head: Head, now: int) -> None:
        """Raises when the caller is over its quota."""
        granted: list[tuple[Quotas, bytes]] = []
        for quotas in self.quotas:
            key = head.get(quotas.header) or b""
            refusal = quotas.take(key, forward.demand.priority, now)
            if refusal is not None:
                for other, paid in granted:
                    other.undo(paid)
                raise QuotaExceeded(refusal.message, refusal.retry_after)
            granted.append((quotas, key))
        forward.granted = granted

    def leave(self, forward: Forward, now: int) -> None:
        """A request that was granted by quotas is over, however it ended."""
        granted, forward.granted = forward.granted, None
        for quotas, key in granted or ():
            quotas.ended(key, forward.compute_ns, now)

    def failed(self, target: Target, now: int, *, lost: bool) -> None:
        """An attempt broke. What is kept for trouble alone begins here: good answers cost nothing extra.

        ``lost``: no answer came. Only that is counted against the endpoint: a model that fails on some input must not
        take its worker from all other models.
        """
        self.failures += 1
        if target.breaker is None and self.rules.breaker.enabled:
            target.breaker = Breaker(self.rules.breaker)
        self._book(target)
        if not lost:
            return
        ejection = self._outliers.ended(target.endpoint, self.name, 0, True, now)
        if ejection is not None:
            self._fleet.ejected(ejection)

    def _book(self, target: Target) -> None:
        self._outliers.succeeded(target.endpoint, self.name, target.well, target.well_ns)
        target.well = target.well_ns = 0

    def tick(self, now: int) -> None:
        """Ten times a second: what was gathered since goes where it belongs."""
        self.budget.book(now)
        if self._hedges:
            self.hedging.gathered(self.requests - self._requests_seen, now)
            self._requests_seen = self.requests
            self.hedge_delay_ns = self.hedging.delay_ns(Kind.STATELESS, NEVER, now) or 0
        for lane in self.lanes.values():
            lane.refresh(now)
            for target in lane.targets.values():
                if target.well:
                    self._book(target)
                if target.breaker is not None and target.breaker.is_idle(now):
                    target.breaker = None

    def nobody(self, lane: Lane) -> IsochroneError:
        """Why a request for this lane can go nowhere."""
        if not self._fleet.members:
            return Unavailable("the gateway has no upstream; name one with --upstream host:port")
        states = "; ".join(
            f"{target.endpoint.address}: {lane.balancer.refusal(target) or 'unhealthy'}"
            for target in list(lane.balancer.targets)[:8]
        )
        return Unavailable(f"no worker can take a request for model '{self.name}' now ({states})")

    def explain(self, forward: Forward, attempt: Attempt) -> dict[str, Any]:
        """The decision in words, for ``x-isochrone-explain``."""
        now = now_ns()
        lane = attempt.lane
        return {
            "model": self.name,
            "version": lane.version,
            "policy": lane.balancer.policy.name,
            "worker": attempt.target.endpoint.address,
            "attempts": [target.endpoint.address for target in forward.tried],
            "time_left_ms": None if forward.deadline == NEVER else round((forward.deadline - now) / 1e6, 3),
            "panicking": lane.balancer.panicking,
            "workers": len(lane.balancer.targets),
            "candidates": _shown(lane.balancer.explain(forward.demand, attempt.target, now)),
        }


class QuotaExceeded(QueueFull):
    """A caller's quota is used up; ``retry_after`` in whole seconds."""

    code = "quota"
    retryable = False

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _shown(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What fits a header: the one that was chosen, and the first few others."""
    chosen = [row for row in candidates if row["chosen"]]
    return (chosen + [row for row in candidates if not row["chosen"]])[:_EXPLAINED]


def _number(version: str) -> int:
    return int(version) if version.isdigit() else -1
