"""`python -m bench.gateway.decisions`: the cost of a routing decision by policy, at 10, 100 and 1,000 endpoints.

A decision is the choice, the notice that the request was sent and the notice that it ended, as in the gateway: with a
load report on each answer, and with requests in flight on every worker. One process, no sockets. See bench/README.md.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from bench.worker.machine import RESULTS, describe
from isochrone.gateway import policies
from isochrone.gateway.placement.balancer import Balancer
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import Endpoint, LoadReport, Replica

FLEETS = (10, 100, 1000)
#: No decision may cost more at 1,000 endpoints, in µs.
LIMIT_US = 20.0
#: Requests in flight per worker, on average.
IN_FLIGHT_EACH = 3
#: Between two requests, in ns of the gateway's clock: 20,000 requests a second.
STEP_NS = 50_000


@dataclass(frozen=True)
class Cost:
    """One policy on one fleet, in µs."""

    policy: str
    endpoints: int
    choose_us: float
    decision_us: float
    #: By the thread's own time, the clock's cost included, of the quietest round: what other processes take away, and
    #: what they leave of the caches, is not the policy's.
    p99_us: float
    #: By the clock on the wall, of the quietest and of the loudest round.
    lowest_wall_p99_us: float
    highest_wall_p99_us: float
    #: What a change of one member costs, apart from decisions.
    members_ms: float


class Course:
    """One policy at work on one fleet: requests come and go, so that its state is that of a busy gateway."""

    def __init__(self, name: str, endpoints: int, seed: int) -> None:
        self._random = Random(seed)
        self.replicas = [
            Replica(Endpoint(f"10.0.{number >> 8}.{number & 255}:8000", now=-(10**12))) for number in range(endpoints)
        ]
        self.balancer = Balancer(policies.make(name, Random(seed + 1)), Random(seed + 2))
        self.now = 10**12
        self.balancer.update(self.replicas, self.now)
        #: Sent and not ended: replica, the load it was sent at, and when.
        self._under_way: deque[tuple[Replica, int, int]] = deque()
        self._demands = [Demand(key=b"agent-%d" % number) for number in range(997)]
        for _ in range(endpoints * IN_FLIGHT_EACH):
            self.begin()
        for _ in range(4 * endpoints):
            self.end()
            self.begin()

    def begin(self) -> int:
        """A request is placed; returns what the choice alone cost, in ns."""
        self.now += STEP_NS
        balancer, now = self.balancer, self.now
        demand = self._demands[now // STEP_NS % len(self._demands)]
        started = time.perf_counter_ns()
        replica = balancer.choose(demand, now)
        cost = time.perf_counter_ns() - started
        assert replica is not None
        self._under_way.append((replica, balancer.sent(replica, now), now))
        for asked in balancer.policy.probes(now):
            # The answer of a probe: apart from the decision, as its request is apart from the query.
            balancer.reported(asked, self._report(asked), now)
        return cost

    def end(self) -> None:
        """The oldest request is answered."""
        replica, load, sent_at = self._under_way.popleft()
        self.balancer.reported(replica, self._report(replica), self.now)
        self.balancer.ended(replica, load, self.now - sent_at, False, self.now)

    def _report(self, replica: Replica) -> LoadReport:
        waiting = max(0, replica.in_flight - 1)
        run_ns = 900_000 + int(self._random.random() * 200_000)
        return LoadReport(replica.in_flight, waiting, waiting * 1_000_000, run_ns)

    def decision(self) -> tuple[int, int, int]:
        """One whole decision; what the choice cost, what all of it cost, and that by the thread's own time, in ns."""
        balancer = self.balancer
        replica, load, sent_at = self._under_way.popleft()
        # Made before the clock runs: the report comes off the wire, not from the policy.
        report = self._report(replica)
        self.now += STEP_NS
        now = self.now
        demand = self._demands[now // STEP_NS % len(self._demands)]
        thread_started = time.thread_time_ns()
        started = time.perf_counter_ns()
        chosen = balancer.choose(demand, now)
        chose = time.perf_counter_ns()
        assert chosen is not None
        load_now = balancer.sent(chosen, now)
        asked = balancer.policy.probes(now)
        balancer.reported(replica, report, now)
        balancer.ended(replica, load, now - sent_at, False, now)
        ended = time.perf_counter_ns()
        thread_ended = time.thread_time_ns()
        self._under_way.append((chosen, load_now, now))
        for other in asked:
            balancer.reported(other, self._report(other), now)
        return chose - started, ended - started, thread_ended - thread_started

    def change(self) -> int:
        """One member leaves and comes back; the mean cost of the two changes, in ns."""
        policy = self.balancer.policy
        started = time.perf_counter_ns()
        policy.replicas_changed(self.replicas[:-1])
        policy.replicas_changed(self.replicas)
        return (time.perf_counter_ns() - started) // 2


def measure(name: str, endpoints: int, rounds: int, decisions: int) -> Cost:
    """Medians of rounds; the p99 is that of the quietest, and those by the wall's clock stand beside it."""
    course = Course(name, endpoints, seed=7)
    chooses, wholes, threads, walls = [], [], [], []
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        costs = [course.decision() for _ in range(decisions)]
        gc.enable()
        choose, whole, thread = (sorted(column) for column in zip(*costs, strict=True))
        chooses.append(choose[decisions // 2] / 1e3)
        wholes.append(whole[decisions // 2] / 1e3)
        threads.append(thread[decisions * 99 // 100] / 1e3)
        walls.append(whole[decisions * 99 // 100] / 1e3)
    return Cost(
        name,
        endpoints,
        statistics.median(chooses),
        statistics.median(wholes),
        min(threads),
        min(walls),
        max(walls),
        statistics.median(course.change() for _ in range(3)) / 1e6,
    )


def arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.decisions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--decisions", type=int, default=4000, help="per round")
    parser.add_argument("--policies", default=",".join(policies.NAMES), help=f"of {', '.join(policies.NAMES)}")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.policies = given.policies.split(",")
    if unknown := sorted(set(given.policies) - set(policies.NAMES)):
        parser.error(f"--policies: expected some of {', '.join(policies.NAMES)}, given {', '.join(unknown)}")
    return given


def main() -> int:
    given = arguments()
    costs = []
    print("µs: median of the choice / of the whole decision (choose, sent, reported, ended) / its p99; change: ms")
    print(f"{'policy':22}" + "".join(f"{f'{size:,} endpoints':>26}" for size in FLEETS) + f"{'change':>10}")
    for name in given.policies:
        row = [measure(name, size, given.rounds, given.decisions) for size in FLEETS]
        costs += row
        cells = "".join(f"{cost.choose_us:10.1f} {cost.decision_us:7.1f} {cost.p99_us:7.1f}" for cost in row)
        print(f"{name:22}{cells}{row[-1].members_ms:10.1f}", flush=True)
    largest = [cost for cost in costs if cost.endpoints == FLEETS[-1]]
    over = [cost.policy for cost in largest if max(cost.decision_us, cost.p99_us) > LIMIT_US]
    verdict = f"MISSED by {', '.join(over)}" if over else "MET"
    print(f"{verdict}: no median and no p99 above {LIMIT_US:.0f} µs at 1,000 endpoints")
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / "decisions.json"
    settings = {"rounds": given.rounds, "decisions": given.decisions, "in_flight_each": IN_FLIGHT_EACH}
    record = {"machine": describe(), "settings": settings, "costs": [asdict(cost) for cost in costs]}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
