"""A few queues in plain Python that policies are tried on: Poisson arrivals, workers that serve one request at a time.

Time is simulated, in ns. The shell around the policy is the smallest there can be: it tells it what the gateway would.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.replicas import Endpoint, LoadReport, Replica

MS = 1_000_000
NEVER = 1 << 60

#: Random, now → service time in ns.
Service = Callable[[Random, int], int]


def fleet(size: int) -> list[Replica]:
    return [Replica(Endpoint(f"10.0.{number >> 8}.{number & 255}:8000")) for number in range(size)]


def steady(mean_ns: int) -> Service:
    """Nearly the same every time: a processor-bound model."""
    return lambda random, now: int(mean_ns * (0.9 + 0.2 * random.random()))


def varied(mean_ns: int) -> Service:
    """Exponential."""
    return lambda random, now: int(random.expovariate(1 / mean_ns)) + 1


def stopping(service: Service, at: int) -> Service:
    """Answers nothing from an instant on."""
    return lambda random, now: service(random, now) if now < at else NEVER


@dataclass
class Outcome:
    """What a run found."""

    replicas: list[Replica]
    latencies: list[int] = field(default_factory=list)
    #: By worker: when requests were sent to it.
    sent: list[list[int]] = field(default_factory=list)

    def percentile(self, share: float) -> int:
        """Of all requests; one that was never answered took for ever."""
        total = sum(map(len, self.sent))
        waits = sorted(self.latencies) + [NEVER] * (total - len(self.latencies))
        return waits[min(int(share * total), total - 1)]

    def mean(self) -> float:
        return sum(self.latencies) / len(self.latencies)


def run(
    policy: Policy, services: list[Service], per_second: float, requests: int, seed: int, reports: bool = True
) -> Outcome:
    """Requests through one gateway to one worker per service."""
    random = Random(f"arrivals {seed}")
    replicas = fleet(len(services))
    slots = {id(replica): slot for slot, replica in enumerate(replicas)}
    outcome = Outcome(replicas, sent=[[] for _ in replicas])
    free_at = [0] * len(replicas)
    policy.replicas_changed(replicas)
    demand, order = Demand(), count()
    arrival, events = 1_000_000_000, list[tuple[int, int, int, int, int]]()
    for _ in range(requests):
        arrival += int(random.expovariate(per_second) * 1e9)
        while events and events[0][0] <= arrival:
            _end(policy, replicas, outcome, heapq.heappop(events), reports)
        replica = policy.choose(demand, arrival)
        slot = slots[id(replica)]
        load = replica.sent()
        policy.sent(replica, arrival)
        for asked in policy.probes(arrival):
            if reports and free_at[slots[id(asked)]] < NEVER:
                _report(policy, asked, arrival)
        outcome.sent[slot].append(arrival)
        begin = max(arrival, free_at[slot])
        free_at[slot] = begin + services[slot](random, begin)
        if free_at[slot] < NEVER:
            heapq.heappush(events, (free_at[slot], next(order), slot, load, arrival))
    while events:
        _end(policy, replicas, outcome, heapq.heappop(events), reports)
    return outcome


def _end(
    policy: Policy, replicas: list[Replica], outcome: Outcome, event: tuple[int, int, int, int, int], reports: bool
) -> None:
    now, _, slot, load, arrival = event
    replica = replicas[slot]
    replica.ended(load, now - arrival, False, now)
    policy.ended(replica, now - arrival, False, now)
    outcome.latencies.append(now - arrival)
    if reports:
        _report(policy, replica, now)


def _report(policy: Policy, replica: Replica, now: int) -> None:
    replica.reported(LoadReport(replica.in_flight, max(0, replica.in_flight - 1)), now)
    policy.reported(replica, now)
