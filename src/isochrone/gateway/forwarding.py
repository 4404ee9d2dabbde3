"""One request on its way through the gateway: placed, sent, perhaps sent again, answered once.

An ``Attempt`` is one sending of it to one replica, and receives that replica's answer. What the two protocols do
differently (heads, statuses, how an answer is written) is in ``http_forward`` and ``grpc_forward``. All callbacks on
the loop's thread: no task and no future per request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from isochrone.clock import NEVER, SECOND, now_ns
from isochrone.errors import ConnectionLost, DeadlineExceeded, IsochroneError, Quarantined, Unavailable
from isochrone.gateway.admission import Refusal
from isochrone.gateway.attempt import Attempt
from isochrone.gateway.commitment import ANY_EPOCH
from isochrone.gateway.lost_workers import Loss, was_cut
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.probing import ask
from isochrone.gateway.replicas import Endpoint, Replica
from isochrone.gateway.resilience.conformance import ForeignAnswer
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.served_model import ANSWERED, BROKEN, FOREIGN, REFUSED
from isochrone.gateway.shadowing import DiscardingExchange
from isochrone.gateway.traffic.affinity import SEQUENCE_MARK
from isochrone.wire.exchange import Buffer, Headers

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.replica_set import ReplicaSet
    from isochrone.gateway.resilience.suspects import Key
    from isochrone.gateway.sampling import Samples
    from isochrone.gateway.served_model import ServedModel
    from isochrone.gateway.traffic.quotas import Quotas
    from isochrone.gateway.traffic.shadow import Shadow
    from isochrone.wire.exchange import Exchange

#: A copy for a shadow is given up after so long.
_COPY_NS = 10 * SECOND
#: Requests of this class are not refused here: workers let them overtake, so what their queues take says little.
_HIGHEST = 1


class Forward(ABC):
    """One request. Subclasses know its protocol, and make it: their constructors are the hot path.

    What most requests leave as it is stands on the class.
    """

    gateway: Gateway
    exchange: Exchange
    served: ServedModel
    replica_set: ReplicaSet
    arrived: int
    demand: Demand
    #: Under way now; two when a hedge was sent.
    attempts: list[Attempt]
    deadline = NEVER
    #: May run twice: inference of a model without state.
    idempotent = True
    tried: tuple[Replica, ...] = ()
    over = False
    #: Shadow traffic: never tried again, and says nothing of a worker that live traffic goes by.
    is_copy = False
    #: When a second copy may go; NEVER: not at all.
    hedge_at = NEVER
    #: When ``look`` is due.
    look_at = NEVER
    #: The quotas it counts against, and whose; and what it is to pay.
    granted: list[tuple[Quotas, bytes]] | None = None
    compute_ns = 0
    #: What it was placed by; 0: no control plane says.
    epoch = 0
    #: The answer of an attempt that another one was to better.
    refusal: Attempt | None = None
    #: Set when it may be what kills workers, so that it goes alone (see ``lost_workers``).
    suspect: Key | None = None
    #: What a suspect is answered with when nobody is left to send it to.
    loss: IsochroneError | None = None
    fingerprint: bytes | None = None

    # The way there.

    def begin(self) -> None:
        """Places the request and sends it, or refuses it."""
        served = self.served
        now = self.arrived
        served.requests += 1
        served.budget.unbooked += 1
        self.gateway.forwards.add(self)
        if self.gateway.resting is not None:
            self.gateway.wake()
        if served.commitment is not None:
            self.epoch = served.commitment.epoch
        sampled = self.gateway.sampling.on
        if sampled and served.name in sampled and self.idempotent:
            self.offer(sampled[served.name])
        try:
            if served.suspected:
                self.gateway.lost_workers.examine(self)
            if served.quotas:
                served.enter(self, self.exchange.head, now)
            self.look_at = self.deadline
            if served.hedge_delay_ns and self.idempotent:
                self.hedge_at = now + served.hedge_delay_ns
                if self.hedge_at < self.deadline:
                    self.look_at = self.hedge_at
            try:
                if self.suspect is None:
                    self._place(now)
                else:
                    self._place_suspect(now)
            except IsochroneError:
                # By what is known of the workers that have this version: one too slow for deadlines is refused here.
                self._count_failure(self.replica_set)
                raise
            if served.shadow is not None and self.suspect is None:
                self._copy(served.shadow)
        except IsochroneError as error:
            served.refused += 1
            self._finish()
            self.refuse(error)

    def _copy(self, shadow: Shadow) -> None:
        """Sends a copy to the version or model that is being tried, now and then."""
        size = len(self.exchange.body)
        if not shadow.take(Kind.STATELESS if self.idempotent else Kind.SEQUENCE, size):
            return
        rules = shadow.rules
        try:
            served = self.gateway.fleet.model(rules.model or self.served.name)
            replica_set = served.replica_set(rules.version) if rules.version else served.current
        except IsochroneError:
            # What it is to go to is not there: no affair of the request that is under way.
            shadow.ended(size)
            return
        exchange = DiscardingExchange(self.exchange, lambda: shadow.ended(size))
        copy = self.copy_for(exchange, served, replica_set)
        copy.is_copy = True
        copy.idempotent = False
        copy.deadline = copy.look_at = min(self.deadline, exchange.arrived + _COPY_NS)
        self.gateway.forwards.add(copy)
        try:
            if served.suspected:
                self.gateway.lost_workers.examine(copy)
                if copy.suspect is not None:
                    raise Unavailable("a request that may kill its worker is not copied")
            copy._place(exchange.arrived)
        except IsochroneError as error:
            copy._finish()
            copy.refuse(error)

    def _place(self, now: int) -> None:
        replica_set = self.replica_set
        if replica_set.tiers:
            replica_set = self.replica_set = self.served.in_tier(replica_set, self.deadline, now)
        if not self.idempotent and self.demand.key.startswith(SEQUENCE_MARK):
            self._place_at_home(replica_set, now)
            return
        replica = replica_set.balancer.choose(self.demand, now)
        if replica is None:
            raise self.served.nobody(replica_set)
        if replica_set.balancer.policy.wants_probes:
            ask(self.gateway.fleet, replica_set.balancer.policy.probes(now), now)
        if self.deadline != NEVER and self.demand.priority != _HIGHEST:
            verdict = self.served.admission.check(replica_set.balancer.eligible, replica, self.demand, now)
            if isinstance(verdict, Refusal):
                raise DeadlineExceeded(f"Request timeout expired: model '{self.served.name}': {verdict.message}")
            replica = verdict
        limit = self.served.max_in_flight
        if replica.breaker is not None or (limit and replica.in_flight >= limit):
            replica = self._beside_breakers(replica, now)
        self._send(replica, now)

    def _place_suspect(self, now: int) -> None:
        """Like one that cost a worker its process. A sequence has one home, where its turn cannot be chosen."""
        self.hedge_at = NEVER
        self.look_at = self.deadline
        if self.demand.key.startswith(SEQUENCE_MARK):
            self._place(now)
        else:
            self.gateway.lost_workers.wait(self)

    def place_again(self) -> None:
        """It waited as a suspect, and is cleared."""
        try:
            self._place(now_ns())
        except IsochroneError as error:
            self.give_up(error)

    def send_alone(self, replica: Replica, now: int) -> str:
        """Sends a suspect; the endpoint's address."""
        if self.tried:
            self.served.retries += 1
        self._send(replica, now)
        return replica.endpoint.address

    def _place_at_home(self, replica_set: ReplicaSet, now: int) -> None:
        """A request of a sequence: it goes where the sequence lives, or nowhere."""
        home = self.served.sequences.home(self.demand, replica_set)
        if home is None:
            raise self.served.nobody(replica_set)
        self.replica_set = home.replica_set
        verdict = self.served.admission.check((), home.replica, self.demand, now)
        if isinstance(verdict, Refusal):
            raise DeadlineExceeded(f"Request timeout expired: model '{self.served.name}': {verdict.message}")
        self._send(home.replica, now)

    def _beside_breakers(self, replica: Replica, now: int) -> Replica:
        """A replica whose circuit breaker lets one more request through; raises when all that were asked refuse."""
        refused: dict[Replica, str] = {}
        demand = self.demand
        for _ in range(min(8, len(self.replica_set.balancer.eligible))):
            reason = self.breaker_refusal(replica, now)
            if not reason:
                return replica
            refused[replica] = reason
            again = Demand(demand.key, demand.deadline, demand.rows, demand.priority, tuple(refused))
            other = self.replica_set.balancer.choose(again, now)
            if other is None or other in refused:
                break
            replica = other
        reasons = "; ".join(f"{one.endpoint.address}: {reason}" for one, reason in refused.items())
        raise Unavailable(f"no worker may take a request for model '{self.served.name}' now ({reasons})")

    def breaker_refusal(self, replica: Replica, now: int) -> str:
        limit = self.served.max_in_flight
        if limit and replica.in_flight >= limit:
            return f"circuit breaker: max_in_flight ({limit})"
        return replica.breaker.refusal(now) if replica.breaker is not None else ""

    def _send(self, replica: Replica, now: int) -> None:
        attempt = Attempt(self, self.replica_set, replica, now)
        self.attempts.append(attempt)
        self.tried = (*self.tried, replica) if self.tried else (replica,)
        self.transmit(attempt, now)

    # The way back.

    def answered(self, attempt: Attempt, trailers: Headers) -> None:
        """A replica's answer is whole."""
        now = now_ns()
        attempt.over = True
        replica = attempt.replica
        outcome = self.outcome(attempt, trailers)
        if outcome == FOREIGN:
            self.answered_by_another(attempt)
            return
        if outcome != REFUSED and self.served.suspected:
            self.gateway.lost_workers.answered(self, attempt)
        if attempt.asks:
            self.take_report(attempt, trailers, now)
        if outcome == REFUSED:
            # Says nothing of how fast the replica is, nor that it is broken.
            attempt.drop(now)
            if self.lost_version(attempt, trailers):
                # Perhaps it was unloaded there. Until that is known, such requests use up the retry budget.
                self.gateway.look_at(replica.endpoint.address, now)
            if not replica.endpoint.reports:
                # Its load is not told, so that who refuses quickly would look idle and be sent ever more.
                replica.error_rate += (1.0 - replica.error_rate) / 16
        else:
            attempt.end(outcome == BROKEN, now)
        replica.endpoint.handle.heard_at = now
        self.attempts.remove(attempt)
        if self.over:
            return
        # A model that fails fails elsewhere too; only who was refused may be luckier with another worker.
        if (
            outcome == REFUSED
            and not attempt.streaming
            and (self._try_again(attempt, outcome, now) or self._unpin(attempt, trailers, now))
        ):
            self.refusal = attempt
            attempt.headers = (*attempt.headers, *trailers)
            return
        if self.attempts:
            self._cancel_others(unneeded=True)
        served = self.served
        if served.trial is not None and not self.is_copy:
            served.trial.ended(attempt.replica_set.version, now - self.arrived, outcome != ANSWERED)
        if not served.requests & 7:
            # One answer in eight tells enough of how long they take.
            served.hedging.ended(now - self.arrived)
        if self.granted is not None:
            # What the worker says a run takes: the wait is not the caller's fault.
            self.compute_ns = min(now - attempt.sent_at, replica.report.run_ns or NEVER)
        self._finish()
        if attempt.streaming:
            self.end_streaming(attempt, trailers)
        else:
            self.deliver(attempt, trailers)

    def answered_by_another(self, attempt: Attempt) -> None:
        """The answer is not the protocol's: it counts as none, against the endpoint too, and is never passed on."""
        attempt.status = 0
        self.gateway.foreign_answer(attempt.replica.endpoint, attempt.foreign, now_ns())
        reason = f"its answer is not the Open Inference Protocol's: {attempt.foreign}"
        self.attempt_failed(attempt, ForeignAnswer(reason))

    def attempt_failed(self, attempt: Attempt, error: IsochroneError, *, silent: bool = False) -> None:
        """The connection broke, or was never made; or the answer made no sense. ``silent``: given up here, since the
        worker does not answer."""
        attempt.over = True
        attempt.end(True, now_ns())
        self.attempts.remove(attempt)
        if self.over:
            return
        waits = was_cut(error) and not silent and self.gateway.lost_workers.ask_after(Loss(self, attempt, error))
        if attempt.streaming:
            self._cancel_others()
            self._finish()
            self.cut_off(error)
        elif not waits:
            self.failed_for_good(attempt, error)

    def failed_for_good(self, attempt: Attempt, error: IsochroneError) -> None:
        """An attempt failed, and its worker's process did not end with it: another worker may do better."""
        now = now_ns()
        unprocessed = isinstance(error, ConnectionLost) and error.unprocessed
        attempt.lost = isinstance(error, ConnectionLost)
        if attempt.lost:
            # Another server may have its port by now.
            self.gateway.look_at(attempt.replica.endpoint.address, now)
        if self._try_again(attempt, REFUSED if unprocessed else BROKEN, now):
            return
        self.give_up(_as_told(attempt, error))

    def suspected(self, attempt: Attempt, error: IsochroneError, now: int) -> None:
        """Its worker's process ended under it: it may go on, as a suspect."""
        self.hedge_at = NEVER
        self.look_at = self.deadline
        attempt.lost = True
        self.loss = _as_told(attempt, error)
        if not self._try_again(attempt, BROKEN, now, process_ended=True):
            self.give_up(self.loss)

    def give_up(self, error: IsochroneError) -> None:
        """Nothing is left to try."""
        self._cancel_others()
        self._finish()
        self._count_failure(self.replica_set)
        if self.refusal is not None and not isinstance(error, Quarantined):
            self.deliver(self.refusal, ())
        else:
            self.refuse(error)

    def _count_failure(self, replica_set: ReplicaSet) -> None:
        """A version that is being tried, or what it is compared with, has cost a caller an answer."""
        if self.served.trial is not None and not self.is_copy:
            self.served.trial.ended(replica_set.version, 0, True)

    def _try_again(self, attempt: Attempt, outcome: int, now: int, *, process_ended: bool = False) -> bool:
        """Whether the request goes on: another attempt is under way or has been started."""
        if self.attempts:
            return True
        if self.is_copy:
            return False
        retries = self.served.rules.retries
        if len(self.tried) >= retries.attempts or not retries.enabled or now >= self.deadline:
            return False
        if outcome != REFUSED and not (self.idempotent and retries.idempotent):
            return False
        replica_set = self.replica_set
        if not self.idempotent and self.demand.key.startswith(SEQUENCE_MARK):
            return self._move_sequence(replica_set, attempt, now)
        if len(replica_set.balancer.eligible) < 2 and attempt.replica in replica_set.balancer.eligible:
            if replica_set.whole is None:
                return False
            # Nobody else in this tier: any other will do now.
            replica_set = self.replica_set = replica_set.whole
        # The first move of what was lost with its connection is free: there is no more of it than was under way there,
        # and a worker that dies must not cost what the budget happens not to cover.
        free = process_ended or ((attempt.lost or bool(attempt.foreign)) and len(self.tried) == 1)
        if not free and not self.served.budget.take(now):
            self.served.retries_denied += 1
            return False
        if self.suspect is not None:
            self.gateway.lost_workers.wait(self)
            return True
        demand = Demand(self.demand.key, self.deadline, self.demand.rows, self.demand.priority, self.tried)
        replica = replica_set.balancer.choose(demand, now)
        if replica is None or replica in self.tried or self.breaker_refusal(replica, now):
            return False
        self.served.retries += 1
        self._send(replica, now)
        return True

    def _move_sequence(self, replica_set: ReplicaSet, attempt: Attempt, now: int) -> bool:
        """The first request of a sequence, which no worker has begun: whether another worker gets it."""
        served, key = self.served, self.demand.key
        replica = served.sequences.next_home(key, replica_set, self.tried, lost=attempt.lost)
        if replica is None and replica_set.whole is not None:
            # Nobody else in this tier: any other will do now.
            replica_set = self.replica_set = replica_set.whole
            replica = served.sequences.next_home(key, replica_set, self.tried, lost=attempt.lost)
        if replica is None or self.breaker_refusal(replica, now):
            return False
        if not (attempt.lost and len(self.tried) == 1) and not served.budget.take(now):
            served.retries_denied += 1
            return False
        served.retries += 1
        served.sequences.settle(key, replica_set, replica)
        self._send(replica, now)
        return True

    def _unpin(self, attempt: Attempt, trailers: Headers, now: int) -> bool:
        """The version it was given here is gone from the worker: sent there again without one, as the caller had it."""
        if now >= self.deadline or not attempt.replica_set.version or not self.lost_version(attempt, trailers):
            return False
        if self.gateway.fleet.is_led:
            # What is committed is served, or nothing: "the newest there" may be what is only being prepared.
            return False
        if self.is_copy or not self.served.budget.take(now):
            return False
        self.replica_set = self.served.replica_set("")
        replica = self.replica_set.replicas.get(attempt.replica.endpoint.address)
        if replica is None:
            return False
        self._send(replica, now)
        return True

    def epoch_told(self, asked: bytes) -> bytes:
        """The epoch an answer was given by: the one that was asked for, or the one that held when it was placed."""
        return asked if asked != ANY_EPOCH else b"%d" % self.epoch

    # Time and the caller.

    def abandoned(self) -> None:
        """The caller has gone."""
        if not self.over:
            self._cancel_others()
            self._finish()

    def look(self, now: int) -> None:
        """Called every few ms: is its time up, should a second copy go?"""
        if self.over:
            return
        if now >= self.deadline:
            self._time_is_up(now)
        elif now >= self.hedge_at:
            self.hedge_at = NEVER
            self.look_at = self.deadline
            self._hedge(now)

    def _time_is_up(self, now: int) -> None:
        self._count_failure(self.replica_set)
        begun = any(attempt.streaming for attempt in self.attempts)
        attempts, self.attempts = self.attempts, []
        for attempt in attempts:
            # Not a word since it was sent: that says something of the worker, and not of its queue alone.
            attempt.give_up(now, silent=attempt.replica.endpoint.handle.heard_at < attempt.sent_at)
        self._finish()
        waited = (now - self.arrived) / 1e6
        tried = ", ".join(replica.endpoint.address for replica in self.tried)
        error = DeadlineExceeded(f"Request timeout expired: no answer within {waited:.1f} ms (sent to {tried})")
        if begun:
            self.cut_off(error)
        else:
            self.refuse(error)

    def _hedge(self, now: int) -> None:
        if len(self.attempts) != 1 or self.attempts[0].streaming:
            return
        demand = Demand(self.demand.key, self.deadline, self.demand.rows, self.demand.priority, self.tried)
        replica = self.replica_set.balancer.choose(demand, now)
        eligible = self.replica_set.balancer.eligible
        if replica is None or replica in self.tried or self.breaker_refusal(replica, now):
            return
        if self.served.hedging.may_send(eligible, replica, now):
            self.served.hedges += 1
            self._send(replica, now)

    def endpoint_lost(self, endpoint: Endpoint) -> None:
        """The endpoint does not answer any more: attempts there are given up, and tried elsewhere if they may be."""
        for attempt in list(self.attempts):
            if attempt.replica.endpoint is endpoint and attempt.sent is not None:
                attempt.sent.cancel()
                error = ConnectionLost("the worker does not answer health checks")
                self.attempt_failed(attempt, error, silent=True)

    def _cancel_others(self, *, unneeded: bool = False) -> None:
        if not self.attempts:
            return
        attempts, self.attempts = self.attempts, []
        now = now_ns()
        for attempt in attempts:
            attempt.give_up(now, unneeded=unneeded)

    def drop_others(self, attempt: Attempt) -> None:
        """One attempt's answer is being passed on: the others are of no use any more."""
        for other in list(self.attempts):
            if other is not attempt:
                self.attempts.remove(other)
                other.give_up(now_ns(), unneeded=True)

    def _finish(self) -> None:
        self.over = True
        self.gateway.forwards.discard(self)
        if self.suspect is not None:
            self.gateway.lost_workers.over(self)
        if self.granted is not None:
            self.served.leave(self, now_ns())

    # What protocols fill in.

    @abstractmethod
    def copy_for(self, exchange: DiscardingExchange, served: ServedModel, replica_set: ReplicaSet) -> Forward: ...

    @abstractmethod
    def offer(self, samples: Samples) -> None:
        """Live requests are being sampled: this may be one of them."""

    @abstractmethod
    def take_fingerprint(self) -> bytes:
        """A hash of what it asks for, without its id: of requests that may kill workers, and those like them."""

    @abstractmethod
    def transmit(self, attempt: Attempt, now: int) -> None: ...

    @abstractmethod
    def outcome(self, attempt: Attempt, trailers: Headers) -> int: ...

    @abstractmethod
    def lost_version(self, attempt: Attempt, trailers: Headers) -> bool:
        """Whether the worker has not the version that was chosen here, not by the caller."""

    @abstractmethod
    def deliver(self, attempt: Attempt, trailers: Headers) -> None: ...

    @abstractmethod
    def refuse(self, error: IsochroneError) -> None: ...

    @abstractmethod
    def take_report(self, attempt: Attempt, trailers: Headers, now: int) -> None: ...

    @abstractmethod
    def streams_answer(self, attempt: Attempt) -> bool: ...

    @abstractmethod
    def begin_streaming(self, attempt: Attempt) -> None: ...

    @abstractmethod
    def pass_on(self, attempt: Attempt, data: Buffer) -> None: ...

    @abstractmethod
    def end_streaming(self, attempt: Attempt, trailers: Headers) -> None: ...

    @abstractmethod
    def cut_off(self, error: IsochroneError) -> None: ...


def _as_told(attempt: Attempt, error: IsochroneError) -> ConnectionLost:
    """Whatever it was, an answer that is too large included, it was not the caller's fault."""
    unprocessed = isinstance(error, ConnectionLost) and error.unprocessed
    return ConnectionLost(f"worker {attempt.replica.endpoint.address}: {error}", unprocessed=unprocessed)
