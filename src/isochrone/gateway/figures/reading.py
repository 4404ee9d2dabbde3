"""Reads a gateway's counters into a page of figures, in steps: requests go on between two of them.

Nothing is counted for this: it reads what the metrics page shows, and the load reports that placement uses.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from isochrone.gateway.figures.page import (
    MOST_MODELS,
    MOST_WORKERS,
    FiguresPage,
    ModelCounts,
    VersionCounts,
    WorkerLoad,
)
from isochrone.gateway.housekeeping import Steps
from isochrone.gateway.latencies.version_durations import ANSWERED, VersionDurations

if TYPE_CHECKING:
    from isochrone.gateway.fleet.member import Member
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.replicas import LoadReport, Replica

#: Reports that are older say nothing about the present.
_FRESH_NS: Final = 2_000_000_000
#: Models and workers that are read in one turn of the loop.
_PER_TURN: Final = 8
#: Codes of rejections that are a server's fault, or whose outcome is no rejection: an answer (the caller's own
#: mistake), a missed deadline, a failure. All others are excused.
_NOT_EXCUSED: Final = frozenset(
    (
        *("queue_full", "unavailable", "worker"),
        *("invalid_argument", "malformed", "config", "not_found"),
        *("deadline_exceeded", "connection_lost", "internal", "model_failed", "fetch_failed"),
    )
)


class _Load:
    """The newest report of one worker, over its replicas."""

    __slots__ = ("at", "in_flight", "queued", "wait_ns")

    def __init__(self) -> None:
        self.at = 0
        self.in_flight = -1
        self.queued = self.wait_ns = 0

    def add(self, report: LoadReport, at: int) -> None:
        self.wait_ns = max(self.wait_ns, report.wait_ns)
        if at > self.at:
            self.at, self.in_flight, self.queued = at, report.in_flight, report.queue


class FiguresReader:
    """Of one gateway process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._incarnation = secrets.token_hex(8)
        self._started_at = gateway.clock()

    def read(self) -> Steps[FiguresPage]:
        gateway = self._gateway
        now = gateway.clock()
        used = [served for served in gateway.fleet.models.values() if served.requests]
        shown = nlargest(MOST_MODELS, used, key=lambda served: served.requests) if len(used) > MOST_MODELS else used
        loads: dict[str, _Load] = {}
        models: list[ModelCounts] = []
        for number, served in enumerate(shown, 1):
            models.append(_model(served, loads, now))
            if not number % _PER_TURN:
                yield
        members = list(gateway.fleet.members.values())
        workers: list[WorkerLoad] = []
        for number, member in enumerate(members[:MOST_WORKERS], 1):
            workers.append(_worker(member, loads.get(member.endpoint.address), now))
            if not number % _PER_TURN:
                yield
        return FiguresPage(
            self._incarnation,
            max(0, now - self._started_at) // 1_000_000,
            gateway.in_flight,
            tuple(models),
            tuple(workers),
            len(used) - len(shown),
            max(0, len(members) - MOST_WORKERS),
        )


def _model(served: ServedModel, loads: dict[str, _Load], now: int) -> ModelCounts:
    replicas: dict[str, list[Replica]] = {}
    for (version, _), replica_set in served.replica_sets.items():
        replicas.setdefault(version, []).extend(replica_set.replicas.values())
    versions = []
    for durations in served.durations.versions():
        made = _version(durations, replicas.get(durations.version, ()), loads, now)
        if any(made.outcomes):
            versions.append(made)
    excused = sum(count for code, count in served.rejections.items() if code not in _NOT_EXCUSED)
    return ModelCounts(served.name, served.requests, served.retries, served.hedges, excused, tuple(versions))


def _version(
    durations: VersionDurations, replicas: Iterable[Replica], loads: dict[str, _Load], now: int
) -> VersionCounts:
    durations.fold()
    outcomes = [0 if each is None else each.total for each in durations.of_outcome]
    answered = durations.of_outcome[ANSWERED]
    queue_ns = queue_count = compute_ns = compute_count = 0
    for replica in replicas:
        report, at = _newest(replica)
        if not at or now - at > _FRESH_NS:
            continue
        loads.setdefault(replica.endpoint.address, _Load()).add(report, at)
        queue_ns += report.wait_ns
        queue_count += 1
        if report.run_ns:
            compute_ns += report.run_ns
            compute_count += 1
    return VersionCounts(
        durations.version,
        (outcomes[0], outcomes[1], outcomes[2], outcomes[3], outcomes[4]),
        {} if answered is None else {bucket: count for bucket, count in enumerate(answered.counts) if count},
        0 if answered is None else answered.sum_ns,
        durations.own.sum_ns,
        durations.own.total,
        queue_ns,
        queue_count,
        compute_ns,
        compute_count,
    )


def _newest(replica: Replica) -> tuple[LoadReport, int]:
    """Its last report and when that came; it takes a newer one of its endpoint only when it is used."""
    report = replica.endpoint.last_report
    if report is not None and report.at > replica.reported_at:
        return report.of(replica), report.at
    return replica.report, replica.reported_at


def _worker(member: Member, load: _Load | None, now: int) -> WorkerLoad:
    endpoint = member.endpoint
    report = endpoint.last_report
    if report is not None and now - report.at <= _FRESH_NS and (load is None or report.at > load.at):
        load = load or _Load()
        load.at, load.in_flight, load.queued = report.at, report.report.in_flight, report.report.queue
    round_trip = member.connections.last_round_trip
    return WorkerLoad(
        endpoint.address,
        endpoint.tier,
        endpoint.device,
        endpoint.healthy,
        endpoint.ejected_until > now,
        endpoint.draining,
        endpoint.standby,
        endpoint.in_flight,
        -1 if load is None else load.in_flight,
        0 if load is None else load.queued,
        0 if load is None else load.wait_ns,
        -1 if load is None else max(0, now - load.at) // 1_000_000,
        -1 if round_trip is None else round(round_trip * 1e6),
    )
