"""What one worker is to be told next: which loads and unloads, in which order, and when again after a failure. Pure.

What is committed or being prepared comes first, what only shortens the way back after it, in a call of its own: a
previous version that is broken or gone costs nothing but itself. Models do not wait for each other, but an ensemble
waits for its stages. A load that nobody wants any more and that still runs on the worker is given up by one more call
with what is wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from isochrone.control.rollout.desired_versions import differing
from isochrone.control.rollout.observed_state import Failure

#: Calls to one worker at once: a load that hangs holds up itself, and a worker is not flooded.
AT_ONCE = 4
#: Seconds before a refused call is made again: at first, doubling, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: Seconds before a call is made again that had no answer.
_SHORT_PAUSE = 0.1

Versions = Mapping[str, frozenset[str]]
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """All versions a model should have after it; none: it is unloaded."""

    model: str
    versions: frozenset[str]


class Loads:
    """Of one worker. ``present`` is what it serves, by model; ``now`` is any clock that only goes forward."""

    def __init__(self) -> None:
        #: None: nothing has been said yet, and nothing may be touched: what is there may be what is committed.
        self._wanted: Versions | None = None
        self._spare: Versions = {}
        self._order: Sequence[str] = ()
        self._stages: Versions | None = None
        #: By model: what the worker said to the last call, if it refused.
        self.failures: dict[str, Failure] = {}
        #: Calls that failed: when each may be made again, and how long that pause is.
        self._pauses: dict[Call, tuple[float, float]] = {}

    def want(self, models: Versions, order: Sequence[str], spare: Versions, stages: Versions | None) -> set[str]:
        """What it should serve from now on; returns the models of which something else is wanted than before."""
        before, spare_before = self._wanted or {}, self._spare
        changed = {
            model
            for model in {*models, *before}
            if models.get(model) != before.get(model) or spare.get(model, _NONE) != spare_before.get(model, _NONE)
        }
        if self._wanted is None:
            changed |= set(models)
        for model in changed:
            self.failures.pop(model, None)
        self._pauses = {call: pause for call, pause in self._pauses.items() if call.model not in changed}
        self._wanted, self._spare = dict(models), dict(spare)
        self._order, self._stages = order, stages
        return changed

    def next_of(self, model: str, present: Versions) -> Call | None:
        """What a model is to become next; None: it is as it should be."""
        wanted = (self._wanted or {}).get(model, _NONE)
        there = present.get(model, _NONE)
        if self._wanted is None or there == wanted:
            return None
        kept = there & wanted
        if missing := self._essential(model) - there:
            return Call(model, kept | missing)
        if there != kept and (kept or not wanted):
            # Before spare versions are added: it must happen even when they cannot be.
            return Call(model, kept)
        return Call(model, wanted)

    def due(
        self, present: Versions, under_way: Collection[str], now: float, loading: Versions | None = None
    ) -> list[Call]:
        """The calls to make now, in this order. ``under_way``: models whose last call has not ended. ``loading``:
        versions that the worker is loading."""
        ready = [
            call
            for call in sorted([*self._to_make(present), *self._to_give_up(present, loading or {})], key=self._rank)
            if call.model not in under_way
            and not self._is_paused(call, now)
            and not any(self._is_coming(stage, present, now) for stage in self._below(call))
        ]
        return ready[: max(0, AT_ONCE - len(under_way))]

    def is_busy(self, present: Versions) -> bool:
        """Whether anything is to change that was not refused."""
        return any(call.model not in self.failures for call in self._to_make(present))

    # How a call ended.

    def succeeded(self, call: Call) -> None:
        self.failures.pop(call.model, None)
        self._pauses.pop(call, None)

    def refused(self, call: Call, present: Versions, reason: str, now: float) -> None:
        """It answered "no": what it said is kept until something else is wanted."""
        self.failures[call.model] = Failure(call.versions - present.get(call.model, _NONE), reason)
        _, pause = self._pauses.get(call, (0.0, _FIRST_PAUSE / 2))
        pause = min(_LONGEST_PAUSE, pause * 2)
        self._pauses[call] = (now + pause, pause)

    def unanswered(self, call: Call, now: float) -> None:
        """Its lease decides whether it is still there; until then it is asked again."""
        self._pauses[call] = (now + _SHORT_PAUSE, _FIRST_PAUSE / 2)

    # The order.

    def _to_make(self, present: Versions) -> list[Call]:
        names = differing(self._wanted, present) if self._wanted is not None else []
        return [call for name in names if (call := self.next_of(name, present)) is not None]

    def _to_give_up(self, present: Versions, loading: Versions) -> list[Call]:
        """Of models that are as they should be, but for a load of a version that is not wanted."""
        if self._wanted is None:
            return []
        unwanted = [model for model, versions in loading.items() if versions - self._wanted.get(model, _NONE)]
        return [
            Call(model, self._wanted.get(model, _NONE)) for model in unwanted if self.next_of(model, present) is None
        ]

    def _essential(self, model: str) -> frozenset[str]:
        return (self._wanted or {}).get(model, _NONE) - self._spare.get(model, _NONE)

    def _is_paused(self, call: Call, now: float) -> bool:
        return now < self._pauses.get(call, (0.0, 0.0))[0]

    def _rank(self, call: Call) -> tuple[int, int]:
        """Loads before unloads; stages before what runs them."""
        place = self._order.index(call.model) if call.model in self._order else len(self._order)
        return (0, place) if call.versions else (1, -place)

    def _below(self, call: Call) -> frozenset[str]:
        """Models whose load this one waits for: its stages, or where those are not told, all before it in the order."""
        if not call.versions or call.model not in self._order:
            return _NONE
        before = frozenset(self._order[: self._order.index(call.model)])
        return before if self._stages is None else before & self._stages.get(call.model, _NONE)

    def _is_coming(self, stage: str, present: Versions, now: float) -> bool:
        """Whether a stage is not there yet and not refused either: what was refused must not hold up its ensembles,
        whose own refusal tells the reason."""
        call = self.next_of(stage, present)
        if call is None or not self._essential(stage) - present.get(stage, _NONE):
            return False
        return not (stage in self.failures and self._is_paused(call, now))
