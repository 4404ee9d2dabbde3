"""Requests, exact curves and a simulated clock for tests of the worker's inside: no sockets, threads or sleeps."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import IsochroneError
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan
from isochrone.worker.scheduling.batch_queue import BatchQueue, QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve

#: A large multilayer perceptron on one core: rows → ms.
LARGE_MLP = {1: 1.7, 2: 2.2, 4: 2.9, 8: 4.3, 16: 7.2, 32: 13.5}


class RecordedRequest(InferRequest):
    """Keeps what it was answered."""

    def __init__(
        self,
        plan: Plan,
        inputs: dict[str, Any] | None = None,
        arrived: int = 0,
        deadline: int = NEVER,
        request_id: str = "",
    ) -> None:
        super().__init__(plan, request_id, inputs or {}, arrived, deadline)
        self.answers: list[Any] = []

    def complete(self, outputs: dict[str, Any], parameters: Parameters = NO_PARAMETERS) -> None:
        self.answers.append(outputs)

    def fail(self, error: IsochroneError) -> None:
        self.answers.append(error)

    def dropped(self) -> None:
        self.answers.append("dropped")

    def emit(self, outputs: dict[str, Any], parameters: Parameters = NO_PARAMETERS) -> None:
        self.answers.append(outputs)

    def finish(self) -> None:
        self.answers.append("finished")


def plan_of(
    rows: int = 1, *, shape: object = (), priority: int = 0, outputs: tuple[str, ...] | None = None, model: str = "m"
) -> Plan:
    plan = Plan(model, "", (("x", "FP32", (rows, 1)),), outputs, priority=priority)
    plan.batch_size = rows
    plan.shape_key = shape
    return plan


def rows_of(*values: float) -> Any:
    """One FP32 row per value."""
    return np.array(values, np.float32).reshape(-1, 1)


class ExactCurve(LatencyCurve):
    """Knows the truth: straight lines between the points, no caution."""

    def __init__(self, milliseconds: Mapping[int, float]) -> None:
        super().__init__(max(milliseconds))
        sizes = sorted(milliseconds)
        for rows in range(1, self.max_rows + 1):
            exact = np.interp(rows, sizes, [milliseconds[size] for size in sizes])
            self.estimates[rows] = int(exact * MILLISECOND)

    def observe(self, rows: int, nanoseconds: int) -> None:
        """Nothing to learn."""


@dataclass
class Outcome:
    """What came of simulated traffic, in rows."""

    offered: int = 0
    admitted: int = 0
    in_time: int = 0
    late: int = 0
    #: Admitted, then dropped before compute.
    dropped: int = 0
    batches: list[int] = field(default_factory=list)
    nanoseconds: int = 0

    @property
    def goodput(self) -> float:
        """Rows answered in time per ns."""
        return self.in_time / self.nanoseconds


def simulate(
    curve: LatencyCurve,
    rows_per_ns: float,
    *,
    instances: int = 1,
    seconds: float = 2.0,
    deadlines_ms: Sequence[float] = (10.0,),
    rows: Sequence[int] = (1,),
    shapes: int = 1,
    scatter: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Poisson arrivals, instances that take what the curve says (times 1 ± scatter), and the queue between them."""
    chance = random.Random(seed)
    queue = BatchQueue(QueueRules(max_rows=curve.max_rows), curve, instances)
    plans = [[plan_of(size, shape=shape) for shape in range(shapes)] for size in rows]
    between = rows_per_ns / (sum(rows) / len(rows))
    outcome = Outcome(nanoseconds=int(seconds * 1e9))
    idle = list(range(instances))
    expected_end = [0] * instances
    running: list[tuple[int, int, list[InferRequest]]] = []
    arrival = int(chance.expovariate(between))

    def occupy() -> None:
        queue.occupy([0 if number in idle else expected_end[number] for number in range(instances)])

    def pump(now: int) -> None:
        while idle and queue.pending:
            batch = queue.take(now)
            outcome.dropped += sum(request.plan.batch_size for request, _ in queue.rejected)
            queue.rejected.clear()
            if not batch:
                break
            number = idle.pop()
            total = sum(request.plan.batch_size for request in batch)
            outcome.batches.append(total)
            expected_end[number] = now + curve.estimate(total)
            real = curve.estimate(total) * chance.uniform(1 - scatter, 1 + scatter)
            heapq.heappush(running, (now + int(real), number, batch))
            occupy()

    while min(arrival, running[0][0] if running else NEVER) <= outcome.nanoseconds:
        if running and running[0][0] <= arrival:
            now, number, batch = heapq.heappop(running)
            for request in batch:
                if now <= request.deadline:
                    outcome.in_time += request.plan.batch_size
                else:
                    outcome.late += request.plan.batch_size
            idle.append(number)
            occupy()
        else:
            now = arrival
            arrival += max(1, int(chance.expovariate(between)))
            plan = chance.choice(chance.choice(plans))
            deadline = now + int(chance.choice(deadlines_ms) * MILLISECOND)
            outcome.offered += plan.batch_size
            try:
                queue.push(RecordedRequest(plan, arrived=now, deadline=deadline), now)
                outcome.admitted += plan.batch_size
            except IsochroneError:
                pass
        pump(now)
    return outcome


def best_cycle(curve: LatencyCurve, rows_per_ns: float, deadline: int, margin: int, instances: int) -> float:
    """The most rows per ns that equal batches one after another can answer in time at this load.

    A batch of b rows that starts now is made of those who arrived since (deadline - margin - time of b).
    """
    best = 0.0
    for rows in range(1, curve.max_rows + 1):
        window = deadline - margin - curve.estimate(rows)
        if window > 0:
            best = max(best, min(rows, rows_per_ns / instances * window) / curve.estimate(rows))
    return min(rows_per_ns, best * instances)
