"""The decision for one model on one gateway: who is eligible, and whom the policy takes of those. Pure.

The same object runs in the gateway and in the simulator. Its callers keep time and do the sending; they tell it of
every request sent and ended, and of every word from a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.targets import LoadReport, Target

#: Begins the digest of a server that reports none of its own: it is of the model's configuration.
CONFIG_DIGEST = "config-"


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

    #: When fewer than this share of targets is healthy, health is ignored: better a doubtful worker than a dead herd.
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
    """Targets of one model, the policy that chooses among them, and who may be chosen at all."""

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
        self.targets: Sequence[Target] = ()
        #: Who may be chosen now.
        self.eligible: list[Target] = []
        #: Health is being ignored.
        self.panicking = False
        self._random = random
        self._starting = False

    def update(self, targets: Sequence[Target], now: int) -> None:
        """The model is served by these from now on."""
        self.targets = targets
        self.refresh(now, changed=True)

    def refresh(self, now: int, *, changed: bool = False) -> None:
        """Looks again at who is eligible: after any change of health, and some ten times a second."""
        suited = [target for target in self.targets if self.refusal(target) == ""]
        well = [t for t in suited if t.endpoint.healthy and t.endpoint.ejected_until <= now]
        self.panicking = len(well) < self.rules.panic_threshold * len(suited)
        eligible = suited if self.panicking else well
        self._starting = False
        weights = [self._weight(target, now) for target in eligible]
        # Beside the oldest: where all are new, as when a gateway starts, nobody has to be spared.
        most = max(weights, default=1.0)
        for target, weight in zip(eligible, weights, strict=True):
            target.weight = weight / most
            self._starting = self._starting or target.weight < 1
        if changed or eligible != self.eligible:
            self.eligible = eligible
            self.policy.members(eligible)

    def refusal(self, target: Target) -> str:
        """Why a target cannot serve the model whatever its health; "": it can."""
        endpoint, placement = target.endpoint, self.placement
        if endpoint.draining:
            return "draining"
        if not is_committed(target.digest, placement.digest):
            return f"digest {target.digest[:12] or 'unknown'} is not the committed {placement.digest[:12]}"
        if placement.device and endpoint.device != placement.device:
            return f"device {endpoint.device or 'unknown'} is not {placement.device}"
        if placement.tiers and endpoint.tier not in placement.tiers:
            return f"tier {endpoint.tier or 'unknown'} is not one of {', '.join(placement.tiers)}"
        if placement.memory and 0 <= endpoint.free_memory < placement.memory:
            return f"{endpoint.free_memory >> 20} MiB free of {placement.memory >> 20} needed"
        return ""

    def _weight(self, target: Target, now: int) -> float:
        rules = self.rules
        age = now - target.endpoint.joined_at
        if age >= rules.slow_start_ns or not rules.slow_start_ns:
            return 1.0
        return max(rules.slow_start_floor, age / rules.slow_start_ns)

    # Per request.

    def choose(self, demand: Demand, now: int) -> Target | None:
        """The target a request goes to; None: nobody is eligible."""
        if len(self.eligible) < 2:
            return self.eligible[0] if self.eligible else None
        target = self.policy.choose(demand, now)
        if self._starting and target.weight < 1 and not demand.key and self._random.random() > target.weight:
            # Slow start, whatever the policy: a part of what it gives a newcomer is chosen anew among the others.
            again = Demand(demand.key, demand.deadline, demand.rows, demand.priority, (*demand.avoid, target))
            other = self.policy.choose(again, now)
            if other not in demand.avoid:
                # A newcomer is still better than one that was tried in vain.
                target = other
        return target

    def sent(self, target: Target, now: int) -> int:
        """A request goes to it; ``ended`` wants the returned load back."""
        load = target.sent()
        self.policy.sent(target, now)
        return load

    def ended(self, target: Target, load: int, latency_ns: int, failed: bool, now: int) -> None:
        target.ended(load, latency_ns, failed, now)
        self.policy.ended(target, latency_ns, failed, now)

    def dropped(self, target: Target, now: int) -> None:
        """A request is over and says nothing of the target."""
        target.dropped()
        self.policy.dropped(target, now)

    def reported(self, target: Target, report: LoadReport, now: int) -> None:
        was_draining = target.endpoint.draining
        target.reported(report, now)
        self.policy.reported(target, now)
        if target.endpoint.draining != was_draining:
            self.refresh(now)

    def explain(self, demand: Demand, chosen: Target | None, now: int) -> list[dict[str, Any]]:
        """Every target, what is known of it, and why it was or was not the one."""
        eligible = set(map(id, self.eligible))
        rows: list[dict[str, Any]] = []
        for target in self.targets:
            endpoint = target.endpoint
            reason = self.refusal(target)
            if not reason and id(target) not in eligible:
                reason = "unhealthy" if not endpoint.healthy else "ejected as an outlier"
            if not reason and target in demand.avoid:
                reason = "tried already"
            rows.append(
                {
                    "endpoint": endpoint.address,
                    "chosen": target is chosen,
                    "excluded": reason,
                    "in_flight": target.in_flight,
                    "load": target.load(now),
                    "expected_ms": round(target.expected_ns(now) / 1e6, 3),
                    "news_age_ms": round((now - target.reported_at) / 1e6, 1) if target.reported_at else None,
                    "error_rate": round(target.error_rate, 4),
                    "weight": round(target.weight, 3),
                }
            )
        return rows
