"""Admission: whether a request can meet its deadline, and a better worker when the chosen one would be late. Pure.

Runs between the policy's choice and the sending; one object per model. It goes by the workers' recent load reports, and
rejects a request only when none of the workers that it looked at can be in time. It cannot reject for ever: reports
expire, queues drain, and now and then a request that looks late is sent and returns with a new report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from isochrone.clock import NEVER
from isochrone.gateway.placement.token_estimates import IN_TIME, LATE, TokenEstimate, token_estimate
from isochrone.gateway.policies.base import Demand, TokenDeadlines
from isochrone.gateway.replicas import FRESH_NS, Replica
from isochrone.gateway.traffic.divisions import Divisions
from isochrone.settings.ranges import Amount, Duration, Positive

#: The worker has sent no recent load report.
NO_ESTIMATE = -1.0


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """When a request is rejected before it is sent."""

    #: Off: every request is sent to the policy's choice.
    enabled: bool = True
    #: Added to the worker's estimate: the network.
    margin_ns: Duration = 200_000
    #: Workers that are considered when the chosen one would be late. A larger fleet is considered in turns.
    sample: Positive = 16
    #: What one request sent since a worker's last load report adds to the wait there, as a share of a run, if that
    #: worker was idle then; 1 for models that do not batch. The report of a worker with a queue says what it adds.
    sent_share: Amount = 0.25
    #: At most so often one request of the model goes through although it looks late ...
    probe_every_ns: Duration = 10_000_000
    #: ... and only to a worker whose load report is older than this.
    probe_after_ns: Duration = 2_000_000


class Rejection(NamedTuple):
    """No worker that was considered would be in time."""

    #: Who would have been least late.
    best: Replica
    #: When its answer would have been there, the way included, from now on.
    expected_ns: int
    missed_by_ns: int
    what: str = "the deadline"

    @property
    def message(self) -> str:
        """For the caller, who is answered 504 or DEADLINE_EXCEEDED."""
        return (
            f"no worker can meet {self.what}: {self.best.endpoint.address} was best, expected to take"
            f" {self.expected_ns / 1e6:.3f} ms, which misses it by {self.missed_by_ns / 1e6:.3f} ms"
        )


class Admission:
    """The admission of one model. ``divisions``: those that the gateway chooses from; None: it does not."""

    __slots__ = ("_cursor", "_divisions", "_known", "_probed_at", "moved", "probes", "rejections", "rules")

    def __init__(self, rules: AdmissionRules | None = None, divisions: Divisions | None = None) -> None:
        self.rules = rules or AdmissionRules()
        self._divisions = divisions
        #: Requests rejected; sent to another replica than the policy's choice; sent although they looked late.
        self.rejections = 0
        self.moved = 0
        self.probes = 0
        #: Index at which the next search starts, and index of the last worker that could be in time.
        self._cursor = 0
        self._known = 0
        self._probed_at = -NEVER

    def check(
        self, eligible: Sequence[Replica], chosen: Replica, demand: Demand, now: int, *, is_final: bool = True
    ) -> Replica | Rejection:
        """The replica that the request goes to: the chosen one or a better one; or a rejection.

        Where a request must not move, as in a sequence that has begun, ``eligible`` is empty. Not ``is_final``: other
        replicas are checked after a rejection, which is not counted; and no request that looks late is sent.
        """
        rules, deadline = self.rules, demand.deadline
        if not demand.is_timed or not rules.enabled:
            return chosen
        if demand.tokens is not None:
            estimate = token_estimate(chosen, now)
            if estimate is not None:
                return self._check_tokens(eligible, chosen, estimate, demand, demand.tokens, now, is_final)
            if deadline == NEVER:
                return chosen
        limit = deadline - now - rules.margin_ns
        least = self.expected_ns(chosen, now)
        if least <= limit and least != NO_ESTIMATE:
            return chosen
        if deadline <= now:
            self.rejections += is_final
            return Rejection(chosen, rules.margin_ns, now - deadline + rules.margin_ns)
        if least == NO_ESTIMATE:
            return chosen
        return self._search(eligible, chosen, least, limit, demand, now, is_final)

    def _search(
        self,
        eligible: Sequence[Replica],
        chosen: Replica,
        least: float,
        limit: int,
        demand: Demand,
        now: int,
        is_final: bool,
    ) -> Replica | Rejection:
        """The chosen one would be late: a better one, one without a recent report, a probe, or a rejection."""
        rules, avoid = self.rules, demand.avoid
        best = oldest = chosen
        oldest_at = chosen.reported_at
        silent: Replica | None = None
        looks, start = self._window(eligible)
        is_divided = self._divisions is not None
        found = -1
        for place, replica in enumerate(looks):
            if replica is chosen or (avoid and replica in avoid):
                continue
            if replica.endpoint.last_report_at > replica.reported_at:
                replica.take_report()
            heard = replica.reported_at
            if heard < oldest_at and now - heard <= FRESH_NS:
                oldest, oldest_at = replica, heard
            # At best all work that waited then is done by now. That rules most out, and an estimate costs 1 µs.
            report = replica.report
            if not is_divided and report.run_ns + report.wait_ns - now + heard >= least and now - heard <= FRESH_NS:
                continue
            expected = self.expected_ns(replica, now)
            if expected == NO_ESTIMATE:
                if self._worth_asking(replica, limit, now) and (silent is None or replica.in_flight < silent.in_flight):
                    silent = replica
                continue
            if expected < least:
                best, least, found = replica, expected, place
        if 0 <= found < len(looks) - 1:
            self._known = start + found
        if least <= limit:
            self.moved += 1
            return best
        if silent is not None:
            self.moved += 1
            return silent
        if is_final and self._may_probe(oldest_at, now):
            return oldest
        self.rejections += is_final
        return Rejection(best, int(least) + rules.margin_ns, int(least) - limit)

    def _check_tokens(
        self,
        eligible: Sequence[Replica],
        chosen: Replica,
        estimate: TokenEstimate,
        demand: Demand,
        tokens: TokenDeadlines,
        now: int,
        is_final: bool,
    ) -> Replica | Rejection:
        """The same of deadlines of tokens; ``estimate``: of the chosen one."""
        between_ns = tokens.between_ns
        limit = min(demand.deadline, tokens.first_by) - now - self.rules.margin_ns
        rank = estimate.rank(limit, between_ns)
        if rank == IN_TIME:
            return chosen
        best = oldest = chosen
        oldest_at = chosen.times_at
        silent: Replica | None = None
        looks, start = self._window(eligible)
        found = -1
        for place, replica in enumerate(looks):
            if replica is chosen or replica in demand.avoid:
                continue
            other = token_estimate(replica, now)
            if other is None:
                if _may_generate(replica, now) and (silent is None or replica.in_flight < silent.in_flight):
                    silent = replica
                continue
            if replica.times_at < oldest_at:
                oldest, oldest_at = replica, replica.times_at
            key = other.rank(limit, between_ns)
            if (key, other.missed_by(limit, between_ns), other.first_ns) < (
                rank,
                estimate.missed_by(limit, between_ns),
                estimate.first_ns,
            ):
                best, estimate, rank, found = replica, other, key, place
        if 0 <= found < len(looks) - 1:
            self._known = start + found
        if rank != IN_TIME and silent is not None:
            best, rank = silent, IN_TIME
        if rank != LATE:
            if best is not chosen:
                self.moved += 1
            return best
        if is_final and self._may_probe(oldest_at, now):
            return oldest
        self.rejections += is_final
        if estimate.between_ns > between_ns > 0:
            missed = estimate.between_ns - between_ns
            return Rejection(best, estimate.between_ns, missed, "the deadline between tokens")
        first = estimate.least_first_ns
        return Rejection(best, first + self.rules.margin_ns, first - limit, "the deadline of the first token")

    def _window(self, eligible: Sequence[Replica]) -> tuple[Sequence[Replica], int]:
        """The replicas that a search looks at, and where the first of them stands."""
        rules, count = self.rules, len(eligible)
        if count <= rules.sample:
            return eligible, 0
        # The next few in turn, and the last good one again: a worker that can be in time is found after at most
        # count / sample searches, and stays known.
        start = self._cursor if self._cursor < count else 0
        few = max(1, rules.sample - 1)
        self._cursor = start + few
        return [*eligible[start : start + few], eligible[self._known if self._known < count else 0]], start

    def _may_probe(self, reported_at: int, now: int) -> bool:
        """Whether a request goes through although it looks late, to a worker with a report from then."""
        rules = self.rules
        if now - self._probed_at < rules.probe_every_ns or now - reported_at < rules.probe_after_ns:
            return False
        self._probed_at = now
        self.probes += 1
        return True

    def expected_ns(self, replica: Replica, now: int) -> float:
        """How long a request would take there by the worker's recent load report; ``NO_ESTIMATE``: there is none.

        Failures do not count here, as they do for policies: a worker that failed is not late for that.
        """
        if replica.endpoint.last_report_at > replica.reported_at:
            replica.take_report()
        report = replica.report
        # Of a run alone, if that is reported: whether a request must run alone is for the worker to decide.
        run, age = report.alone_ns or report.run_ns, now - replica.reported_at
        if self._divisions is not None and report.divisions is not None:
            least = self._divisions.least_ns(report.divisions)
            if least:
                return self._expected_divided(replica, least, run, now)
        if not run or age > FRESH_NS:
            return NO_ESTIMATE
        wait = float(report.wait_ns)
        everybody = report.in_flight
        each = run * self.rules.sent_share
        if wait:
            # Work that waited is being done. Other gateways send there too, so only our share of it counts as done.
            ours = replica.endpoint.in_flight
            if everybody > 0:
                each = min(wait / everybody, float(run))
            wait -= age if ours >= everybody else age * ours / everybody
            if wait < 0:
                wait = 0.0
        return wait + run + replica.sent_since * each

    def _expected_divided(self, replica: Replica, least: int, run: int, now: int) -> float:
        """The same of a divided model: the worker's estimate is that of its present division, and a request may run as
        any of the order. ``least``: of the fastest, waits included; ``run``: of the present one."""
        if now - replica.times_at > FRESH_NS:
            return NO_ESTIMATE
        sent = replica.sent_since + replica.sent_before
        return least + sent * min(least, run or least) * self.rules.sent_share

    def _worth_asking(self, replica: Replica, limit: int, now: int) -> bool:
        """Whether to try a worker without a recent report: idle as far as known, or fast enough and never reporting.

        One that reports and has not answered yet is not tried: it may have stopped.
        """
        if replica.in_flight == 0:
            return True
        return not replica.endpoint.reports and replica.expected_ns(now) <= limit


def _may_generate(replica: Replica, now: int) -> bool:
    """Whether to try a worker without a recent report of its tokens: idle as far as known, or still sending.

    It reports when a stream begins, and while tokens come it is not probed: its report expires before the stream ends.
    """
    if replica.in_flight == 0:
        return True
    return replica.report.inter_token_ns > 0 and now - replica.endpoint.heard_at <= FRESH_NS
