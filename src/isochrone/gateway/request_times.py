"""How long each request took, as its caller saw it: counted by version and outcome, and by agent.

The shell calls this once per request, when it has been answered, rejected or cut off, or when its caller has gone. It
is on the way of every request: it only adds to counts. Copies for shadows have no caller and do not count.

The time of a stream is that until its first answer, however it ends: how long it lasts is its caller's choice. The
gateway's own share is the time before the first sending and after the last byte of the worker's answer; of streams it
is not known.
"""

from __future__ import annotations

from bisect import bisect_left
from time import time_ns
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import SECOND
from isochrone.errors import ConnectionLost, DeadlineExceeded, Internal, InvalidArgument, IsochroneError, NotFound
from isochrone.gateway.latencies.durations import BOUNDS_NS, Durations
from isochrone.gateway.latencies.version_durations import (
    ANSWERED,
    CANCELLED,
    DEADLINE_EXCEEDED,
    FAILED,
    REJECTED,
    VersionDurations,
)
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.observe.exemplars import Exemplar
from isochrone.observe.sparing import Sparing

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
    from isochrone.gateway.fleet.fleet import Fleet

log = structlog.get_logger(__name__)

_STREAM = Kind.STREAM


def ended_as(request: CallerRequest, attempt: UpstreamAttempt, *, is_rejected: bool) -> int:
    """What an answer that is a worker's rejection, or its failure, is to the caller."""
    if not is_rejected:
        return FAILED
    return DEADLINE_EXCEEDED if request.is_late(attempt) else REJECTED


def _ended_by(error: IsochroneError) -> int:
    """What an error of the gateway's own is to the caller."""
    if isinstance(error, DeadlineExceeded):
        return DEADLINE_EXCEEDED
    if isinstance(error, (ConnectionLost, Internal)):
        return FAILED
    return ANSWERED if isinstance(error, (InvalidArgument, NotFound)) else REJECTED


class RequestTimes:
    """The times of one gateway's requests. A fault here is logged, and touches no answer."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: Off, to measure what counting costs: nothing is counted.
        self.is_on = True
        self._faults = Sparing(SECOND)

    def answered(self, request: CallerRequest, attempt: UpstreamAttempt, now: int) -> None:
        """An attempt's answer has gone back."""
        if request.shadow is not None or not self.is_on:
            return
        try:
            version = attempt.replica_set.durations
            if request.kind is _STREAM:
                self._count(request, version, attempt.ended_as, attempt.streaming_at or now)
            elif attempt.ended_as != ANSWERED:
                self._count(request, version, attempt.ended_as, now)
            else:
                # Nearly all requests.
                duration = now - request.came_at
                version.new_durations.add(duration)
                version.new_shares.add(request.sent_at - request.arrived + now - attempt.answered_at)
                if request.agent or request.trace_id:
                    self._count_further(request, version.of(ANSWERED), ANSWERED, duration, now)
        except Exception as error:
            self._log_fault(error, now)

    def rejected(self, request: CallerRequest, error: IsochroneError, now: int) -> None:
        """The caller got an error of the gateway's own, or its answer was broken off."""
        self._unanswered(request, _ended_by(error), now)

    def broken_off(self, request: CallerRequest, error: IsochroneError | None, now: int) -> None:
        """A request ends before it is over, by an error of its codec. None: its caller has gone."""
        self._unanswered(request, CANCELLED if error is None else _ended_by(error), now)

    def _unanswered(self, request: CallerRequest, outcome: int, now: int) -> None:
        try:
            served = getattr(request, "served", None)
            if request.shadow is not None or served is None or not self.is_on:
                return  # a stream that waited for a switch before it arrived belongs to no model yet
            replica_set = getattr(request, "replica_set", None)
            if replica_set is not None:
                version = replica_set.durations
            else:
                version = served.durations.other if request.version else served.durations.usual
            # How long a stream lasts is its caller's choice; how long its first answer takes is not.
            self._count(request, version, outcome, request.streaming_at or now)
        except Exception as error:
            self._log_fault(error, now)

    def _count(self, request: CallerRequest, version: VersionDurations, outcome: int, ended: int) -> None:
        duration = ended - request.came_at
        durations = version.add(outcome, bisect_left(BOUNDS_NS, duration), duration)
        self._count_further(request, durations, outcome, duration, ended)

    def _count_further(
        self, request: CallerRequest, durations: Durations, outcome: int, duration: int, ended: int
    ) -> None:
        """By agent, and as an exemplar."""
        bucket = bisect_left(BOUNDS_NS, duration)
        if request.trace_id:
            durations.exemplars[bucket] = Exemplar(request.trace_id, duration, time_ns())
        agents = self._fleet.agents
        if request.agent and agents.is_on:
            is_miss = outcome == DEADLINE_EXCEEDED or (ended > request.deadline and outcome != CANCELLED)
            agents.record(request.agent, bucket, duration, is_miss)

    def _log_fault(self, error: Exception, now: int) -> None:
        more = self._faults.lets_through(now)
        if more is not None:
            log.error("a request could not be counted", more=more, exc_info=error)
