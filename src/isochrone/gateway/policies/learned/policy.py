"""learned: a small linear model re-ranks Prequal's safe set, with guard rails.

The safe set holds the replicas that are cold, healthy and about as fast as the fastest. Of these the policy chooses the
one that its model expects to answer first. Each guard rail has a counter:

- Prequal's choice stands when the expected gain is small, when figures are outside the range of training, for retries
  and hedges, and for trial requests.
- A decision compares at most 16 candidates. With a timer, a decision over budget is discarded and the model pauses.
- A control slice of requests stays on Prequal. If the learned slice has a worse p99 or more failures, the model is
  switched off and ``alert`` holds the reason.
- Endpoints have a floor and a ceiling of traffic. With ``shadow`` the policy only logs its decisions.
- Online refinement learns from the few requests that were placed at random, in small steps near the trained weights.

Trained by ``isochrone simulate train``; docs/learned.md has the figures. Source of the method: Langford and Zhang, "The
Epoch-Greedy Algorithm for Contextual Multi-armed Bandits", NIPS 2007 (learn only from random placements).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from pathlib import Path
from random import Random

from isochrone.clock import NEVER
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.learned.features import View, seen
from isochrone.gateway.policies.learned.model import SHIPPED, UNKNOWN, Draw, Model, Weights, read
from isochrone.gateway.policies.learned.shadow import ShadowChoice, ShadowLog
from isochrone.gateway.policies.learned.shares import Shares
from isochrone.gateway.policies.learned.slices import CONTROL, LEARNED, NEITHER, Slices
from isochrone.gateway.policies.prequal.policy import FEWEST_PROBES, Prequal
from isochrone.gateway.policies.toolkit.options import flag, number
from isochrone.gateway.replicas import Replica

#: Of a pool of probes, this many of the newest are candidates. A fleet that fits into the pool has at most 16 replicas.
_NEWEST = 3
#: Decisions for which the model pauses after one over budget.
_PAUSE = 256
_MOST_IN_FLIGHT = 1 << 16
#: Decisions that shadow mode keeps.
_SHADOW_RECORDS = 1024
#: How requests were placed, and how often the model was switched off; docs/learned.md explains each.
_COUNTERS = (
    "moved",
    "agreed",
    "unsure",
    "out_of_range",
    "explored",
    "floored",
    "capped",
    "over_budget",
    "switched_off",
)


class Learned(Prequal):
    """``weights``: a file of ``isochrone simulate train``; "": the shipped one. ``shadow``: only log. ``control``:
    share of requests left to Prequal. ``explore``: share placed at random, to learn from. ``step``: of the refinement.
    ``drift``: its limit as a share of each weight. ``floor``, ``ceiling``: an endpoint's traffic, in even shares.
    ``budget_us``: of a decision, if there is a timer."""

    name = "learned"

    def __init__(
        self,
        random: Random,
        *,
        weights: str | Weights = "",
        shadow: bool = False,
        control: float = 0.1,
        explore: float = 0.005,
        step: float = 0.01,
        drift: float = 0.25,
        floor: float = 0.02,
        ceiling: float = 4.0,
        budget_us: float = 100.0,
    ) -> None:
        super().__init__(random)
        self.model = Model(
            weights if isinstance(weights, Weights) else read(Path(weights) if weights else SHIPPED),
            number(self.name, "step", step, 0, 0.1),
            number(self.name, "drift", drift, 0, 1),
        )
        self._shadow = flag(self.name, "shadow", shadow)
        control = number(self.name, "control", control, 0.01, 0.5)
        # Shadow mode changes nothing: it needs no control slice, and its requests belong to no slice.
        self._control = 0.0 if self._shadow else control
        self._own_slice = NEITHER if self._shadow else LEARNED
        self._explore = number(self.name, "explore", explore, 0, 0.1)
        self._shares = Shares(number(self.name, "floor", floor, 0, 0.5), number(self.name, "ceiling", ceiling, 1))
        self._budget_ns = number(self.name, "budget_us", budget_us, 1) * 1e3
        #: A clock in ns that the caller may set; without one, decisions are bounded by their candidates alone.
        self.timer: Callable[[], int] | None = None
        #: Called with the reason when the model is switched off.
        self.on_alert: Callable[[str], None] | None = None
        #: Why the model is switched off; "": it is on.
        self.alert = ""
        self.slices = Slices()
        self.shadow_log = ShadowLog(_SHADOW_RECORDS)
        self.moved = self.agreed = self.unsure = self.out_of_range = self.explored = 0
        self.floored = self.capped = self.over_budget = self.switched_off = 0
        self._views: dict[Replica, View] = {}
        #: Attempts of a slice by the instant they were sent: the replica, and the slice or record. The learned slice
        #: has the most, and stores the replica alone.
        self._in_flight: dict[int, Replica | tuple[Replica, int | Draw | ShadowChoice]] = {}
        #: An ended attempt that is not accounted for yet: its slice or record, latency, failure, and when.
        self._deferred: tuple[int | Draw | ShadowChoice, int, bool, int] | None = None
        self._pause = 0
        #: The last choice, and its slice or record.
        self._chosen: Replica | None = None
        self._tag: int | Draw | ShadowChoice = NEITHER

    def counts(self) -> Mapping[str, int]:
        counts = {**super().counts(), **{name: getattr(self, name) for name in _COUNTERS}}
        if self._shadow:
            counts |= {"shadowed": self.shadow_log.seen, "shadow_agreed": self.shadow_log.agreed}
        return counts

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        super().replicas_changed(replicas)
        before = self._views
        self._views = {replica: before.get(replica) or View() for replica in replicas}
        kept = [view for replica, view in self._views.items() if replica in before]
        self._shares.views_changed(kept, [view for replica, view in self._views.items() if replica not in before])

    # The choice.

    def choose(self, demand: Demand, now: int) -> Replica:
        if self._deferred is not None:
            self.catch_up()
        if self.alert or demand.avoid:
            self._tag = NEITHER
            # Retries and hedges are Prequal's, and belong to no slice.
            chosen = super().choose(demand, now)
        elif self._random.random() < self._control:
            self._tag = CONTROL
            chosen = super().choose(demand, now)
        elif self._whole:
            self._tag = self._own_slice
            fleet = self._fleet
            chosen = fleet.choose((), now)
            safe = fleet.safe(now)
            if len(safe) > 1:
                chosen = self._rerank(chosen, safe, demand, now)
        else:
            self._tag = self._own_slice
            chosen = self._of_probes(demand, now)
        self._chosen = chosen
        return chosen

    def _of_probes(self, demand: Demand, now: int) -> Replica:
        pool = self._pool
        probes = pool.probes
        if probes and now - probes[0].received > pool.max_age_ns:
            pool.expire(now)
        probe = pool.best(()) if len(probes) >= FEWEST_PROBES else None
        if probe is None:
            return super().choose(demand, now)
        replica, in_flight, latency = probe.replica, pool.safe_in_flight, pool.safe_latency
        # The newest few: older probes would cost more than they improve the choice.
        safe = []
        for one in probes[-_NEWEST:]:
            if one.in_flight <= in_flight and one.latency <= latency and one is not probe:
                safe.append(one.replica)  # noqa: PERF401 - of three, a comprehension's own call costs more than it saves
        if safe:
            safe.append(replica)
            better = self._rerank(replica, safe, demand, now)
            if better is not replica:
                replica, probe = better, pool.by_replica[better]
        pool.use(probe)
        if len(probes) > FEWEST_PROBES:
            pool.thin()
        return replica

    def _rerank(self, usual: Replica, safe: Sequence[Replica], demand: Demand, now: int) -> Replica:
        """The model's choice in the safe set, within the budget."""
        if self._pause:
            self._pause -= 1
            self._tag = NEITHER
            return usual
        timer = self.timer
        begun = timer() if timer is not None else 0
        model, views = self.model, self._views
        slope, large = model.outlook, 0.0
        if demand.deadline != NEVER:
            slope += model.outlook_when_tight * self._tightness(demand.deadline - now)
        if demand.rows > 1:
            large = model.speed_when_large * log(demand.rows)
        best, lowest = usual, UNKNOWN
        forgotten: Replica | None = None
        for replica in safe:
            view = views[replica]
            if now >= view.due:
                model.refresh(view, replica, now)
                if view.share < self._shares.floor:
                    forgotten = replica
            base = view.base
            if base == UNKNOWN:
                continue
            left, speed = view.free_at - now, view.speed
            score = base + slope * (log(left + view.run_ns) if left > 0 else speed) + large * speed
            if score < lowest:
                lowest, best = score, replica
        gain = 0.0
        if best is usual:
            self.agreed += 1
        else:
            view = views[usual]
            own = view.base + slope * view.outlook(now) + large * view.speed
            if own == UNKNOWN:
                # Nothing to compare with. Other replicas out of range are never chosen by the model.
                self.out_of_range += 1
                best = usual
            elif own - lowest < model.margin:
                self.unsure += 1
                best = usual
            elif views[best].share > self._shares.ceiling:
                self.capped += 1
                best = usual
            else:
                gain = own - lowest
        if self._shadow:
            self._tag = record = ShadowChoice(now, usual, best, len(safe), gain, self._explore)
            self.shadow_log.add(record)
            best = usual
        elif forgotten is not None:
            self.floored += 1
            best = forgotten
        elif self._random.random() < self._explore:
            best = self._at_random(best, safe, demand, now)
        elif best is not usual:
            self.moved += 1
        if timer is not None and timer() - begun > self._budget_ns:
            self.over_budget += 1
            self._pause = _PAUSE
            self._tag = NEITHER
            return usual
        return best

    def _tightness(self, slack_ns: int) -> float:
        """How close the deadline is: the fleet's typical latency as a share of the time left, at most 1."""
        return min(1.0, self.model.typical_ns / slack_ns) if slack_ns > 0 else 1.0

    def _at_random(self, best: Replica, safe: Sequence[Replica], demand: Demand, now: int) -> Replica:
        views = self._views
        known = [replica for replica in safe if views[replica].base != UNKNOWN]
        if len(known) < 2:
            return best
        self.explored += 1
        place = int(self._random.random() * len(known))
        tightness = self._tightness(demand.deadline - now) if demand.deadline != NEVER else 0.0
        candidates = [seen(replica, views[replica], now) for replica in known]
        self._tag = Draw(candidates, place, demand.deadline, tightness, log(demand.rows) if demand.rows > 1 else 0.0)
        return known[place]

    # Attempts.

    def sent(self, replica: Replica, now: int) -> None:
        if self._whole:
            self._fleet.sent(replica, now)
        view = self._views.get(replica)
        if view is not None:
            view.due = 0
            self._shares.sent(view)
        if replica is self._chosen:
            # If admission chose another replica, the attempt belongs to no slice.
            self._chosen = None
            tag, in_flight = self._tag, self._in_flight
            if tag is not NEITHER:
                if len(in_flight) >= _MOST_IN_FLIGHT:
                    # Attempts that never ended: a caller's bug must not use up memory.
                    in_flight.clear()
                in_flight[now] = replica if tag is LEARNED else (replica, tag)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        if self._whole:
            # With probes, a replica's figures are those of its probe.
            self._fleet.ended(replica, latency_ns, failed, now)
            view = self._views.get(replica)
            if view is not None:
                view.due = 0
        if self._deferred is not None:
            self.catch_up()
        # An attempt is identified by the instant it was sent.
        found = self._in_flight.pop(now - latency_ns, None)
        if found is replica:
            if failed:
                self._count(LEARNED, latency_ns, True)
            else:
                self.slices.learned.pending.append(latency_ns)
        elif isinstance(found, tuple) and found[0] is replica:
            if self._whole:
                self._over(found[1], latency_ns, failed, now)
            else:
                self._deferred = (found[1], latency_ns, failed, now)

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        self.catch_up()
        super().dropped(replica, sent_at, now, unneeded=unneeded)
        view = self._views.get(replica)
        if view is not None:
            view.due = 0
        found = self._in_flight.get(sent_at)
        other, tag = found if isinstance(found, tuple) else (found, LEARNED)
        if other is not replica:
            return
        del self._in_flight[sent_at]
        if unneeded:
            # Neither an answer nor a failure: the loser of a hedge must not switch the model off.
            return
        if isinstance(tag, Draw):
            # Most likely given up at its deadline: count it as missed.
            self.model.refine(tag.lot(), now - sent_at, now + 1)
            tag = LEARNED
        self._over(tag, now - sent_at, True, now)

    def wants_report(self, replica: Replica) -> bool:
        # The model reads every replica's last report.
        return True

    def report_candidates(self) -> None:
        return None

    def reported(self, replica: Replica, now: int) -> None:
        if self._whole:
            self._fleet.reported(replica, now)
            view = self._views.get(replica)
            if view is not None:
                view.due = 0
            return
        asked = replica in self._probed
        if self._take_report(replica, now):
            # A probe's answer arrives outside of any decision: what is computed here does not delay one.
            if self._deferred is not None:
                self.catch_up()
            if not self.alert:
                self.model.refresh(self._views[replica], replica, now)
                if asked and self.slices.learned.pending:
                    self.slices.settle()

    def catch_up(self) -> None:
        """Account for the last ended attempt. With probes that is deferred to the next probe's answer, which arrives
        outside of any request, and at the latest to the next choice or end."""
        if self._deferred is not None:
            deferred, self._deferred = self._deferred, None
            self._over(*deferred)

    def _over(self, tag: int | Draw | ShadowChoice, latency_ns: int, failed: bool, now: int) -> None:
        if isinstance(tag, ShadowChoice):
            tag.latency_ns, tag.failed = latency_ns, failed
            return
        if isinstance(tag, Draw):
            if not failed:
                self.model.refine(tag.lot(), latency_ns, now)
            tag = LEARNED
        self._count(tag, latency_ns, failed)

    def _count(self, which: int, latency_ns: int, failed: bool) -> None:
        worse = self.slices.ended(which, latency_ns, failed)
        if worse and not self.alert:
            self.alert = f"policy learned is switched off: {worse}"
            self.switched_off += 1
            if self.on_alert is not None:
                self.on_alert(self.alert)
