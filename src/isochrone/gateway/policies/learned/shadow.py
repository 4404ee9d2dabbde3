"""A bounded log of the learned policy's decisions that were not carried out, and of Prequal's results instead.

Every record has propensities for off-policy evaluation: the probabilities with which the learned policy would make its
own choice, and the choice that was made. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from isochrone.gateway.replicas import Replica


class ShadowChoice:
    """One decision."""

    __slots__ = ("at", "candidates", "failed", "gain", "latency_ns", "made", "made_propensity", "own", "own_propensity")

    def __init__(self, at: int, made: Replica, own: Replica, candidates: int, gain: float, explore: float) -> None:
        self.at = at
        #: Prequal's choice, to which the request was sent, and the learned policy's.
        self.made = made.endpoint.address
        self.own = own.endpoint.address
        self.candidates = candidates
        #: The expected gain: the difference of the scores, a logarithm of time.
        self.gain = gain
        at_random = explore / candidates
        self.own_propensity = 1 - explore + at_random
        self.made_propensity = self.own_propensity if made is own else at_random
        #: The result; None: the request is not over. A request that was given up has failed.
        self.latency_ns: int | None = None
        self.failed = False

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class ShadowLog:
    """The latest decisions, and counts of all."""

    def __init__(self, length: int) -> None:
        self.records: deque[ShadowChoice] = deque(maxlen=length)
        self.seen = 0
        self.agreed = 0

    def add(self, record: ShadowChoice) -> None:
        self.records.append(record)
        self.seen += 1
        self.agreed += record.made == record.own
