"""Learned: a small linear model re-ranks what Prequal calls safe, and is watched while it does.

It stands on Prequal's choice and its safe set: cold, well, and about as quick as the quickest. Inside that set it takes
the candidate its model expects to answer soonest. Around that stand the guard rails, each with a counter:

- Prequal's choice stands when the gain is small, when figures are out of the range of training, for retries, and while
  a worker is being tried out.
- A decision looks at no more than 16 candidates. A shell that lends a timer has slow decisions thrown away, and the
  model rests for a while.
- A control slice stays on Prequal. When the learned slice has a worse p99 or fails more, the model is switched off for
  good and ``alert`` says why; only ``switch_on`` ends that.
- Endpoints have a floor and a ceiling of traffic. ``shadow`` changes nothing and logs what it would have done.
- Refinement learns from the few requests placed by lot, in small steps, never far from the shipped weights.

Trained by ``isochrone simulate train``; docs/learned.md has the figures. Source of the method: Langford and Zhang, "The
Epoch-Greedy Algorithm for Contextual Multi-armed Bandits", NIPS 2007 (learn only from what was placed by lot).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from random import Random

from isochrone.gateway.policies.base import NEVER, Demand
from isochrone.gateway.policies.learned_features import View, kept_figures
from isochrone.gateway.policies.learned_model import SHIPPED, UNKNOWN, Lot, Model, Weights, read
from isochrone.gateway.policies.learned_shadow import ShadowChoice, ShadowLog
from isochrone.gateway.policies.learned_shares import Shares
from isochrone.gateway.policies.learned_slices import CONTROL, LEARNED, NEITHER, Slices
from isochrone.gateway.policies.options import flag, number
from isochrone.gateway.policies.prequal import FEWEST_PROBES, Prequal
from isochrone.gateway.targets import Target

#: Of a pool of probes, so many of the newest are looked at. A whole fleet has at most 16 members.
_NEWEST = 3
#: After a decision over budget the model rests for so many.
_REST = 256
_MOST_UNDER_WAY = 1 << 16
#: Last decisions that shadow mode remembers.
_SHADOW_RECORDS = 1024


class Learned(Prequal):
    """``weights``: a file of ``isochrone simulate train``; "": the shipped one. ``shadow``: log, and change nothing.
    ``control``: share of requests left to Prequal. ``explore``: share placed by lot, to learn from. ``step``,
    ``drift``: of the refinement, and how far it may go as a share of each weight. ``floor``, ``ceiling``: an endpoint's
    traffic, in even shares. ``budget_us``: of a decision, where the shell lends a timer."""

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
        # What changes nothing needs no control, and is of no slice.
        self._control = 0.0 if self._shadow else control
        self._own_slice = NEITHER if self._shadow else LEARNED
        self._explore = number(self.name, "explore", explore, 0, 0.1)
        self._shares = Shares(number(self.name, "floor", floor, 0, 0.5), number(self.name, "ceiling", ceiling, 1))
        self._budget_ns = number(self.name, "budget_us", budget_us, 1) * 1e3
        #: A clock in ns that the shell may lend; without one, decisions are bounded by their candidates alone.
        self.timer: Callable[[], int] | None = None
        #: Told when the model is switched off.
        self.on_alert: Callable[[str], None] | None = None
        #: Why the model was switched off; "": it was not.
        self.alert = ""
        self.slices = Slices()
        self.shadow_log = ShadowLog(_SHADOW_RECORDS)
        # Counters: how requests were placed, and how often the model was switched off.
        self.moved = self.agreed = self.unsure = self.out_of_range = self.explored = 0
        self.floored = self.capped = self.over_budget = self.switched_off = 0
        self._views: dict[Target, View] = {}
        #: Requests of a slice, by the instant they were sent: whom to, and which slice or record they belong to.
        self._under_way: dict[int, tuple[Target, int | Lot | ShadowChoice]] = {}
        self._rest = 0
        #: The last choice: whom it fell on, and which slice it belongs to, or its record.
        self._chosen: Target | None = None
        self._tag: int | Lot | ShadowChoice = NEITHER

    def switch_on(self) -> None:
        """After an alert has been looked into: begins anew, with empty slices."""
        self.alert = ""
        self.slices = Slices()

    def members(self, targets: Sequence[Target]) -> None:
        super().members(targets)
        before = self._views
        self._views = {target: before.get(target) or View() for target in targets}
        kept = [view for target, view in self._views.items() if target in before]
        self._shares.members(kept, [view for target, view in self._views.items() if target not in before])

    # The choice.

    def choose(self, demand: Demand, now: int) -> Target:
        self._tag = NEITHER
        if self.alert or demand.avoid:
            # Retries and hedges are left alone: few, and of no slice.
            chosen = super().choose(demand, now)
        elif self._random.random() < self._control:
            self._tag = CONTROL
            chosen = super().choose(demand, now)
        elif self._whole:
            self._tag = self._own_slice
            chosen = self._fleet.choose((), now)
            safe = self._fleet.safe(now)
            if len(safe) > 1:
                chosen = self._rerank(chosen, safe, demand, now)
        else:
            self._tag = self._own_slice
            chosen = self._of_probes(demand, now)
        self._chosen = chosen
        return chosen

    def _of_probes(self, demand: Demand, now: int) -> Target:
        pool = self._pool
        pool.expire(now)
        probe = pool.best(()) if len(pool.probes) >= FEWEST_PROBES else None
        if probe is None:
            return super().choose(demand, now)
        usual, in_flight, latency = probe.target, pool.safe_in_flight, pool.safe_latency
        # The newest few: their news is the best there is, and the rest would cost more than they bring.
        safe = [
            one.target
            for one in pool.probes[-_NEWEST:]
            if one.in_flight <= in_flight and one.latency <= latency and one is not probe
        ]
        if safe:
            safe.append(usual)
            target = self._rerank(usual, safe, demand, now)
            if target is not usual:
                probe = pool.of(target)
        return self._take(probe)

    def _rerank(self, usual: Target, safe: Sequence[Target], demand: Demand, now: int) -> Target:
        """The model's choice among the safe ones, inside the budget."""
        if self._rest:
            self._rest -= 1
            self._tag = NEITHER
            return usual
        timer = self.timer
        if timer is None:
            return self._best(usual, safe, demand, now)
        begun = timer()
        chosen = self._best(usual, safe, demand, now)
        if timer() - begun <= self._budget_ns:
            return chosen
        self.over_budget += 1
        self._rest = _REST
        self._tag = NEITHER
        return usual

    def _best(self, usual: Target, safe: Sequence[Target], demand: Demand, now: int) -> Target:
        model, views = self.model, self._views
        slope, large = model.outlook, 0.0
        if demand.deadline != NEVER:
            slope += model.outlook_when_tight * self._tightness(demand.deadline - now)
        if demand.rows > 1:
            large = model.speed_when_large * log(demand.rows)
        best, lowest, floor = usual, UNKNOWN, self._shares.floor
        forgotten: Target | None = None
        for target in safe:
            view = views[target]
            if now >= view.due:
                model.look(view, target, now)
                if view.share < floor:
                    forgotten = target
            left, speed = view.free_at - now, view.speed
            score = view.base + slope * (log(left + view.run_ns) if left > 0 else speed) + large * speed
            if score < lowest:
                lowest, best = score, target
        gain = 0.0
        if best is usual:
            self.agreed += 1
        else:
            view = views[usual]
            own = view.base + slope * view.outlook(now) + large * view.speed
            if own == UNKNOWN:
                # Nothing to compare with. Others that are out of range are only never moved to.
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
            return usual
        if forgotten is not None:
            self.floored += 1
            return forgotten
        if self._random.random() < self._explore:
            return self._by_lot(best, safe, demand, now)
        if best is not usual:
            self.moved += 1
        return best

    def _tightness(self, slack_ns: int) -> float:
        """How near the deadline is: the fleet's typical latency as a share of the time left, at most 1."""
        return min(1.0, self.model.typical_ns / slack_ns) if slack_ns > 0 else 1.0

    def _by_lot(self, best: Target, safe: Sequence[Target], demand: Demand, now: int) -> Target:
        known = [target for target in safe if self._views[target].base != UNKNOWN]
        if len(known) < 2:
            return best
        self.explored += 1
        place = int(self._random.random() * len(known))
        rows = [self._figures(target, demand, now) for target in known]
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        self._tag = Lot([own - mean for own, mean in zip(rows[place], means, strict=True)], means, demand.deadline)
        return known[place]

    def _figures(self, target: Target, demand: Demand, now: int) -> list[float]:
        """All figures of a candidate that has been looked at, in the order of the weights."""
        view = self._views[target]
        outlook = view.outlook(now)
        tight = self._tightness(demand.deadline - now) if demand.deadline != NEVER else 0.0
        return [*kept_figures(target, now), outlook, outlook * tight, view.speed * log(max(1, demand.rows))]

    # What happens to requests.

    def sent(self, target: Target, now: int) -> None:
        if self._whole:
            super().sent(target, now)
        view = self._views.get(target)
        if view is not None:
            view.due = 0
            self._shares.sent(view)
        if target is self._chosen:
            # Admission may have sent it elsewhere: then it is of no slice.
            self._chosen = None
            if self._tag is not NEITHER:
                if len(self._under_way) >= _MOST_UNDER_WAY:
                    # Ends that never came: a shell at fault must not cost memory.
                    self._under_way.clear()
                self._under_way[now] = (target, self._tag)

    def ended(self, target: Target, latency_ns: int, failed: bool, now: int) -> None:
        if self._whole:
            # By probes, what is known of a target is as of its probe.
            super().ended(target, latency_ns, failed, now)
            view = self._views.get(target)
            if view is not None:
                view.due = 0
        # What was sent at one instant is one request: that is how an end finds its beginning.
        found = self._under_way.pop(now - latency_ns, None)
        if found is not None and found[0] is target:
            tag = found[1]
            if tag is LEARNED and not failed:
                self.slices.learned.pending.append(latency_ns)
            else:
                self._over(tag, latency_ns, failed, now)

    def dropped(self, target: Target, now: int) -> None:
        super().dropped(target, now)
        view = self._views.get(target)
        if view is not None:
            view.due = 0
        # Which one is not told. The oldest there, most likely.
        for sent_at, (other, tag) in self._under_way.items():
            if other is target:
                del self._under_way[sent_at]
                if isinstance(tag, Lot):
                    # Given up at its deadline, most likely: that is a miss.
                    self.model.refine(tag, now - sent_at, now + 1)
                    tag = LEARNED
                self._over(tag, now - sent_at, True, now)
                return

    def reported(self, target: Target, now: int) -> None:
        super().reported(target, now)
        if self._whole:
            view = self._views.get(target)
            if view is not None:
                view.due = 0
        elif target in self._pool.by_target and not self.alert:
            # A probe's answer comes apart from any decision: what can be computed here is not computed there.
            self.model.look(self._views[target], target, now)

    def _over(self, tag: int | Lot | ShadowChoice, latency_ns: int, failed: bool, now: int) -> None:
        if isinstance(tag, ShadowChoice):
            tag.latency_ns, tag.failed = latency_ns, failed
            return
        if isinstance(tag, Lot):
            if not failed:
                self.model.refine(tag, latency_ns, now)
            tag = LEARNED
        self._count(tag, latency_ns, failed)

    def _count(self, which: int, latency_ns: int, failed: bool) -> None:
        worse = self.slices.ended(which, latency_ns, failed)
        if worse and not self.alert:
            self.alert = f"policy learned is switched off: {worse}"
            self.switched_off += 1
            if self.on_alert is not None:
                self.on_alert(self.alert)
