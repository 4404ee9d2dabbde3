"""Weighted least pending requests: who would have worked off what it has, and one more, the soonest.

Pending requests are the worker's own word (queued and running, from everybody) or what is in flight from here. The
speed is measured by Little's law: requests present over the time they stay is the rate at which they leave. Source:
Little, "A Proof for the Queuing Formula L = λW", Operations Research 1961; the rule is known as shortest expected
delay (Banawan and Zahorjan, "Load sharing in heterogeneous queueing systems", INFOCOM 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.toolkit.scores import ScoredPolicy
from isochrone.gateway.replicas import Replica

#: Share of what was measured that is kept with each answer: the last hundred or so count.
_KEPT = 0.99
#: A member counts as a typical one until it has been measured about so often: one quick answer is not a quick worker.
_DOUBT = 8.0
_GAIN = 1 / 64


class _Speed:
    """Sums over recent answers: their number, seconds they took, requests present meanwhile, each included."""

    __slots__ = ("answers", "present", "seconds")

    def __init__(self) -> None:
        self.answers = self.present = self.seconds = 0.0


class LeastPending(ScoredPolicy):
    name = "least_pending"

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._speeds: dict[Replica, _Speed] = {}
        #: Seconds per request of a member like any other; 0: nothing measured yet.
        self._typical = 0.0

    def members(self, replicas: Sequence[Replica]) -> None:
        self._speeds = {replica: self._speeds.get(replica) or _Speed() for replica in replicas}
        super().members(replicas)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        speed = self._speeds.get(replica)
        if speed is not None and not failed:
            seconds, present = latency_ns * 1e-9, replica.load(now) + 1.0
            speed.answers = speed.answers * _KEPT + 1
            speed.seconds = speed.seconds * _KEPT + seconds
            speed.present = speed.present * _KEPT + present
            typical = self._typical
            self._typical = typical + (seconds / present - typical) * _GAIN if typical else seconds / present
        self._update(replica, now)

    def seconds_each(self, replica: Replica) -> float:
        """Seconds from one answer to the next while it has something to do."""
        speed = self._speeds[replica]
        doubt = _DOUBT * self._typical
        return (doubt + speed.seconds) / (_DOUBT + speed.present) if doubt else 1e-3

    def _score(self, replica: Replica, now: int) -> float:
        return (replica.load(now) + 1) * self.seconds_each(replica) * (1 + 8 * replica.error_rate)
