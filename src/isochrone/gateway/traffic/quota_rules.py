"""The limits of callers as a rules file gives them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.gateway.traffic.affinity import AGENT_HEADER
from isochrone.settings.ranges import Amount, Count, Duration, Positive, Share

#: What an account stands for: a proved identity or its tenant, or the value of a header that the caller writes.
BY_IDENTITY, BY_HEADER = "identity", "header"


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """The limits of one account."""

    #: Requests per second of one caller; 0: no limit.
    rate: Amount = 0.0
    #: Requests a caller may send at once after it was idle.
    burst: Positive = 10
    #: Requests of one caller in flight at once; 0: no limit.
    concurrency: Count = 0
    #: Seconds of compute one caller may use per second; 0: no limit. Charged after the answer, so a long request is
    #: never interrupted: the next ones are rejected.
    compute_share: Amount = 0.0
    #: Compute a caller may use at once after it was idle.
    compute_burst_ns: Duration = 1_000_000_000
    #: Tokens of prompts and answers per second of one caller; 0: no limit. Charged like compute.
    token_rate: Amount = 0.0
    #: Tokens a caller may use at once after it was idle.
    token_burst: Positive = 1000

    @property
    def limits_callers(self) -> bool:
        return bool(self.rate or self.concurrency or self.compute_share or self.token_rate)


@dataclass(frozen=True, slots=True)
class QuotaRules(CallerLimits):
    """The limits of one caller, and of all together. Requests without a caller's name share one account."""

    #: Whose accounts they are: ``identity``, ``header``; "": identities where there is an access file, else headers.
    by: str = ""
    #: The header with the caller's name, where accounts go by it: ``x-agent-id`` for agents, or a tenant's header.
    header: str = AGENT_HEADER
    #: Limits of a tenant that differ from those of others. Its identities stand in the access file.
    tenants: Mapping[str, CallerLimits] = field(default_factory=dict)
    #: Requests per second of all callers together; 0: no limit.
    total_rate: Amount = 0.0
    #: Requests of all callers at once after an idle time.
    total_burst: Positive = 100
    #: Share of the total burst that a priority class leaves for the classes above it, from class 1 (the highest) on.
    #: Classes beyond the last, and requests without a class, count as the last.
    reserve: tuple[Share, ...] = (0.0, 0.1, 0.3)
    #: Limit of accounts. Idle ones are discarded without loss; if there are more busy ones than this, the least
    #: recently used one is reset.
    max_tracked: Positive = 65_536

    @property
    def enabled(self) -> bool:
        return self.limits_callers or bool(self.total_rate) or any(e.limits_callers for e in self.tenants.values())

    @property
    def counts_tokens(self) -> bool:
        return bool(self.token_rate) or any(each.token_rate for each in self.tenants.values())
