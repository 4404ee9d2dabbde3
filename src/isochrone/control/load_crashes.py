"""Loads under which a worker's process ended: which may be tried again, and which are refused for a while. Pure.

A model that crashes at load takes its worker and all other models there with it, on every worker that loads it. So the
rule of requests that kill holds for loads too (``gateway.resilience.suspects``): a load that was under way when a
process ended is a suspect, and is tried once more, alone on its worker and on one worker only. When that process ends
too, the controller makes the call no more for a while. This is one controller's knowledge: a new leader starts without.
"""

from __future__ import annotations

from isochrone.clock import SECOND
from isochrone.control.loads import Call
from isochrone.gateway.lost_workers import ADVICE
from isochrone.gateway.resilience.suspects import Key, QuarantineRules, Standing, Suspects

_RULES = QuarantineRules(duration_ns=600 * SECOND, suspicion_ns=600 * SECOND)


class LoadCrashes:
    """Over all workers of a controller. ``now``: nanoseconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._suspects = Suspects()
        self._on_trial: set[Key] = set()

    def is_suspect(self, call: Call, now: int) -> bool:
        return self._suspects.standing(_key(call), now) is Standing.SUSPECT

    def refusal(self, call: Call, now: int) -> str:
        """Why a call is not made; "": it may be."""
        if self._suspects.standing(_key(call), now) is not Standing.QUARANTINED:
            return ""
        versions = ", ".join(sorted(call.versions))
        return f"two workers' processes ended while they loaded version {versions} of '{call.model}'; {ADVICE}"

    def try_alone(self, call: Call) -> bool:
        """Whether a suspect may be tried now: nobody else is trying it."""
        key = _key(call)
        if key in self._on_trial:
            return False
        self._on_trial.add(key)
        return True

    def trial_over(self, call: Call) -> None:
        self._on_trial.discard(_key(call))

    def survived(self, call: Call) -> None:
        """The worker has answered, with yes or no."""
        self._suspects.cleared(_key(call))

    def died(self, call: Call, on_trial: bool, now: int) -> None:
        """The worker's process ended while it was under way."""
        self._suspects.lost([(_key(call), on_trial)], now, lambda model: _RULES)


def _key(call: Call) -> Key:
    return Key(call.model, ",".join(sorted(call.versions)), b"")
