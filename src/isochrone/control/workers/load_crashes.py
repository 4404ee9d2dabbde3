"""Loads and unloads during which a worker's process ended: which are retried, and which are rejected for a while. Pure.

A model that crashes at load takes its worker and all other models there with it, on every worker that loads it. So the
rule for requests that kill workers holds for loads too (``gateway.resilience.suspects``): a call that was in progress
when a process ended is a suspect, and is retried once, alone on its worker and on one worker only. If that process ends
too, the controller stops making the call for a while. A new leader starts without this knowledge.

A suspect is known by its effect. The versions that a worker already has cannot be the cause of a crash at load; a
restarted process has none, so a call that loads more versions than a suspect counts as that suspect. An unload is a
suspect for the versions it unloads only: processes that are killed during the unloads of two rollouts have nothing in
common.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from isochrone.clock import SECOND
from isochrone.control.workers.loads import Call
from isochrone.gateway.requests.suspected import ADVICE
from isochrone.gateway.resilience.suspects import Key, QuarantineRules, Standing, Suspects

_RULES = QuarantineRules(duration_ns=600 * SECOND, suspicion_ns=600 * SECOND)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a call changes on a worker: the versions it loads or, if it loads none, the versions it unloads."""

    model: str
    versions: frozenset[str]
    unloads: bool = False

    def includes(self, other: Effect) -> bool:
        if (self.model, self.unloads) != (other.model, other.unloads):
            return False
        return other.versions <= self.versions if other.versions else not self.versions


def effect(call: Call, present: frozenset[str]) -> Effect:
    """``present``: the versions of the model that the worker has."""
    loaded = call.versions - present
    return Effect(call.model, loaded) if loaded else Effect(call.model, present - call.versions, unloads=True)


class LoadCrashes:
    """The suspects of one controller, over all workers. ``now``: nanoseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._suspects = Suspects()
        #: By effect that is being retried: the suspect that it includes.
        self._retries: dict[Effect, Effect] = {}
        #: By suspect: the workers whose processes ended, one entry each time.
        self._deaths: dict[Effect, list[str]] = {}

    def is_suspect(self, change: Effect, now: int) -> bool:
        return self._standing(self._suspect(change, now), now) is Standing.SUSPECT

    def rejection(self, change: Effect, now: int) -> str:
        """Why a call is not made; "": it may be."""
        suspect = self._suspect(change, now)
        if self._standing(suspect, now) is not Standing.QUARANTINED:
            return ""
        versions = ", ".join(sorted(suspect.versions))
        what = f"version {versions} of '{change.model}'" if versions else f"'{change.model}'"
        what = f"an unload of {what}" if suspect.unloads else what
        return f"{what} ended the process of {_workers(self._deaths[suspect])}; {ADVICE}"

    def begin_retry(self, change: Effect, now: int) -> bool:
        """Whether a suspect may be retried now: no other worker retries it."""
        suspect = self._suspect(change, now)
        if change in self._retries or suspect in self._retries.values():
            return False
        self._retries[change] = suspect
        return True

    def end_retry(self, change: Effect) -> None:
        self._retries.pop(change, None)

    def survived(self, change: Effect, now: int) -> None:
        """The worker answered, whether it accepted or rejected the call."""
        suspect = self._suspect(change, now)
        self._suspects.cleared(_key(suspect))
        self._deaths.pop(suspect, None)

    def died(self, change: Effect, worker: str, is_retry: bool, now: int) -> None:
        """The worker's process ended while the call was in progress."""
        suspect = self._suspect(change, now)
        if self._standing(suspect, now) is Standing.CLEAR:
            self._deaths[suspect] = []
        self._deaths[suspect].append(worker)
        self._suspects.lost([(_key(suspect), is_retry)], now, lambda model: _RULES)

    def _suspect(self, change: Effect, now: int) -> Effect:
        """The smallest known suspect that the effect includes, or the effect itself."""
        known = [
            each for each in self._deaths if change.includes(each) and self._standing(each, now) is not Standing.CLEAR
        ]
        return min(known, key=lambda each: (len(each.versions), sorted(each.versions)), default=change)

    def _standing(self, suspect: Effect, now: int) -> Standing:
        return self._suspects.standing(_key(suspect), now)


def _key(change: Effect) -> Key:
    return Key(change.model, ",".join(sorted(change.versions)), b"unload" if change.unloads else b"")


def _workers(deaths: list[str]) -> str:
    """``worker cpu-1 twice``, ``workers cpu-1, cpu-2``."""
    counts = Counter(deaths)
    if len(counts) > 1:
        return f"workers {', '.join(sorted(counts))}"
    (name, times) = next(iter(counts.items()))
    return f"worker {name} {'twice' if times == 2 else f'{times} times'}"
