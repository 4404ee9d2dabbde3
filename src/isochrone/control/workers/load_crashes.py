"""Loads under which a worker's process ended: which may be tried again, and which are refused for a while. Pure.

A model that crashes at load takes its worker and all other models there with it, on every worker that loads it. So the
rule of requests that kill holds for loads too (``gateway.resilience.suspects``): a load that was under way when a
process ended is a suspect, and is tried once more, alone on its worker and on one worker only. When that process ends
too, the controller makes the call no more for a while. This is one controller's knowledge: a new leader starts without.

The calls here hold only the versions that the worker does not have yet: those that it has cannot be the cause. A
process that was started again has none, so that a call for more versions than a suspect's counts as that suspect's.
"""

from __future__ import annotations

from collections import Counter

from isochrone.clock import SECOND
from isochrone.control.workers.loads import Call
from isochrone.gateway.lost_workers import ADVICE
from isochrone.gateway.resilience.suspects import Key, QuarantineRules, Standing, Suspects

_RULES = QuarantineRules(duration_ns=600 * SECOND, suspicion_ns=600 * SECOND)


class LoadCrashes:
    """Over all workers of a controller. ``now``: nanoseconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._suspects = Suspects()
        self._on_trial: dict[Call, Call] = {}
        #: By suspect: the workers whose processes ended, one entry each time.
        self._deaths: dict[Call, list[str]] = {}

    def is_suspect(self, call: Call, now: int) -> bool:
        return self._standing(self._suspect(call, now), now) is Standing.SUSPECT

    def refusal(self, call: Call, now: int) -> str:
        """Why a call is not made; "": it may be."""
        suspect = self._suspect(call, now)
        if self._standing(suspect, now) is not Standing.QUARANTINED:
            return ""
        versions = ", ".join(sorted(suspect.versions))
        what = f"version {versions} of '{call.model}'" if versions else f"an unload of '{call.model}'"
        return f"{what} ended the process of {_workers(self._deaths[suspect])}; {ADVICE}"

    def try_alone(self, call: Call, now: int) -> bool:
        """Whether a suspect may be tried now: nobody else is trying it."""
        suspect = self._suspect(call, now)
        if call in self._on_trial or suspect in self._on_trial.values():
            return False
        self._on_trial[call] = suspect
        return True

    def trial_over(self, call: Call) -> None:
        self._on_trial.pop(call, None)

    def survived(self, call: Call, now: int) -> None:
        """The worker has answered, with yes or no."""
        suspect = self._suspect(call, now)
        self._suspects.cleared(_key(suspect))
        self._deaths.pop(suspect, None)

    def died(self, call: Call, worker: str, on_trial: bool, now: int) -> None:
        """The worker's process ended while it was under way."""
        suspect = self._suspect(call, now)
        if self._standing(suspect, now) is Standing.CLEAR:
            self._deaths[suspect] = []
        self._deaths[suspect].append(worker)
        self._suspects.lost([(_key(suspect), on_trial)], now, lambda model: _RULES)

    def _suspect(self, call: Call, now: int) -> Call:
        """The smallest known suspect that the call would load too, or the call itself."""
        known = [
            each
            for each in self._deaths
            if each.model == call.model
            and (each.versions <= call.versions if each.versions else not call.versions)
            and self._standing(each, now) is not Standing.CLEAR
        ]
        return min(known, key=lambda each: (len(each.versions), sorted(each.versions)), default=call)

    def _standing(self, suspect: Call, now: int) -> Standing:
        return self._suspects.standing(_key(suspect), now)


def _key(call: Call) -> Key:
    return Key(call.model, ",".join(sorted(call.versions)), b"")


def _workers(deaths: list[str]) -> str:
    """``worker cpu-1 twice``, ``workers cpu-1, cpu-2``."""
    counts = Counter(deaths)
    if len(counts) > 1:
        return f"workers {', '.join(sorted(counts))}"
    (name, times) = next(iter(counts.items()))
    return f"worker {name} {'twice' if times == 2 else f'{times} times'}"
