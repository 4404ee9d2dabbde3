"""least_pending: the replica that would finish its pending requests and one more first.

Pending requests are those of the worker's load report (queued and running, of all gateways), or those in flight from
this gateway. The speed is measured by Little's law: requests present divided by the time they stay is the rate at which
they leave. Sources: Little, "A Proof for the Queuing Formula L = λW", Operations Research 1961; the rule is known as
shortest expected delay (Banawan and Zahorjan, "Load sharing in heterogeneous queueing systems", INFOCOM 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.toolkit.scores import ScoredPolicy
from isochrone.gateway.replicas import Replica

#: Weight that the sums keep with each answer: about the last hundred answers count.
_KEPT = 0.99
#: A new replica starts with this many answers of typical speed: one fast answer does not make a fast worker.
_DOUBT = 8.0
_GAIN = 1 / 64


class _Speed:
    """Decaying sums over recent answers: their number, their seconds, the requests present meanwhile."""

    __slots__ = ("answers", "present", "seconds")

    def __init__(self) -> None:
        self.answers = self.present = self.seconds = 0.0


class LeastPending(ScoredPolicy):
    name = "least_pending"

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._speeds: dict[Replica, _Speed] = {}
        #: Mean seconds per request over all replicas; 0: nothing measured yet.
        self._typical = 0.0

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        self._speeds = {replica: self._speeds.get(replica) or _Speed() for replica in replicas}
        super().replicas_changed(replicas)

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
        """Seconds between two answers of a busy replica."""
        speed = self._speeds[replica]
        doubt = _DOUBT * self._typical
        return (doubt + speed.seconds) / (_DOUBT + speed.present) if doubt else 1e-3

    def _score(self, replica: Replica, now: int) -> float:
        return (replica.load(now) + 1) * self.seconds_each(replica) * (1 + 8 * replica.error_rate)
