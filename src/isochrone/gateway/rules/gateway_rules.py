"""All settings of a gateway's decisions, per model. Frozen; ``file`` reads and checks them.

A model that is not named has the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isochrone.gateway.latencies.agents import AgentRules
from isochrone.gateway.placement.admission import AdmissionRules
from isochrone.gateway.placement.balancer import BalancerRules, Placement
from isochrone.gateway.policies import DEFAULT
from isochrone.gateway.resilience.breaker import BreakerRules
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.resilience.outliers import OutlierRules
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.resilience.suspects import QuarantineRules
from isochrone.gateway.traffic.affinity import AffinityRules
from isochrone.gateway.traffic.canary import CanaryRules
from isochrone.gateway.traffic.divisions import DivisionRules
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.gateway.traffic.shadow import ShadowRules
from isochrone.gateway.traffic.tiers import TierRules
from isochrone.gateway.traffic.waiting_room import WaitingRoomRules
from isochrone.settings.ranges import Count, Duration


@dataclass(frozen=True, slots=True)
class ModelRules:
    """The rules of one model."""

    #: Name and options of the routing policy.
    policy: str = DEFAULT
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    #: The deadline of requests that have none, from their arrival on; 0: none.
    deadline_ns: Duration = 0
    #: The priority of requests that have none, 1 is the highest; 0: the worker's default.
    priority: Count = 0
    #: Requirements of a worker: free memory, device ("": any), digest of the version ("": any).
    memory_bytes: Count = 0
    device: str = ""
    digest: str = ""
    #: Eligibility: panic threshold and slow start.
    balancer: BalancerRules = field(default_factory=BalancerRules)
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    retries: RetryRules = field(default_factory=RetryRules)
    hedge: HedgeRules = field(default_factory=HedgeRules)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    quarantine: QuarantineRules = field(default_factory=QuarantineRules)
    affinity: AffinityRules = field(default_factory=AffinityRules)
    canary: CanaryRules = field(default_factory=CanaryRules)
    shadow: ShadowRules = field(default_factory=ShadowRules)
    #: Per caller for this model alone, in addition to the gateway's own quota.
    quota: QuotaRules = field(default_factory=QuotaRules)
    tiers: TierRules = field(default_factory=TierRules)
    division: DivisionRules = field(default_factory=DivisionRules)
    waiting_room: WaitingRoomRules = field(default_factory=WaitingRoomRules)

    @property
    def placement(self) -> Placement:
        """The model's row of the routing table."""
        return Placement(self.memory_bytes, self.device, self.tiers.order, self.digest)


@dataclass(frozen=True, slots=True)
class GatewayRules:
    """The rules of a gateway."""

    #: For models that are not named, and for keys that the named ones leave out.
    defaults: ModelRules = field(default_factory=ModelRules)
    models: Mapping[str, ModelRules] = field(default_factory=dict)
    #: An endpoint is ejected for all of its models.
    outliers: OutlierRules = field(default_factory=OutlierRules)
    #: Per caller over all models.
    quota: QuotaRules = field(default_factory=QuotaRules)
    #: Agents on the metrics page.
    agents: AgentRules = field(default_factory=AgentRules)

    def of(self, model: str) -> ModelRules:
        """The rules of one model."""
        return self.models.get(model, self.defaults)

    @property
    def has_waiting_rooms(self) -> bool:
        """Whether requests of some model wait while no worker is ready."""
        return any(each.waiting_room.max_requests for each in (self.defaults, *self.models.values()))

    def with_policy(self, policy: str) -> GatewayRules:
        """These rules with another policy for models that have the default policy."""
        known = self.defaults.policy
        models = {
            name: replace(rules, policy=policy, policy_options={}) if rules.policy == known else rules
            for name, rules in self.models.items()
        }
        return replace(self, defaults=replace(self.defaults, policy=policy, policy_options={}), models=models)
