"""Requests that may have ended a worker's process: which ones, where they are, when each is sent again. Pure.

A connection that breaks under requests raises a question first: did the process end, or only the connection? Requests
of one endpoint wait together for the answer. ``Suspects`` decides which of them may go on, ``Retrials`` when; this
module knows both by requests, and finds arriving requests that are like a known suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from isochrone.clock import SECOND
from isochrone.errors import IsochroneError, Quarantined
from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.resilience.retrials import Placed, Retrials
from isochrone.gateway.resilience.suspects import Key, QuarantineRules, Standing, Suspects

#: Losses at an endpoint whose process ended so recently are of the same process.
_RECENT_NS = 2 * SECOND
#: A body up to this size is hashed in a few microseconds. Of a larger one the last bytes are compared first: they are
#: tensor bytes, behind the id.
_SMALL, _TAIL = 4096, 64
#: Last bytes kept of one model's suspects; beyond, every body is hashed.
_MOST_TAILS = 4096

#: How to contain requests that end processes; part of every message about one.
ADVICE = (
    "to keep a crash of a Python or PyTorch model out of the worker, set "
    'parameters { key: "isolation" value: { string_value: "process" } } in its config.pbtxt'
)


class Loss(NamedTuple):
    """A request whose attempt ended with its connection."""

    request: Request
    attempt: Attempt
    error: IsochroneError


class Quarantining(NamedTuple):
    """Requests of one key are rejected from now on; ``waiting``: those among them that waited for another attempt."""

    key: Key
    workers: list[str]
    seconds: float
    waiting: list[Request]


class SuspectedRequests:
    """The suspects of one gateway. ``rules``: the quarantine rules of a model."""

    def __init__(self, rules: Callable[[str], QuarantineRules]) -> None:
        self._rules = rules
        self.cases = Suspects()
        self._retrials: Retrials[Request] = Retrials()
        #: By endpoint: the losses there, while the shell finds out whether its process lives.
        self._unsettled: dict[Endpoint, list[Loss]] = {}
        #: By model that is watched: the last bytes of its large suspects.
        self._tails: dict[str, set[bytes]] = {}
        #: By endpoint: when its process was last found to have ended.
        self._ended: dict[Endpoint, int] = {}

    # A connection broke.

    def add_loss(self, loss: Loss, now: int) -> tuple[bool, bool]:
        """Whether the request waits for the check of its endpoint, and whether that check has to be begun."""
        endpoint = loss.attempt.replica.endpoint
        if not loss.request.served.rules.quarantine.enabled or endpoint.removed:
            return False, False
        unsettled = self._unsettled.get(endpoint)
        if unsettled is not None:
            unsettled.append(loss)
            return True, False
        # The connections of one process do not all end in the same turn of the loop.
        ended_recently = now - self._ended.get(endpoint, -_RECENT_NS) < _RECENT_NS
        if endpoint.draining or not (endpoint.healthy or ended_recently):
            return False, False
        self._unsettled[endpoint] = [loss]
        return True, True

    def take_losses(self, endpoint: Endpoint) -> list[Loss]:
        """The check is over: its requests wait no longer."""
        losses = self._unsettled.pop(endpoint, [])
        for loss in losses:
            self._retrials.over(loss.request)
        return losses

    def process_ended(self, endpoint: Endpoint, losses: list[Loss], now: int) -> list[Quarantining]:
        """The process that had these requests has ended: each is a suspect from now on, or quarantined."""
        self._ended[endpoint] = now
        was_suspect = {loss.request: loss.request.suspect is not None for loss in losses}
        keys = {loss.request: self._key(loss.request, loss.attempt) for loss in losses}
        guilty = self.cases.lost(((keys[one], was_suspect[one]) for one in keys), now, self._rules)
        for request, key in keys.items():
            self._tails.setdefault(request.served.name, set()).add(_tail(request))
            if not request.over:
                request.suspect = key
                request.served.suspects += 1
        self._watch(losses)
        found = []
        for key in guilty:
            tried = {replica for request, own in keys.items() if own == key for replica in request.tried}
            workers = sorted({replica.endpoint.address for replica in tried})
            seconds = self._rules(key.model).duration_ns / 1e9
            found.append(Quarantining(key, workers, seconds, self._retrials.take(key)))
        return found

    def mark_in_flight(self, request: Request) -> None:
        """A suspect's other attempts occupy their endpoints."""
        assert request.suspect is not None
        for attempt in request.attempts:
            address = attempt.replica.endpoint.address
            self._retrials.mark(request, request.suspect, address, self._at_once(request.suspect))

    # A request arrives, or goes on.

    def examine(self, request: Request, now: int) -> None:
        """Mark a request that is like a suspect; raise for one that is like a quarantined one."""
        if not self._may_be_known(request):
            return
        key = self._key(request)
        standing = self.cases.standing(key, now)
        if standing is Standing.QUARANTINED:
            request.served.quarantine_rejections += 1
            raise self.rejection(key)
        if standing is Standing.SUSPECT:
            request.suspect = key

    def wait(self, request: Request) -> None:
        """A suspect is sent when an endpoint has no other, or not too many."""
        assert request.suspect is not None
        self._retrials.over(request)
        self._retrials.add(request, request.suspect, request.deadline, self._at_once(request.suspect))

    @property
    def has_waiting(self) -> bool:
        return bool(self._retrials.waiting)

    def pump(self, place: Callable[[Request, Collection[str]], str | Placed]) -> None:
        """Place suspects that wait; see ``Retrials.pump``."""
        self._retrials.pump(place)

    def answered(self, request: Request, attempt: Attempt) -> list[Request]:
        """A worker answered and lives: the request is no suspect. Returns identical ones that waited."""
        if request.suspect is None and not self._may_be_known(request):
            return []
        key = request.suspect or self._key(request, attempt)
        self._retrials.over(request)
        if not self.cases.cleared(key):
            return []
        self._unwatch(request)
        cleared = self._retrials.take(key)
        for other in cleared:
            other.suspect = None
        return cleared

    def over(self, request: Request) -> None:
        """The request has ended, or will wait again."""
        self._retrials.over(request)

    def sweep(self, now: int) -> frozenset[str]:
        """Close cases whose time is over; the models that need no watching any more."""
        before = self.cases.models
        if not before:
            return before
        self._ended = {endpoint: at for endpoint, at in self._ended.items() if now - at < _RECENT_NS}
        self.cases.sweep(now)
        unwatched = before - self.cases.models
        for model in unwatched:
            self._tails.pop(model, None)
        return unwatched

    def rejection(self, key: Key) -> Quarantined:
        seconds = self._rules(key.model).duration_ns / 1e9
        return Quarantined(
            f"model '{key.model}': this request was in flight when two worker processes were lost, and is rejected for "
            f"up to {seconds:g} s (quarantine.duration_ms); {ADVICE}"
        )

    # Small parts.

    def _key(self, request: Request, attempt: Attempt | None = None) -> Key:
        if request.fingerprint is None:
            request.fingerprint = request.take_fingerprint()
        replica_set = attempt.replica_set if attempt is not None else request.replica_set
        return Key(request.served.name, replica_set.version, request.fingerprint)

    def _may_be_known(self, request: Request) -> bool:
        """False: it is certainly like none of the suspects."""
        tails = self._tails.get(request.served.name, ())
        return len(request.body) <= _SMALL or len(tails) >= _MOST_TAILS or _tail(request) in tails

    def _at_once(self, key: Key) -> int:
        return 1 if self.cases.goes_alone(key) else self._rules(key.model).suspects_at_once

    def _watch(self, losses: Iterable[Loss]) -> None:
        for loss in losses:
            loss.request.served.suspected = self.cases.watches(loss.request.served.name)

    def _unwatch(self, request: Request) -> None:
        served = request.served
        served.suspected = self.cases.watches(served.name)
        if not served.suspected:
            self._tails.pop(served.name, None)


def _tail(request: Request) -> bytes:
    return bytes(request.body[-_TAIL:])
