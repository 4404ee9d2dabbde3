"""The next calls to one worker: which loads and unloads, in which order, and when to retry. Pure.

Committed versions and those of a rollout come first; versions that are kept for a rollback come later, in a call of
their own, so that a broken previous version affects nothing else. Models do not wait for each other, but an ensemble
waits for its stages. A load in progress that is no longer desired is cancelled by one more call with the desired
versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from isochrone.control.rollout.desired_versions import differing
from isochrone.control.rollout.observed_state import Failure

#: Concurrent calls to one worker: a load that hangs delays only itself, and a worker is not flooded.
AT_ONCE = 4
#: Seconds before a rejected call is retried: the first pause, which doubles, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: Seconds before a call without an answer is retried.
_SHORT_PAUSE = 0.1

Versions = Mapping[str, frozenset[str]]
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """All versions that a model should have after the call; none: it is unloaded."""

    model: str
    versions: frozenset[str]


class Loads:
    """The loads of one worker. ``present``: the versions that it serves, by model; ``now``: a monotonic clock."""

    def __init__(self) -> None:
        #: None: not known yet. Nothing may be unloaded: the present versions may be the committed ones.
        self._desired: Versions | None = None
        self._spare: Versions = {}
        self._order: Sequence[str] = ()
        self._stages: Versions | None = None
        #: By model: the failure of the last call, if the worker rejected it.
        self.failures: dict[str, Failure] = {}
        #: Failed calls: when each may be retried, and the length of that pause.
        self._pauses: dict[Call, tuple[float, float]] = {}

    def set_desired(self, models: Versions, order: Sequence[str], spare: Versions, stages: Versions | None) -> set[str]:
        """Set the desired versions; return the models whose desired versions changed."""
        before, spare_before = self._desired or {}, self._spare
        changed = {
            model
            for model in {*models, *before}
            if models.get(model) != before.get(model) or spare.get(model, _NONE) != spare_before.get(model, _NONE)
        }
        if self._desired is None:
            changed |= set(models)
        for model in changed:
            self.failures.pop(model, None)
        self._pauses = {call: pause for call, pause in self._pauses.items() if call.model not in changed}
        self._desired, self._spare = dict(models), dict(spare)
        self._order, self._stages = order, stages
        return changed

    def next_of(self, model: str, present: Versions) -> Call | None:
        """The next call for a model; None: it has the desired versions."""
        desired = (self._desired or {}).get(model, _NONE)
        there = present.get(model, _NONE)
        if self._desired is None or there == desired:
            return None
        kept = there & desired
        if missing := self._essential(model) - there:
            return Call(model, kept | missing)
        if there != kept and (kept or not desired):
            # Before spare versions are loaded: the unload must happen even if they cannot be.
            return Call(model, kept)
        return Call(model, desired)

    def due(
        self, present: Versions, in_progress: Collection[str], now: float, loading: Versions | None = None
    ) -> list[Call]:
        """The calls to make now, in this order. ``in_progress``: models whose last call has not ended. ``loading``:
        versions that the worker is loading."""
        ready = [
            call
            for call in sorted([*self._to_make(present), *self._to_give_up(present, loading or {})], key=self._rank)
            if call.model not in in_progress
            and not self._is_paused(call, now)
            and not any(self._is_coming(stage, present, now) for stage in self._below(call))
        ]
        return ready[: max(0, AT_ONCE - len(in_progress))]

    def is_busy(self, present: Versions) -> bool:
        """Whether a call is due that was not rejected."""
        return any(call.model not in self.failures for call in self._to_make(present))

    # The outcome of a call.

    def succeeded(self, call: Call) -> None:
        self.failures.pop(call.model, None)
        self._pauses.pop(call, None)

    def refused(self, call: Call, present: Versions, reason: str, now: float) -> None:
        """The worker rejected the call. The reason is kept until the desired versions change."""
        self.failures[call.model] = Failure(call.versions - present.get(call.model, _NONE), reason)
        _, pause = self._pauses.get(call, (0.0, _FIRST_PAUSE / 2))
        pause = min(_LONGEST_PAUSE, pause * 2)
        self._pauses[call] = (now + pause, pause)

    def unanswered(self, call: Call, now: float) -> None:
        """The worker did not answer. The call is retried until its lease ends."""
        self._pauses[call] = (now + _SHORT_PAUSE, _FIRST_PAUSE / 2)

    # The order.

    def _to_make(self, present: Versions) -> list[Call]:
        names = differing(self._desired, present) if self._desired is not None else []
        return [call for name in names if (call := self.next_of(name, present)) is not None]

    def _to_give_up(self, present: Versions, loading: Versions) -> list[Call]:
        """Calls that cancel loads of versions that are not desired, for models that have the desired ones."""
        if self._desired is None:
            return []
        unwanted = [model for model, versions in loading.items() if versions - self._desired.get(model, _NONE)]
        return [
            Call(model, self._desired.get(model, _NONE)) for model in unwanted if self.next_of(model, present) is None
        ]

    def _essential(self, model: str) -> frozenset[str]:
        return (self._desired or {}).get(model, _NONE) - self._spare.get(model, _NONE)

    def _is_paused(self, call: Call, now: float) -> bool:
        return now < self._pauses.get(call, (0.0, 0.0))[0]

    def _rank(self, call: Call) -> tuple[int, int]:
        """Loads before unloads; stages before the ensembles that run them."""
        place = self._order.index(call.model) if call.model in self._order else len(self._order)
        return (0, place) if call.versions else (1, -place)

    def _below(self, call: Call) -> frozenset[str]:
        """Models whose loads this call waits for: its stages or, if those are unknown, all models before it."""
        if not call.versions or call.model not in self._order:
            return _NONE
        before = frozenset(self._order[: self._order.index(call.model)])
        return before if self._stages is None else before & self._stages.get(call.model, _NONE)

    def _is_coming(self, stage: str, present: Versions, now: float) -> bool:
        """Whether a stage is neither ready nor rejected. A rejected stage must not delay its ensembles: their own
        rejection reports the reason."""
        call = self.next_of(stage, present)
        if call is None or not self._essential(stage) - present.get(stage, _NONE):
            return False
        return not (stage in self.failures and self._is_paused(call, now))
