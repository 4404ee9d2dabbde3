"""Whether a request is worth sending at all, and a better worker for it when the chosen one would be late. Pure.

It stands between the policy's choice and the sending; one object per model. It goes by the workers' own fresh word and
refuses only when nobody it looked at can make it. It never shuts the door for good: words age, work that was waiting
gets done, and now and then a request that looks late goes through and brings fresh news.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from isochrone.clock import NEVER
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import NEWS_NS, Replica
from isochrone.settings.ranges import Amount, Duration, Positive

#: No worker's word: not an estimate.
UNTOLD = -1.0


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """When a request is refused before it is sent."""

    #: Off: every request is sent to the policy's choice.
    enabled: bool = True
    #: Kept free for the way to the worker and back, beside its own estimate.
    margin_ns: Duration = 200_000
    #: How many workers are looked at when the chosen one would be late. A larger fleet is gone through in turns.
    sample: Positive = 16
    #: What one request sent since a worker's last word adds to the wait there, as a share of a run, when that worker
    #: was idle then; 1 for models that do not batch. A worker with a queue has told what a request costs.
    sent_share: Amount = 0.25
    #: At most so often one request of the model goes through although it looks late ...
    probe_every_ns: Duration = 10_000_000
    #: ... and only to a worker whose word is older than this: younger news needs no probe.
    probe_after_ns: Duration = 2_000_000


class Refusal(NamedTuple):
    """Nobody that was looked at would be in time."""

    #: Who would have been least late.
    best: Replica
    #: When its answer would have been there, the way included, from now on.
    expected_ns: int
    missed_by_ns: int

    @property
    def message(self) -> str:
        """For the caller, who is answered 504 or DEADLINE_EXCEEDED."""
        return (
            f"no worker can meet the deadline: {self.best.endpoint.address} was best, expected to take"
            f" {self.expected_ns / 1e6:.3f} ms, which misses it by {self.missed_by_ns / 1e6:.3f} ms"
        )


class Admission:
    """The door of one model."""

    __slots__ = ("_cursor", "_known", "_probed_at", "moved", "probes", "refusals", "rules")

    def __init__(self, rules: AdmissionRules | None = None) -> None:
        self.rules = rules or AdmissionRules()
        #: Refused; sent to another than the policy's choice; sent although it looked late.
        self.refusals = 0
        self.moved = 0
        self.probes = 0
        #: Where the next look at the fleet starts, and where the last worker that could make it stood.
        self._cursor = 0
        self._known = 0
        self._probed_at = -NEVER

    def check(self, eligible: Sequence[Replica], chosen: Replica, demand: Demand, now: int) -> Replica | Refusal:
        """Whom the request goes to: the chosen one, a better one, or nobody.

        Where a request must not move, as in a sequence that has begun, ``eligible`` is empty.
        """
        rules, deadline = self.rules, demand.deadline
        if deadline == NEVER or not rules.enabled:
            return chosen
        limit = deadline - now - rules.margin_ns
        least = self.expected_ns(chosen, now)
        if least <= limit and least != UNTOLD:
            return chosen
        if deadline <= now:
            self.refusals += 1
            return Refusal(chosen, rules.margin_ns, now - deadline + rules.margin_ns)
        if least == UNTOLD:
            return chosen
        return self._search(eligible, chosen, least, limit, demand, now)

    def _search(
        self, eligible: Sequence[Replica], chosen: Replica, least: float, limit: int, demand: Demand, now: int
    ) -> Replica | Refusal:
        """The chosen one is late: a better one, a silent one, a probe, or a refusal."""
        rules, avoid = self.rules, demand.avoid
        best = oldest = chosen
        oldest_at = chosen.reported_at
        silent: Replica | None = None
        count, start = len(eligible), 0
        looks = eligible
        if count > rules.sample:
            # The next few in turn, and the last good one again: a worker that can make it is found after
            # count / sample looks at the latest, and then stays found.
            start = self._cursor if self._cursor < count else 0
            few = max(1, rules.sample - 1)
            self._cursor = start + few
            looks = [*eligible[start : start + few], eligible[self._known if self._known < count else 0]]
        found = -1
        for place, replica in enumerate(looks):
            if replica is chosen or (avoid and replica in avoid):
                continue
            heard = replica.reported_at
            if heard < oldest_at and now - heard <= NEWS_NS:
                oldest, oldest_at = replica, heard
            # At best all its waiting work of then is gone by now: most need no closer look, and a look costs 1 µs.
            report = replica.report
            if report.run_ns + report.wait_ns - now + heard >= least and now - heard <= NEWS_NS:
                continue
            expected = self.expected_ns(replica, now)
            if expected == UNTOLD:
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
        if now - self._probed_at >= rules.probe_every_ns and now - oldest_at >= rules.probe_after_ns:
            self._probed_at = now
            self.probes += 1
            return oldest
        self.refusals += 1
        return Refusal(best, int(least) + rules.margin_ns, int(least) - limit)

    def expected_ns(self, replica: Replica, now: int) -> float:
        """How long a request would take there by the worker's own fresh word; ``UNTOLD``: there is none.

        Failures do not count here as they do for policies: a worker that failed is not for that late.
        """
        report = replica.report
        # Alone, where that is told: who would fit only by themselves is for the worker to judge, which knows its queue.
        run, age = report.alone_ns or report.run_ns, now - replica.reported_at
        if not run or age > NEWS_NS:
            return UNTOLD
        wait = float(report.wait_ns)
        everybody = report.in_flight
        each = run * self.rules.sent_share
        if wait:
            # What waited is being worked off. Others send there too, unseen: only our part of the load counts as gone.
            ours = replica.endpoint.in_flight
            if everybody > 0:
                each = min(wait / everybody, float(run))
            wait -= age if ours >= everybody else age * ours / everybody
            if wait < 0:
                wait = 0.0
        return wait + run + replica.sent_since * each

    def _worth_asking(self, replica: Replica, limit: int, now: int) -> bool:
        """A worker without fresh word: idle as far as is seen here, or one that never tells and has been fast enough.

        One that does tell and still owes an answer is left alone: it may have stopped.
        """
        if replica.in_flight == 0:
            return True
        return not replica.endpoint.reports and replica.expected_ns(now) <= limit
