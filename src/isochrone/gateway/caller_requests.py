"""What the codecs of HTTP and gRPC have in common: a request with its caller, an attempt with its connection.

A codec subclasses ``CallerRequest``. The shell calls its methods to execute the machine's instructions; the connection
calls the attempt, which passes events on to the shell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, cast

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.fleet.commitment import ANY_EPOCH
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.requests import quota_accounts
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.traffic.fields import Fields
from isochrone.gateway.traffic.token_counts import PassedEvents, PassedTokens, estimate
from isochrone.wire.exchange import Buffer, Headers

if TYPE_CHECKING:
    from isochrone.gateway.evaluation.sampling import Samples
    from isochrone.gateway.fleet.replica_set import ReplicaSet
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.replicas import Replica
    from isochrone.gateway.upstream.connections import Sent
    from isochrone.wire.exchange import Exchange

#: An answer larger than this is passed on as it comes; from then on no other attempt can replace it.
STREAM_BYTES = 256 * 1024


class UpstreamAttempt(Attempt):
    """One sending of a request, and the receiver of its answer.

    Its request is a ``CallerRequest``. Each method says so: mypyc does not let a subclass narrow an attribute.
    """

    sent: Sent | None
    status = 0
    headers: Headers = ()
    #: Those of an HTTP answer that go back to the caller, where such an answer has come before.
    returned: Headers | None = None
    trailers: Headers = ()

    def __init__(self, request: Request, replica_set: ReplicaSet, replica: Replica, now: int) -> None:
        # As in the base class and ``Replica.sent``, whose calls would cost a fifth of a microsecond.
        self.streaming = self.over = self.asks = False
        #: An HTTP request on an HTTP/2 connection that many share.
        self.shared = False
        self.request = request
        self.replica_set = replica_set
        self.replica = replica
        self.sent_at = now
        replica.endpoint.in_flight += 1
        replica.sent_since += 1
        self.load = replica.in_flight = replica.in_flight + 1
        self.sent = None
        self.body: list[Buffer] = []
        self.size = 0

    def cancel(self) -> None:
        if self.sent is not None:
            self.sent.cancel()

    # Called by the connection.

    def head(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers

    def data(self, data: Buffer) -> None:
        request: CallerRequest = self.request  # type: ignore[assignment]
        if self.streaming:
            self.replica.endpoint.heard_at = now_ns()
            request.pass_on(self, data)
            return
        self.body.append(data)
        self.size += len(data)
        if self.size > STREAM_BYTES or request.streams_answer(self):
            request.begin_streaming(self)

    def complete(self, trailers: Headers) -> None:
        self.trailers = trailers
        request: CallerRequest = self.request  # type: ignore[assignment]
        request.gateway.answered(self)

    def whole(self, status: int, headers: Headers, data: Buffer, trailers: Headers) -> None:
        """The three above in one: most answers come in one piece."""
        self.status = status
        self.headers = headers
        self.body.append(data)
        self.size = len(data)
        self.trailers = trailers
        request: CallerRequest = self.request  # type: ignore[assignment]
        request.gateway.answered(self)

    def failed(self, error: IsochroneError) -> None:
        request: CallerRequest = self.request  # type: ignore[assignment]
        request.gateway.lost(self, error)


class CallerRequest(Request, ABC):
    """A request that came over a connection. Constructors of subclasses are the hot path."""

    attempt_type: ClassVar[type[Attempt]] = UpstreamAttempt

    gateway: Gateway
    exchange: Exchange
    #: Of an answer that is passed on, where a quota limits tokens.
    passed_tokens: PassedTokens | None = None

    @property
    def head(self) -> Fields:
        return self.exchange.head

    @property
    def account(self) -> bytes | None:
        grant = self.exchange.head.grant
        return None if grant is None else grant.account

    @property
    def body(self) -> Buffer:
        return self.exchange.body

    def tokens_of(self, attempt: Attempt | None) -> int:
        passed = self.passed_tokens
        if passed is not None and passed.usage:
            return max(0, passed.usage - passed.total)
        whole = attempt.size if isinstance(attempt, UpstreamAttempt) and not attempt.streaming else 0
        return estimate(len(self.body)) + estimate(whole)

    def charge_passed(self, data: Buffer) -> None:
        """A piece of an answer is passed on, and a quota limits tokens."""
        passed = self.passed_tokens
        if passed is None:
            passed = self.passed_tokens = self.make_counts()
        if tokens := passed.count(data):
            quota_accounts.spend(self, tokens, now_ns())

    def make_counts(self) -> PassedTokens:
        return PassedEvents()

    def abandoned(self) -> None:
        """The caller has gone."""
        self.gateway.cancelled(self)

    def opening_bytes(self) -> bytes:
        """The bytes of its message that its id stands in, for the flight recorder; b"": it has none."""
        return b""

    def answered_epoch(self, asked: bytes) -> bytes:
        """The epoch that an answer was given by: the one asked for, or the one that held when it was placed."""
        return asked if asked != ANY_EPOCH else b"%d" % self.epoch

    def take_request_id(self) -> str:
        """The id that the caller gave it; "": none, or it stands in no message that is here. For logs."""
        return ""

    # Instructions.

    @abstractmethod
    def send(self, attempt: UpstreamAttempt) -> None: ...

    @abstractmethod
    def answer(self, attempt: UpstreamAttempt) -> None:
        """Pass an answer on, or end one that is being passed on."""

    @abstractmethod
    def reject(self, error: IsochroneError) -> None: ...

    @abstractmethod
    def cut_off(self, error: IsochroneError) -> None:
        """Break off an answer that is being passed on: the caller must not take it for whole."""

    def abort(self) -> None:
        """Cut the caller's connection, or its stream: nothing better can be said."""
        self.exchange.abort()

    @abstractmethod
    def copy(self, served: ServedModel) -> CallerRequest:
        """The same request for a shadow, from an exchange that discards its answer."""

    # The meaning of an answer.

    @abstractmethod
    def outcome(self, attempt: UpstreamAttempt) -> Outcome: ...

    @abstractmethod
    def is_version_gone(self, attempt: UpstreamAttempt) -> bool:
        """Whether a rejection says that the endpoint has not the version, and the gateway, not the caller, chose it."""

    @abstractmethod
    def is_late(self, attempt: UpstreamAttempt) -> bool:
        """Whether a rejection says that the deadline has passed, or cannot be met."""

    @abstractmethod
    def load_report(self, attempt: UpstreamAttempt) -> LoadReport | None: ...

    @abstractmethod
    def offer(self, samples: Samples) -> None:
        """Live requests are being sampled: this may be one of them."""

    # An answer that is passed on as it comes.

    @abstractmethod
    def streams_answer(self, attempt: UpstreamAttempt) -> bool: ...

    @abstractmethod
    def begin_streaming(self, attempt: UpstreamAttempt) -> None: ...

    @abstractmethod
    def pass_on(self, attempt: UpstreamAttempt, data: Buffer) -> None: ...


def launched(attempt: UpstreamAttempt) -> object:
    """What an attempt was sent as, once it has a connection."""
    return cast(object, getattr(attempt.sent, "launched", attempt.sent))


class CallerStream(CallerRequest):
    """A request whose messages come one by one."""

    @abstractmethod
    def expire(self) -> None:
        """Its deadline has passed before its first message came."""

    @abstractmethod
    def resume(self) -> None:
        """The strict switch that its messages waited for is over."""
