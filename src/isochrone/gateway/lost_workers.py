"""What becomes of requests whose worker's process ended under them.

A connection that breaks with requests in flight raises a question first: is the process gone, or only the connection? A
fresh connection tells, once for all requests of that endpoint, which wait meanwhile: a fraction of a millisecond on
one machine. If the process is gone, ``suspects`` decides which may go on and ``retrials`` when; if not, requests go on
as after any other failure. An endpoint that leaves in good order is not asked about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConnectionLost, IsochroneError, Quarantined
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.resilience.retrials import Placed, Retrials
from isochrone.gateway.resilience.suspects import Key, QuarantineRules, Standing, Suspects
from isochrone.wire.connect import connect_http1

if TYPE_CHECKING:
    from isochrone.gateway.attempt import Attempt
    from isochrone.gateway.fleet import Member
    from isochrone.gateway.forwarding import Forward
    from isochrone.gateway.gateway import Gateway

log = structlog.get_logger()

#: Seconds that a worker has to answer the question whether it lives.
_ANSWER_SECONDS = 0.25
#: Losses at an endpoint whose process was found to be gone so long ago are of the same process.
_LATELY_NS = 2 * SECOND

#: A body up to this size is hashed in a few microseconds. Of a larger one the last bytes are compared first: they are
#: tensor bytes, behind the id.
_SMALL, _TAIL = 4096, 64
#: Last bytes that are kept of one model's suspects; beyond, every body is hashed.
_MOST_TAILS = 4096

#: What to do about requests that kill; part of every message about one.
ADVICE = (
    "to keep a crash of a Python model out of the worker, set "
    'parameters { key: "isolation" value: { string_value: "process" } } in its config.pbtxt'
)


class Loss(NamedTuple):
    """A request whose attempt ended with its connection."""

    forward: Forward
    attempt: Attempt
    error: IsochroneError


class LostWorkers:
    """Of one gateway. ``on_event`` is called with what happened, the model it is about, and a sentence."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.suspects = Suspects()
        self._retrials: Retrials[Forward] = Retrials()
        #: By member: what was lost there, while its process is asked after.
        self._asking: dict[Member, list[Loss]] = {}
        #: By model that is watched: the last bytes of its large suspects.
        self._tails: dict[str, set[bytes]] = {}
        #: By address: when its process was last found to be gone.
        self._gone: dict[str, int] = {}
        self._tasks = BackgroundTasks()
        self._pump_due = False
        self.on_event: Callable[[str, str, str], None] | None = None

    # A connection broke.

    def ask_after(self, loss: Loss) -> bool:
        """Whether the request waits for what has become of its worker: ``settled`` or ``suspected`` goes on with it."""
        endpoint = loss.attempt.replica.endpoint
        member: Member = endpoint.handle
        if not loss.forward.served.rules.quarantine.enabled:
            return False
        if self._gateway.fleet.members.get(endpoint.address) is not member:
            return False
        asking = self._asking.get(member)
        if asking is not None:
            asking.append(loss)
            return True
        # The connections of one process do not all end in the same turn of the loop.
        died_lately = now_ns() - self._gone.get(endpoint.address, -_LATELY_NS) < _LATELY_NS
        if endpoint.draining or not (endpoint.healthy or died_lately):
            return False
        self._asking[member] = [loss]
        self._tasks.start(self._ask(member))
        return True

    async def _ask(self, member: Member) -> None:
        try:
            lives = await _lives(member)
        except Exception as error:
            # Those that wait for the verdict must not wait for ever.
            log.error("asking after a worker failed unexpectedly", worker=member.upstream.address, exc_info=error)
            lives = True
        self._settle(member, self._asking.pop(member), lives)

    def _settle(self, member: Member, losses: list[Loss], lives: bool) -> None:
        now = now_ns()
        was_suspect = {loss.forward: loss.forward.suspect is not None for loss in losses}
        for loss in losses:
            self._retrials.over(loss.forward)
        self.pump_soon()
        if lives:
            for loss in losses:
                if not loss.forward.over:
                    loss.forward.failed_for_good(loss.attempt, loss.error)
            return
        address = member.upstream.address
        self._gone[address] = now
        self._gateway.process_gone(address)
        keys = {loss.forward: self._key(loss.forward, loss.attempt) for loss in losses}
        guilty = self.suspects.lost(((keys[one], was_suspect[one]) for one in keys), now, self._rules)
        self._watch({key.model for key in keys.values()})
        for forward in keys:
            self._tails.setdefault(forward.served.name, set()).add(_tail(forward))
        log.warning("a worker's process is gone", worker=address, requests=len(losses), quarantined=len(guilty))
        for key in guilty:
            self._quarantined(key, [loss.forward for loss in losses if keys[loss.forward] == key])
        for loss in losses:
            forward = loss.forward
            if forward.over:
                continue
            forward.suspect = keys[forward]
            forward.served.suspects += 1
            if forward.suspect in guilty:
                forward.give_up(self._refusal(forward.suspect))
            else:
                for other in forward.attempts:
                    where = other.replica.endpoint.address
                    self._retrials.mark(forward, forward.suspect, where, self._at_once(forward.suspect))
                forward.suspected(loss.attempt, loss.error, now)

    def _quarantined(self, key: Key, forwards: list[Forward]) -> None:
        served = self._gateway.fleet.model(key.model)
        served.quarantines += 1
        workers = sorted({replica.endpoint.address for forward in forwards for replica in forward.tried})
        seconds = served.rules.quarantine.duration_ns / 1e9
        fingerprint = key.fingerprint.hex()
        log.warning(
            "a request is quarantined",
            model=key.model,
            version=key.version,
            fingerprint=fingerprint,
            workers=workers,
            seconds=seconds,
        )
        if self.on_event is not None:
            which = f"version {key.version or 'unnamed'}, fingerprint {fingerprint}"
            detail = f"{which}: in flight when processes at {', '.join(workers)} were lost; rejected for {seconds:g} s"
            self.on_event("request quarantined", key.model, f"{detail}; {ADVICE}")
        for forward in self._retrials.take(key):
            forward.give_up(self._refusal(key))

    # A request arrives, or goes on.

    def examine(self, forward: Forward) -> None:
        """Marks a request that is like a suspect; raises for one that is like a quarantined one."""
        if not self._may_be_known(forward):
            return
        key = self._key(forward)
        standing = self.suspects.standing(key, now_ns())
        if standing is Standing.QUARANTINED:
            forward.served.quarantine_rejections += 1
            raise self._refusal(key)
        if standing is Standing.SUSPECT:
            forward.suspect = key

    def wait(self, forward: Forward) -> None:
        """It is a suspect: it is sent when an endpoint has no other, or not too many."""
        assert forward.suspect is not None
        self._retrials.over(forward)
        self._retrials.add(forward, forward.suspect, forward.deadline, self._at_once(forward.suspect))
        self.pump_soon()

    def answered(self, forward: Forward, attempt: Attempt) -> None:
        """A worker answered it and lives, so that it is not what kills."""
        if forward.suspect is None and not self._may_be_known(forward):
            return
        key = forward.suspect or self._key(forward, attempt)
        self._retrials.over(forward)
        if not self.suspects.cleared(key):
            return
        self._watch((key.model,))
        for other in self._retrials.take(key):
            other.suspect = None
            other.place_again()
        self.pump_soon()

    def over(self, forward: Forward) -> None:
        """It needs nothing any more, or will wait again."""
        self._retrials.over(forward)
        self.pump_soon()

    def sweep(self, now: int) -> None:
        models = self.suspects.models
        if models:
            self._gone = {address: at for address, at in self._gone.items() if now - at < _LATELY_NS}
            self.suspects.sweep(now)
            self._watch(models - self.suspects.models)
        if self._retrials.waiting:
            self.pump_soon()

    async def close(self) -> None:
        await self._tasks.end()

    def pump_soon(self) -> None:
        # Not at once: requests end and begin inside each other's callbacks.
        if not self._pump_due and self._retrials.waiting:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        self._retrials.pump(self._place)

    def _place(self, forward: Forward, occupied: Collection[str]) -> str | Placed:
        """Sends a suspect to an endpoint that is not occupied, unless none is left that it has not tried."""
        if forward.over:
            return Placed.ENDED
        now = now_ns()
        replica_set = forward.replica_set
        replicas = replica_set.replicas
        taken = tuple(replicas[address] for address in occupied if address in replicas)
        avoid = (*forward.tried, *taken)
        demand = Demand(forward.demand.key, forward.deadline, forward.demand.rows, forward.demand.priority, avoid)
        replica = replica_set.balancer.choose(demand, now)
        if replica is None or replica in avoid:
            # A policy that goes by a key may insist on its own choice.
            replica = next((each for each in replica_set.balancer.eligible if each not in avoid), None)
        if replica is not None and not forward.breaker_refusal(replica, now):
            return forward.send_alone(replica, now)
        if any(each not in forward.tried for each in replica_set.balancer.eligible):
            return Placed.WAITS
        if replica_set.whole is not None:
            # Nobody else in this tier: any other will do now.
            forward.replica_set = replica_set.whole
            return self._place(forward, occupied)
        forward.give_up(forward.loss or forward.served.nobody(replica_set))
        return Placed.ENDED

    # Small parts.

    def _key(self, forward: Forward, attempt: Attempt | None = None) -> Key:
        if forward.fingerprint is None:
            forward.fingerprint = forward.take_fingerprint()
        replica_set = attempt.replica_set if attempt is not None else forward.replica_set
        return Key(forward.served.name, replica_set.version, forward.fingerprint)

    def _may_be_known(self, forward: Forward) -> bool:
        """False: it is certainly like none of the suspects."""
        tails = self._tails.get(forward.served.name, ())
        return len(forward.exchange.body) <= _SMALL or len(tails) >= _MOST_TAILS or _tail(forward) in tails

    def _rules(self, model: str) -> QuarantineRules:
        return self._gateway.fleet.rules.of(model).quarantine

    def _at_once(self, key: Key) -> int:
        return 1 if self.suspects.goes_alone(key) else self._rules(key.model).suspects_at_once

    def _watch(self, models: Iterable[str]) -> None:
        for model in models:
            served = self._gateway.fleet.models.get(model)
            if served is not None:
                served.suspected = self.suspects.watches(model)
                if not served.suspected:
                    self._tails.pop(model, None)

    def _refusal(self, key: Key) -> Quarantined:
        seconds = self._rules(key.model).duration_ns / 1e9
        return Quarantined(
            f"model '{key.model}': this request was in flight when two worker processes were lost, and is rejected for "
            f"up to {seconds:g} s (quarantine.duration_ms); {ADVICE}"
        )


def _tail(forward: Forward) -> bytes:
    return bytes(forward.exchange.body[-_TAIL:])


async def _lives(member: Member) -> bool:
    """Whether a worker answers on a fresh connection."""
    upstream = member.upstream
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            connection = await connect_http1(upstream.host, upstream.port, timeout=_ANSWER_SECONDS)
            try:
                host = ((b"host", upstream.address.encode()),)
                await connection.request(b"GET", b"/v2/health/ready", host)  # ready or not: it answers
            finally:
                connection.close()
    except (IsochroneError, TimeoutError, OSError):
        return False
    return True


def was_cut(error: IsochroneError) -> bool:
    """Whether a connection broke under a request that the server may have begun."""
    return isinstance(error, ConnectionLost) and not error.unprocessed
