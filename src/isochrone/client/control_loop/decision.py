"""The decision of each tick: ask the remote model or not, and when the local model must start. Pure.

The local model is the backstop of every tick: it starts at the latest instant from which its answer is there in time,
or at once if the remote model is not expected to answer before that. So the decision is made before the budget is
spent, and a remote answer that does not come costs no deadline.

A local model that keeps failing, or leaves no time to wait for the remote one, is no backstop: then the plan is that of
a loop without one, except that the local model is tried again from time to time, and in every tick where the remote
model is in doubt and the local one may be in time, or where the remote one is gone.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from isochrone.client.control_loop.local_fitness import LocalFitness
from isochrone.client.control_loop.local_times import LocalTimes
from isochrone.client.control_loop.remote_trust import RemoteTrust, TrustRules

_RULES = TrustRules()


class Ask(Enum):
    """Whether a tick sends a request."""

    #: And waits for the answer until the local model must start.
    REMOTE = "remote"
    #: And does not wait: the request shows whether answers come in time again.
    PROBE = "probe"
    NOTHING = "nothing"


class Plan(NamedTuple):
    ask: Ask
    #: When the local model starts unless the remote one has answered; None: there is no local model, or it is unfit.
    local_at: int | None


class Decision:
    """State of one loop: what it knows of both models."""

    __slots__ = ("_has_local", "_infer", "_margin", "fitness", "local", "remote")

    def __init__(self, infer: int, margin: int, *, has_local: bool, rules: TrustRules = _RULES) -> None:
        self._infer = infer
        self._margin = margin
        self._has_local = has_local
        self.local = LocalTimes()
        self.fitness = LocalFitness(infer - margin)
        self.remote = RemoteTrust(rules)

    @property
    def usable(self) -> int:
        """How long a remote answer may take to be used, in a tick whose sense stage keeps its budget."""
        if not self._has_local or self.fitness.unfit:
            return self._infer
        return max(0, self._infer - (self.local.estimate or 0) - self._margin)

    def local_took(self, nanoseconds: int, now: int) -> None:
        self.local.took(nanoseconds)
        self.fitness.took(nanoseconds, now)

    def plan(self, now: int, infer_ends: int) -> Plan:
        """Of the tick whose inputs are there ``now`` and whose action must be chosen by ``infer_ends``."""
        usable = self.usable
        self.remote.review(now, usable)
        doubtful = Ask.PROBE if self.remote.may_probe(now) else Ask.NOTHING
        unfit = self.fitness.unfit
        if not self._has_local or unfit:
            # Nothing else could answer. Over a dead link, a request in each tick would keep a returning server busy
            # with connections that are given up.
            is_gone = self.remote.is_gone(now)
            ask = doubtful if is_gone else Ask.REMOTE
            if unfit and not self.remote.is_trusted and (is_gone or (self.local.estimate or 0) <= self._infer):
                # Started at once it may be in time, or work again. A slower one would keep answers from being read.
                return Plan(doubtful if unfit == "too slow" else ask, now)
            return Plan(ask, now if unfit and self.fitness.may_try(now) else None)
        if not self.remote.is_trusted:
            return Plan(doubtful, now)
        run = self.local.estimate
        # A model that has never run starts at once, which shows how long it takes.
        latest = now if run is None else max(now, infer_ends - run - self._margin)
        expected = self.remote.estimate(now, usable)
        if expected is not None and run is not None and expected > latest - now:
            # Too little is left of this tick, by a slow sense stage or a late start.
            return Plan(Ask.NOTHING, now)
        return Plan(Ask.REMOTE, latest)
