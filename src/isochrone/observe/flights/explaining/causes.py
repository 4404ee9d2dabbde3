"""The one cause of a request's latency: an explicit decision against it, or its longest avoidable part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from isochrone.observe.flights.explaining.parts import Part, Stage
from isochrone.observe.flights.messages import Candidate, GatewayFlight, WorkerFlight

#: A part below this share of the time is not called the cause.
_LEAST_SHARE = 0.2
#: Attempts that took this share of the time before a worker rejected the request are the cause, not its queue.
_RETRY_SHARE = 0.3
#: Another version must be so much faster for a canary to be the cause.
_CANARY_FACTOR = 1.5


class Cause(StrEnum):
    QUEUE = "queue"
    SLOW_WORKER = "slow worker"
    RETRY = "retry"
    COLD_MODEL = "cold model"
    BATCH_MATE = "batch-mate"
    NETWORK = "network"
    QUOTA = "quota"
    BREAKER = "breaker"
    CANARY = "canary"
    GC_PAUSE = "GC pause"
    STALL = "stall"
    NONE = "none"


_OF_STAGE = {
    Stage.WAITING_ROOM: Cause.COLD_MODEL,
    Stage.RETRY: Cause.RETRY,
    Stage.HEDGE: Cause.SLOW_WORKER,
    Stage.NETWORK: Cause.NETWORK,
    Stage.QUEUE: Cause.QUEUE,
    Stage.BATCH_MATES: Cause.BATCH_MATE,
    Stage.SLOW_RUN: Cause.SLOW_WORKER,
    Stage.GC: Cause.GC_PAUSE,
    Stage.STALL: Cause.STALL,
}


def find_cause(
    gateway: GatewayFlight | None,
    worker: WorkerFlight | None,
    parts: Sequence[Part],
    *,
    other_version_ns: int = 0,
    worker_lost_it: bool = False,
) -> Cause:
    """``other_version_ns``: the latency of the version that is not under evaluation; 0: not known, or there is none.
    ``worker_lost_it``: the worker was asked, remembers that time, and knows nothing of the request."""
    if gateway is not None and (decided := _decided(gateway)) is not None:
        return decided
    sizes = {Stage(part.stage): part.ns for part in parts}
    total = sum(sizes.values())
    is_canary = gateway is not None and gateway.is_canary
    rejected = _rejected(gateway, worker)
    if rejected is not None:
        if total and sizes.get(Stage.RETRY, 0) > _RETRY_SHARE * total:
            return Cause.RETRY
        expected, run = rejected
        if is_canary and other_version_ns and run > _CANARY_FACTOR * other_version_ns:
            return Cause.CANARY
        return Cause.QUEUE if expected - run > run or not run else Cause.SLOW_WORKER
    named: dict[Cause, int] = {}
    for stage, ns in sizes.items():
        cause = _OF_STAGE.get(stage, Cause.NONE)
        if stage is Stage.AT_WORKER:
            cause = Cause.NETWORK if worker_lost_it else Cause.SLOW_WORKER
        named[cause] = named.get(cause, 0) + ns
    ran = sizes.get(Stage.RUN, 0) + sizes.get(Stage.SLOW_RUN, 0) + sizes.get(Stage.BATCH_MATES, 0)
    if is_canary and other_version_ns and ran > _CANARY_FACTOR * other_version_ns:
        for cause in (Cause.SLOW_WORKER, Cause.BATCH_MATE):
            named.pop(cause, None)
        named[Cause.CANARY] = ran - other_version_ns
    named.pop(Cause.NONE, None)
    if not named or not total:
        return Cause.NONE
    longest = max(named, key=lambda cause: named[cause])
    return longest if named[longest] >= _LEAST_SHARE * total else Cause.NONE


def _decided(gateway: GatewayFlight) -> Cause | None:
    """The cause of a rejection that had nothing to do with time."""
    if gateway.rejected_by == "quota":
        return Cause.QUOTA
    if gateway.rejected_by == "breaker":
        return Cause.BREAKER
    if gateway.rejected_by == "no worker":
        return Cause.COLD_MODEL
    return None


def _rejected(gateway: GatewayFlight | None, worker: WorkerFlight | None) -> tuple[int, int] | None:
    """Of a request rejected because it would have been late: how long it was expected to take, and its run of that."""
    if gateway is not None and gateway.missed_by_ns and not gateway.attempts:
        best = _best(gateway.candidates)
        if best is not None:
            return max(best.expected_ns, gateway.expected_ns), best.run_ns
        return gateway.expected_ns, 0
    if worker is not None and worker.missed_by_ns and not worker.compute_start:
        left = worker.deadline - worker.arrived
        return max(0, left + worker.missed_by_ns), worker.alone_ns
    return None


def _best(candidates: Sequence[Candidate]) -> Candidate | None:
    known = [each for each in candidates if each.expected_ns]
    return min(known, key=lambda each: each.expected_ns, default=None)
