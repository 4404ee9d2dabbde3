"""Which replicas of one model version are eligible, and which of them the policy chooses. Pure.

The same object runs in the gateway and in the simulator. Its callers keep time and do the sending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import LoadReport, Replica

#: Begins the digest of a server that reports none of its own: it is of the model's configuration.
CONFIG_DIGEST = "config-"


#: Why a worker gets no requests while others are well.
STANDING_BY = "standing by"
#: How long standby workers take requests that others could not answer in time: by then the control plane has put them
#: in their place, or the load has gone.
_LENT_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Placement:
    """What a model asks of a worker: a row of the routing table."""

    #: Bytes that must be free on the worker; 0: no matter.
    memory: int = 0
    #: "": any.
    device: str = ""
    #: In order of nearness; empty: any. Which of them a request may use is decided before the choice.
    tiers: tuple[str, ...] = ()
    #: Committed digest; "": whatever is served.
    digest: str = ""


@dataclass(frozen=True, slots=True)
class BalancerRules:
    """How the eligible set is kept."""

    #: When fewer than this share of replicas is healthy, health is ignored: better a doubtful worker than a dead herd.
    panic_threshold: float = 0.5
    #: A new worker's share of traffic grows to its full weight over this time.
    slow_start_ns: int = 5_000_000_000
    #: Share of its traffic a new worker begins with.
    slow_start_floor: float = 0.1


def is_committed(digest: str, committed: str) -> bool:
    """Whether what a server serves is what is committed.

    ``digest``: what its index says; "": it says none. A Triton says none, and what is committed of it is the digest of
    its configuration, which the controller has read.
    """
    return not committed or digest == committed or (not digest and committed.startswith(CONFIG_DIGEST))


class Balancer:
    """Replicas of one model, the policy that chooses among them, and who may be chosen at all."""

    def __init__(
        self,
        policy: Policy,
        random: Random,
        placement: Placement | None = None,
        rules: BalancerRules | None = None,
    ) -> None:
        self.policy = policy
        self.placement = placement or Placement()
        self.rules = rules or BalancerRules()
        self.replicas: Sequence[Replica] = ()
        #: Who may be chosen now.
        self.eligible: list[Replica] = []
        #: Health is being ignored.
        self.panicking = False
        self._random = random
        self._starting = False
        #: Standby replicas that are well, whether they stand in for others that are not, and until when they are lent;
        #: 0: they are not.
        self.spare: list[Replica] = []
        self.stands_in = False
        self._lent_until = 0
        #: When endpoints were looked at. A request may have arrived earlier: an ejection that has ended by then does
        #: not go on for it.
        self.looked_at = 0

    def update(self, replicas: Sequence[Replica], now: int) -> None:
        """The model is served by these from now on."""
        self.replicas = replicas
        self.refresh(now, changed=True)

    def refresh(self, now: int, *, changed: bool = False) -> None:
        """Looks again at who is eligible: after any change of health, and some ten times a second while one starts."""
        suited, well, spare = self._suited(now)
        enough = self.rules.panic_threshold * len(suited)
        self.spare = spare
        self.stands_in = bool(spare) and (len(well) < enough or not well)
        if self.stands_in or (spare and now < self._lent_until):
            # Standby workers are better than doubtful ones. The control plane puts them in place later.
            well += spare
            suited += spare
        self.panicking = len(well) < enough
        eligible = suited if self.panicking else well
        self._set_weights(eligible, now)
        if changed or eligible != self.eligible:
            self.eligible = eligible
            self.policy.replicas_changed(eligible)

    def _suited(self, now: int) -> tuple[list[Replica], list[Replica], list[Replica]]:
        """Replicas that can serve the model whatever their health, those of them that are well, and standby ones that
        are."""
        placement = self.placement
        digest = placement.digest
        # Of a thousand replicas nearly all pass the first tests: the reasons of the others are found by ``refusal``.
        is_particular = bool(placement.device or placement.tiers or placement.memory)
        suited: list[Replica] = []
        well: list[Replica] = []
        spare: list[Replica] = []
        for replica in self.replicas:
            endpoint = replica.endpoint
            is_doubtful = endpoint.draining or endpoint.standby or is_particular
            if (is_doubtful or (digest and replica.digest != digest)) and (refusal := self.refusal(replica)):
                if refusal == STANDING_BY and endpoint.healthy and endpoint.ejected_until <= now:
                    spare.append(replica)
                continue
            suited.append(replica)
            if endpoint.healthy and endpoint.ejected_until <= now:
                well.append(replica)
        return suited, well, spare

    def _set_weights(self, eligible: Sequence[Replica], now: int) -> None:
        """A new worker's share grows over time."""
        youngest = now - self.rules.slow_start_ns
        self._starting = False
        if not self.rules.slow_start_ns or all(replica.endpoint.joined_at <= youngest for replica in eligible):
            for replica in eligible:
                replica.weight = 1.0
            return
        weights = [self._weight(replica, now) for replica in eligible]
        # Beside the oldest: where all are new, as when a gateway starts, nobody has to be spared.
        most = max(weights, default=1.0)
        for replica, weight in zip(eligible, weights, strict=True):
            replica.weight = weight / most
            self._starting = self._starting or replica.weight < 1

    def refusal(self, replica: Replica) -> str:
        """Why a replica cannot serve the model whatever its health; "": it can."""
        endpoint, placement = replica.endpoint, self.placement
        if endpoint.draining:
            return "draining"
        if not is_committed(replica.digest, placement.digest):
            return f"digest {replica.digest[:12] or 'unknown'} is not the committed {placement.digest[:12]}"
        if placement.device and endpoint.device != placement.device:
            return f"device {endpoint.device or 'unknown'} is not {placement.device}"
        if placement.tiers and endpoint.tier not in placement.tiers:
            return f"tier {endpoint.tier or 'unknown'} is not one of {', '.join(placement.tiers)}"
        if placement.memory and 0 <= endpoint.free_memory < placement.memory:
            return f"{endpoint.free_memory >> 20} MiB free of {placement.memory >> 20} needed"
        return STANDING_BY if endpoint.standby else ""

    def _weight(self, replica: Replica, now: int) -> float:
        rules = self.rules
        age = now - replica.endpoint.joined_at
        if age >= rules.slow_start_ns or not rules.slow_start_ns:
            return 1.0
        return max(rules.slow_start_floor, age / rules.slow_start_ns)

    @property
    def can_lend(self) -> bool:
        """Whether there are standby replicas that others' requests could go to and do not yet."""
        return bool(self.spare) and not self.stands_in and not self._lent_until

    def lend(self, now: int) -> None:
        """Make standby replicas eligible for a while."""
        self._lent_until = now + _LENT_NS
        self.refresh(max(now, self.looked_at))

    # Per request.

    def choose(self, demand: Demand, now: int) -> Replica | None:
        """The replica a request goes to; None: nobody is eligible."""
        if self._lent_until and now >= self._lent_until:
            self._lent_until = 0
            self.refresh(max(now, self.looked_at))
        if len(self.eligible) < 2:
            return self.eligible[0] if self.eligible else None
        replica = self.policy.choose(demand, now)
        if self._starting and replica.weight < 1 and not demand.key and self._random.random() > replica.weight:
            # Slow start, whatever the policy: a part of what it gives a newcomer is chosen anew among the others.
            other = self.policy.choose(demand.avoiding((*demand.avoid, replica)), now)
            if other not in demand.avoid:
                # A newcomer is still better than one that was tried in vain.
                replica = other
        return replica

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        """An attempt ended without evidence about the replica; see ``Policy.dropped``."""
        replica.dropped()
        self.policy.dropped(replica, sent_at, now, unneeded=unneeded)

    def reported(self, replica: Replica, report: LoadReport, now: int) -> None:
        was_draining = replica.endpoint.draining
        replica.reported(report, now)
        self.policy.reported(replica, now)
        if replica.endpoint.draining != was_draining:
            self.refresh(now)

    def explain(self, demand: Demand, chosen: Replica | None, now: int) -> list[dict[str, Any]]:
        """Every replica, what is known of it, and why it was or was not the one."""
        eligible = set(map(id, self.eligible))
        rows: list[dict[str, Any]] = []
        for replica in self.replicas:
            endpoint = replica.endpoint
            reason = self.refusal(replica)
            if reason == STANDING_BY and id(replica) in eligible:
                reason = ""  # lent, or in the place of others
            if not reason and id(replica) not in eligible:
                reason = "unhealthy" if not endpoint.healthy else "ejected as an outlier"
            if not reason and replica in demand.avoid:
                reason = "tried already"
            rows.append(
                {
                    "endpoint": endpoint.address,
                    "chosen": replica is chosen,
                    "excluded": reason,
                    "in_flight": replica.in_flight,
                    "load": replica.load(now),
                    "expected_ms": round(replica.expected_ns(now) / 1e6, 3),
                    "report_age_ms": round((now - replica.reported_at) / 1e6, 1) if replica.reported_at else None,
                    "error_rate": round(replica.error_rate, 4),
                    "weight": round(replica.weight, 3),
                }
            )
        return rows
