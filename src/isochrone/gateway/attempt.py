"""One sending of a request to one target, and the receiver of its answer.

Keeps what the target, its policy and its circuit breaker are to know; what the answer means is the request's affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.resilience.breaker import FIRST_ROUND
from isochrone.gateway.targets import Target
from isochrone.wire.exchange import Buffer, Headers

if TYPE_CHECKING:
    from isochrone.gateway.connections import Sent
    from isochrone.gateway.forwarding import Forward
    from isochrone.gateway.lane import Lane

#: A target is asked for its load this often: asking every time would make every answer's
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
    #: Of the target's circuit breaker, where it has one.
    breaker_round = FIRST_ROUND

    def __init__(self, forward: Forward, lane: Lane, target: Target, now: int) -> None:
        self.forward = forward
        self.lane = lane
        self.target = target
        self.sent_at = now
        #: Its load is asked for with this request.
        self.asks = now - target.asked_at > ASK_NS
        if self.asks:
            target.asked_at = now
        self.load = target.sent()
        if len(lane.balancer.eligible) > 1:
            # With nobody to choose between, a policy need not know.
            lane.balancer.policy.sent(target, now)
        if target.breaker is not None:
            self.breaker_round = target.breaker.sent()
        self.body: list[Buffer] = []

    def end(self, failed: bool, now: int) -> None:
        """It is over, and says something of the target."""
        if self.forward.is_copy:
            self.drop(now)
            return
        target = self.target
        latency = now - self.sent_at
        target.ended(self.load, latency, failed, now)
        if len(self.lane.balancer.eligible) > 1:
            self.lane.balancer.policy.ended(target, latency, failed, now)
        if failed:
            # An answer that says the model failed is the model's affair; no answer is the worker's.
            self.forward.group.failed(target, now, lost=not self.status)
        else:
            target.well += 1
            target.well_ns += latency
        breaker = target.breaker
        if breaker is not None:
            breaker.ended(self.breaker_round, failed, now)

    def drop(self, now: int) -> None:
        """It is over, and says nothing of the target."""
        self.lane.balancer.dropped(self.target, now)
        if self.target.breaker is not None:
            self.target.breaker.dropped(self.breaker_round)

    def give_up(self, now: int, silent: bool = False) -> None:
        """Nobody waits for it any more; the worker is told. ``silent``: it should have answered, and did not."""
        self.over = True
        if silent:
            self.end(True, now)
        else:
            self.drop(now)
        if self.sent is not None:
            self.sent.cancel()

    # What the connection calls.

    def head(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers

    def data(self, data: Buffer) -> None:
        if self.streaming:
            self.target.endpoint.handle.heard_at = now_ns()
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
