"""A simulated gateway: the real balancer, policy, admission, retry budget and outlier ejection; time is the engine's.

It does what the gateway's forwarding does around those decisions, in the same order, and nothing of its own: choose,
check, send, probe whom the policy wants to hear of, take the worker's word from each answer, try again where that is
safe, give up at the deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from isochrone.gateway.admission import Admission
from isochrone.gateway.balancer import Balancer
from isochrone.gateway.policies.base import NEVER, Demand
from isochrone.gateway.replicas import Endpoint, LoadReport, Replica
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.resilience.retry_budget import Budget
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.calls import ANSWERED, FAILED, REFUSED, TOO_LATE, Call
from isochrone.simulate.processes.worker import ERRING, SERVING, Worker
from isochrone.simulate.results.tally import Tally

#: As the gateway has it.
MAX_ATTEMPTS = 3
_HIGHEST = 1
_MODEL = "model"


class RequestKind:
    """What requests of one kind have in common."""

    __slots__ = ("deadline_ns", "index", "keys", "name", "priority", "rows")

    def __init__(
        self, index: int, name: str, deadline_ns: int = NEVER, rows: int = 1, priority: int = 0, agents: int = 0
    ) -> None:
        self.index = index
        self.name = name
        #: From arrival at the gateway; NEVER: none.
        self.deadline_ns = deadline_ns
        self.rows = rows
        self.priority = priority
        #: What affinity goes by: one per agent.
        self.keys: Sequence[bytes] = [b"agent-%d" % number for number in range(agents)]


class Gateway:
    """One gateway process."""

    def __init__(
        self,
        engine: Engine,
        workers: Sequence[Worker],
        balancer: Balancer,
        delay: Callable[[], int],
        client_ns: int = 0,
        *,
        tracks: bool = False,
        admission: Admission | None = None,
        budget: Budget | None = None,
        outliers: Outliers | None = None,
    ) -> None:
        self.engine = engine
        self.balancer = balancer
        self.policy = balancer.policy
        self._delay = delay
        #: From client to gateway and back.
        self._client_ns = client_ns
        self._admission = admission
        self._budget = budget
        self._outliers = outliers
        self.replicas: list[Replica] = []
        for worker in workers:
            endpoint = Endpoint(f"worker-{worker.number}:8001")
            endpoint.handle = worker
            endpoint.reports = True
            self.replicas.append(Replica(endpoint))
        if outliers is not None:
            outliers.endpoints_changed([replica.endpoint for replica in self.replicas], engine.now)
        balancer.update(self.replicas, engine.now)
        #: Requests with a deadline by kind, in the order they came: of one kind, the first is due first.
        self._waiting: dict[int, deque[Call]] = {}
        self._armed: set[int] = set()
        #: Calls that are not over, and which they are: asked only when workers can be lost.
        self.open = 0
        self._under_way: dict[Call, None] | None = {} if tracks else None
        self.probes = 0

    # The way there.

    def arrive(self, now: int, work: float, kind: RequestKind, tally: Tally, key: bytes = b"") -> None:
        """A request from a client."""
        tally.offered += 1
        deadline = NEVER
        if kind.deadline_ns != NEVER:
            deadline = now + kind.deadline_ns - self._client_ns
        call = Call(now, work, self, tally, deadline, kind.rows)
        call.priority = kind.priority
        call.demand = demand = Demand(key, deadline, kind.rows, kind.priority)
        if self._budget is not None:
            self._budget.request(now)
        balancer = self.balancer
        replica = balancer.choose(demand, now)
        if replica is None:
            tally.failed += 1
            return
        if self._admission is not None and deadline != NEVER and demand.priority != _HIGHEST:
            verdict = self._admission.check(balancer.eligible, replica, demand, now)
            if not isinstance(verdict, Replica):
                tally.refused += 1
                return
            replica = verdict
        self.open += 1
        self._send(now, call, replica)
        if deadline != NEVER:
            waiting = self._waiting.get(kind.index)
            if waiting is None:
                waiting = self._waiting[kind.index] = deque()
            # Done ones leave at the front, so that the line is as long as what is under way, not as the deadline.
            while waiting and waiting[0].over:
                waiting.popleft()
            waiting.append(call)
            if kind.index not in self._armed:
                self._armed.add(kind.index)
                self.engine.at(deadline, self._due, kind.index)

    def _send(self, now: int, call: Call, replica: Replica) -> None:
        call.replica = replica
        call.load = self.balancer.sent(replica, now)
        call.sent_at = now
        call.attempts += 1
        if self._under_way is not None:
            self._under_way[call] = None
        at, delay = self.engine.at, self._delay
        at(now + delay(), replica.endpoint.handle.arrive, call)
        asked = self.policy.probes(now)
        if asked:
            # Probes of one request travel together: one event there and one back, not six.
            self.probes += len(asked)
            at(now + delay(), self._probe, tuple(asked))

    def _probe(self, now: int, asked: tuple[Replica, ...]) -> None:
        """Probes are at their workers' doors. Who stopped or stalls does not answer."""
        news: list[tuple[Replica, LoadReport]] = []
        for replica in asked:
            worker: Worker = replica.endpoint.handle
            if worker.state in (SERVING, ERRING):
                news.append((replica, worker.report(now)))
        if news:
            self.engine.at(now + self._delay(), self._told, news)

    def _told(self, now: int, news: list[tuple[Replica, LoadReport]]) -> None:
        reported = self.balancer.reported
        for replica, report in news:
            reported(replica, report, now)

    # The way back.

    def answered(self, now: int, call: Call) -> None:
        """The worker's answer, or the news that its connection broke."""
        if call.over:
            return
        replica, outcome, balancer = call.replica, call.outcome, self.balancer
        assert replica is not None
        if call.report is not None:
            balancer.reported(replica, call.report, now)
        latency = now - call.sent_at
        if outcome in (ANSWERED, FAILED):
            failed = outcome == FAILED
            balancer.ended(replica, call.load, latency, failed, now)
            if self._outliers is not None and self._outliers.ended(replica.endpoint, _MODEL, latency, failed, now):
                balancer.refresh(now)
        else:
            # A refusal says nothing of how fast the replica is, nor that it is broken.
            balancer.dropped(replica, call.sent_at, now)
        if outcome != ANSWERED and outcome != TOO_LATE and self._try_again(now, call, replica):
            return
        self._settle(now, call, outcome)

    def _try_again(self, now: int, call: Call, tried: Replica) -> bool:
        if self._budget is None or call.attempts >= MAX_ATTEMPTS or now >= call.deadline:
            return False
        balancer, demand = self.balancer, call.demand
        assert demand is not None
        if (len(balancer.eligible) < 2 and tried in balancer.eligible) or not self._budget.take(now):
            return False
        avoid = (*demand.avoid, tried)
        call.demand = demand = Demand(demand.key, demand.deadline, demand.rows, demand.priority, avoid)
        replica = balancer.choose(demand, now)
        if replica is None or replica in avoid:
            return False
        call.tally.retried += 1
        self._send(now, call, replica)
        return True

    def _settle(self, now: int, call: Call, outcome: int) -> None:
        """The client knows."""
        call.over = True
        self.open -= 1
        if self._under_way is not None:
            del self._under_way[call]
        tally = call.tally
        if outcome == REFUSED:
            tally.refused += 1
        elif outcome == FAILED:
            tally.failed += 1
        else:
            if outcome == ANSWERED and now <= call.deadline:
                tally.in_time += 1
            else:
                tally.late += 1
            tally.latency.add(now - call.arrived + self._client_ns)

    def _due(self, now: int, kind: int) -> None:
        """The deadline of the oldest of a kind may have come."""
        waiting = self._waiting[kind]
        while waiting and (waiting[0].over or waiting[0].deadline <= now):
            call = waiting.popleft()
            if not call.over:
                self._give_up(now, call)
        if waiting:
            self.engine.at(waiting[0].deadline, self._due, kind)
        else:
            self._armed.discard(kind)

    def _give_up(self, now: int, call: Call) -> None:
        replica = call.replica
        assert replica is not None
        self.balancer.dropped(replica, call.sent_at, now)
        if replica.reported_at < call.sent_at:
            # Not a word since it was sent: that says something of the worker, and not of its queue alone.
            replica.error_rate += (1.0 - replica.error_rate) / 16
            if self._outliers is not None and self._outliers.ended(replica.endpoint, _MODEL, 0, True, now):
                self.balancer.refresh(now)
        self._settle(now, call, TOO_LATE)
        self.engine.at(now + self._delay(), replica.endpoint.handle.abandoned, call)

    # What is found out beside requests.

    def health(self, now: int, worker: Worker, well: bool) -> None:
        """Active checks found a change. What a lost worker still has is given up there and tried elsewhere."""
        endpoint = self.replicas[worker.number].endpoint
        if endpoint.healthy == well:
            return
        endpoint.healthy = well
        if well:
            endpoint.joined_at = now
        self.balancer.refresh(now)
        if not well:
            for call in list(self._under_way or ()):
                if call.replica is not None and call.replica.endpoint is endpoint:
                    self._lost(now, call, call.replica)

    def _lost(self, now: int, call: Call, replica: Replica) -> None:
        self.balancer.ended(replica, call.load, now - call.sent_at, True, now)
        # The worker may still hold the call, so what goes on is another one with the same past.
        again = Call(call.arrived, call.work, self, call.tally, call.deadline, call.rows)
        again.priority, again.demand, again.attempts = call.priority, call.demand, call.attempts
        call.over = True
        if self._under_way is not None:
            del self._under_way[call]
            self._under_way[again] = None
        self.engine.at(now + self._delay(), replica.endpoint.handle.abandoned, call)
        if not self._try_again(now, again, replica):
            self._settle(now, again, FAILED)
        elif again.deadline != NEVER:
            self.engine.at(again.deadline, self._due_alone, again)

    def _due_alone(self, now: int, call: Call) -> None:
        if not call.over:
            self._give_up(now, call)

    def close(self, now: int) -> None:
        """The run is over: who is still waited for has failed."""
        for call in list(self._under_way or ()):
            assert call.replica is not None
            self.balancer.dropped(call.replica, call.sent_at, now)
            self._settle(now, call, FAILED)

    def unsettled(self, now: int) -> bool:
        """Whether who is eligible changes with time alone: somebody is ejected, or a newcomer grows."""
        # An ejected one joins anew when its time is over, so this is one look.
        limit = now - self.balancer.rules.slow_start_ns
        return any(replica.endpoint.joined_at > limit for replica in self.replicas)

    def judge(self, now: int) -> None:
        """Once a second: who is an outlier."""
        if self._outliers is not None and self._outliers.tick(now):
            self.balancer.refresh(now)
