"""Runs without a server: outcomes from columns, and queues that are simulated with a seed."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isochrone.bench.results.outcomes import OK, GeneratorUse, Run, outcomes_from
from isochrone.clock import MILLISECOND, SECOND


def a_run(
    intended_ns: ArrayLike,
    ended_ns: ArrayLike,
    *,
    sent_ns: ArrayLike | None = None,
    first_ns: ArrayLike | None = None,
    outcome: ArrayLike | None = None,
    kind: ArrayLike | None = None,
    kinds: tuple[str, ...] = ("model",),
    rate: float | None = 1000.0,
    in_flight: int | None = None,
    seconds: float = 10.0,
    generators: tuple[GeneratorUse, ...] = (GeneratorUse(0.2, 10_000, 20_000, 50_000),),
    errors: Mapping[str, int] | None = None,
    target: str = "http://127.0.0.1:8000",
) -> Run:
    intended = np.asarray(intended_ns, dtype=np.int64)
    columns: dict[str, Any] = {
        "intended_ns": intended,
        "sent_ns": intended if sent_ns is None else sent_ns,
        "first_ns": np.full(len(intended), -1) if first_ns is None else first_ns,
        "ended_ns": ended_ns,
        "outcome": np.full(len(intended), OK) if outcome is None else outcome,
        "kind": np.zeros(len(intended)) if kind is None else kind,
    }
    return Run(
        target=target,
        kinds=kinds,
        rate=rate,
        in_flight=in_flight,
        seconds=seconds,
        started_at="2026-01-01T00:00:00Z",
        outcomes=outcomes_from(columns),
        generators=generators,
        errors=errors or {},
    )


def latencies_run(latencies_ns: ArrayLike, *, seconds: float = 10.0, **changes: Any) -> Run:
    """Requests at even distances with these latencies."""
    latencies = np.asarray(latencies_ns, dtype=np.int64)
    intended = (np.arange(len(latencies)) * (seconds * SECOND / max(len(latencies), 1))).astype(np.int64)
    return a_run(intended, intended + latencies, seconds=seconds, **changes)


def one_server_queue(random: np.random.Generator, rate: float, capacity: float, seconds: float) -> Run:
    """M/M/1, first come, first served: the time in the system is exponential with the rate capacity - rate."""
    count = max(1, random.poisson(rate * seconds))
    arrivals = np.sort(random.uniform(0, seconds, count))
    work = random.exponential(1 / capacity, count)
    # Lindley's recursion as a running maximum: a request ends when all work since the last idle instant is done.
    done = np.cumsum(work)
    ended = done + np.maximum.accumulate(arrivals - done + work)
    return _queue_run(arrivals, ended, rate, seconds)


def several_server_queue(random: np.random.Generator, rate: float, servers: int, each: float, seconds: float) -> Run:
    """M/M/c, first come, first served; ``each``: answers per second of one server."""
    count = max(1, random.poisson(rate * seconds))
    arrivals = np.sort(random.uniform(0, seconds, count))
    work = random.exponential(1 / each, count).tolist()
    free = [0.0] * servers
    ended = []
    for arrival, takes in zip(arrivals.tolist(), work, strict=True):
        end = max(arrival, free[0]) + takes
        heapq.heapreplace(free, end)
        ended.append(end)
    return _queue_run(arrivals, np.array(ended), rate, seconds)


def paused(run: Run, at_ms: float, for_ms: float) -> Run:
    """The same run on a server that answers nothing for a while: what would have ended in it ends after it."""
    outcomes = run.outcomes
    start, end = int(at_ms * MILLISECOND), int((at_ms + for_ms) * MILLISECOND)
    inside = (outcomes.ended_ns >= start) & (outcomes.ended_ns < end)
    return a_run(
        outcomes.intended_ns,
        np.where(inside, end + outcomes.ended_ns - outcomes.intended_ns, outcomes.ended_ns),
        rate=run.rate,
        seconds=run.seconds,
    )


def _queue_run(arrivals: np.ndarray, ended: np.ndarray, rate: float, seconds: float) -> Run:
    intended = (arrivals * SECOND).astype(np.int64)
    return a_run(intended, (ended * SECOND).astype(np.int64), rate=rate, seconds=seconds)
