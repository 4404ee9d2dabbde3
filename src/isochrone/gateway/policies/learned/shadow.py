"""What the learned policy would have done, and what came of what was done: a log of bounded length.

Every record has propensities, so that it can be weighed: the probability with which the learned policy would take its
own choice, and with which it would take the one that was in fact made. Pure; the shell may read ``records``.
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
        #: The heuristic's choice, which the request went to, and the learned policy's.
        self.made = made.endpoint.address
        self.own = own.endpoint.address
        self.candidates = candidates
        #: By how much its score was lower: expected gain, as a logarithm of time.
        self.gain = gain
        by_lot = explore / candidates
        self.own_propensity = 1 - explore + by_lot
        self.made_propensity = self.own_propensity if made is own else by_lot
        #: What came of it; None: it is not over. One that was given up has failed.
        self.latency_ns: int | None = None
        self.failed = False

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class ShadowLog:
    """The last decisions, and counts of all."""

    def __init__(self, length: int) -> None:
        self.records: deque[ShadowChoice] = deque(maxlen=length)
        self.seen = 0
        self.agreed = 0

    def add(self, record: ShadowChoice) -> None:
        self.records.append(record)
        self.seen += 1
        self.agreed += record.made == record.own
