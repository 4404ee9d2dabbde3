"""One sending of a request to one replica, and the receiver of its answer.

Keeps what the replica, its policy and its circuit breaker are to know; what the answer means is the request's affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.replicas import Replica
from isochrone.gateway.resilience.breaker import FIRST_ROUND, Breaker
from isochrone.wire.exchange import Buffer, Headers

if TYPE_CHECKING:
    from isochrone.gateway.connections import Sent
    from isochrone.gateway.forwarding import Forward
    from isochrone.gateway.replica_set import ReplicaSet

#: A replica is asked for its load this often: asking every time would make every answer's
#: head a new one, to be parsed.
ASK_NS = 2_000_000
#: An answer larger than this is passed on as it comes; from then on it cannot be replaced by another attempt's.
STREAM_BYTES = 256 * 1024


class Attempt:
    """One sending of a request, and what comes back.

    What most attempts leave as it is stands on the class: setting it for each would cost more than the rest.
    """

    sent: Sent | None = None
    #: An HTTP request on an HTTP/2 connection that many share.
    shared = False
    status = 0
    headers: Headers = ()
    size = 0
    #: The answer is passed on as it comes.
    streaming = False
    over = False
    #: It ended with its connection.
    lost = False
    #: Why its answer was not the protocol's; "": it was, or there is none.
    foreign = ""
    #: The replica's circuit breaker when it was sent, and its round; None: it had none.
    breaker: Breaker | None = None
    breaker_round = FIRST_ROUND

    def __init__(self, forward: Forward, replica_set: ReplicaSet, replica: Replica, now: int) -> None:
        self.forward = forward
        self.replica_set = replica_set
        self.replica = replica
        self.sent_at = now
        #: Its load is asked for with this request.
        self.asks = now - replica.asked_at > ASK_NS
        if self.asks:
            replica.asked_at = now
        self.load = replica.sent()
        if len(replica_set.balancer.eligible) > 1:
            # With nobody to choose between, a policy need not know.
            replica_set.balancer.policy.sent(replica, now)
        if replica.breaker is not None:
            self.breaker = replica.breaker
            self.breaker_round = replica.breaker.sent()
        self.body: list[Buffer] = []

    def end(self, failed: bool, now: int) -> None:
        """It is over, and says something of the replica."""
        if self.forward.is_copy:
            self.drop(now, unneeded=True)
            return
        replica = self.replica
        latency = now - self.sent_at
        replica.ended(self.load, latency, failed, now)
        if len(self.replica_set.balancer.eligible) > 1:
            self.replica_set.balancer.policy.ended(replica, latency, failed, now)
        if failed:
            # An answer that says the model failed is the model's affair; no answer is the worker's.
            self.forward.served.failed(replica, now, lost=not self.status)
        else:
            replica.well += 1
            replica.well_ns += latency
        breaker = self._evidence_for()
        if breaker is not None:
            breaker.ended(self.breaker_round, failed, now)

    def drop(self, now: int, *, unneeded: bool = False) -> None:
        """It is over, and says nothing of the replica. ``unneeded``: nor of the policy that chose it."""
        self.replica_set.balancer.dropped(self.replica, self.sent_at, now, unneeded=unneeded or self.forward.is_copy)
        breaker = self._evidence_for()
        if breaker is not None:
            breaker.dropped(self.breaker_round)

    def _evidence_for(self) -> Breaker | None:
        """The replica's circuit breaker, unless it was sent under another: that one's rounds are not comparable."""
        breaker: Breaker | None = self.replica.breaker
        return breaker if self.breaker is None or self.breaker is breaker else None

    def give_up(self, now: int, *, silent: bool = False, unneeded: bool = False) -> None:
        """Nobody waits for it any more; the worker is told. ``silent``: it should have answered, and did not.
        ``unneeded``: another attempt's answer came first."""
        self.over = True
        if silent:
            self.end(True, now)
        else:
            self.drop(now, unneeded=unneeded)
        if self.sent is not None:
            self.sent.cancel()

    # What the connection calls.

    def head(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers

    def data(self, data: Buffer) -> None:
        if self.streaming:
            self.replica.endpoint.handle.heard_at = now_ns()
            self.forward.pass_on(self, data)
            return
        self.body.append(data)
        self.size += len(data)
        if self.size > STREAM_BYTES or self.forward.streams_answer(self):
            self.forward.begin_streaming(self)

    def complete(self, trailers: Headers) -> None:
        self.forward.answered(self, trailers)

    def whole(self, status: int, headers: Headers, data: Buffer, trailers: Headers) -> None:
        """The three above in one: most answers come in one piece."""
        self.status = status
        self.headers = headers
        self.body.append(data)
        self.size = len(data)
        self.forward.answered(self, trailers)

    def failed(self, error: IsochroneError) -> None:
        self.forward.attempt_failed(self, error)
