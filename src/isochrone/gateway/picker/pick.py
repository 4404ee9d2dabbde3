"""A request that Envoy forwards: the gateway's machine places it, and the attempt is a reply that names the worker.

It is in flight from the reply until Envoy says how the worker answered: by the headers of the response or, for streams,
by the end of the call. Only the sender of a request can retry, hedge or copy it, so the picker does not.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

from isochrone.clock import NEVER, now_ns
from isochrone.errors import ConnectionLost, IsochroneError, Unavailable
from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
from isochrone.gateway.fleet.commitment import EPOCH_HEADER
from isochrone.gateway.front.explanation import EXPLAIN_HEADER, PLACEMENT_HEADER, explanation
from isochrone.gateway.front.generate_requests import token_deadlines
from isochrone.gateway.front.grpc_requests import is_late, meaning_of
from isochrone.gateway.front.http_requests import TIMEOUT_HEADER
from isochrone.gateway.latencies.agents import agent_name
from isochrone.gateway.picker.bodies import Asked
from isochrone.gateway.picker.calls import Call, Form
from isochrone.gateway.picker.replies import remove_header, set_header, set_header_again
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.upstream.load_reports import report_of_header, report_of_message
from isochrone.protocol.grpc.calls import parse_timeout
from isochrone.protocol.headers.divisions import DIVISION_HEADER, write_wish
from isochrone.protocol.headers.orca import ORCA_BINARY_HEADER, ORCA_FORMAT_HEADER, ORCA_HEADER
from isochrone.protocol.headers.rejections import is_marked
from isochrone.protocol.headers.stages import STAGES_HEADER
from isochrone.protocol.openai.model_names import MODEL_HEADER, pinned_value
from isochrone.protocol.rest.headers import timeout_header
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers
from isochrone.wire.http2.grpc_client import grpc_timeout

if TYPE_CHECKING:
    from isochrone.gateway.evaluation.sampling import Samples
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway
    from isochrone.gateway.picker.destinations import Destinations
    from isochrone.gateway.replicas import LoadReport

#: Headers of the gateway's own: what a client sends under these names must not reach a worker.
_OWN_HEADERS = frozenset((STAGES_HEADER, EPOCH_HEADER, EXPLAIN_HEADER, MODEL_HEADER))
_REJECTIONS = frozenset((429, 503, 504))
_FAILURES = frozenset((500, 502))
#: How Envoy begins the text of its own answers, when no worker has answered.
_PROXYS_TEXTS = (b"upstream ", b"no healthy upstream", b"no cluster", b"delayed connect error")
_PROXYS_STATUSES = frozenset((503, 504))
_SERVICE_TIME = b"x-envoy-upstream-service-time"


def timeout_of(call: Call, head: Head) -> int:
    """The time that a request's headers give it, in ns; 0: they say nothing."""
    return parse_timeout(head.get(b"grpc-timeout")) if call.is_grpc else timeout_header(head)


class Phase(IntEnum):
    """How far a request has come."""

    PLACING = 0
    #: Envoy knows the worker.
    FORWARDED = 1
    #: The response is on its way to the client: nothing else can be said to it.
    RESPONDING = 2


class EnvoyCall(Protocol):
    """The call that asks about a request, and that its decision is the answer to."""

    gateway: Gateway
    destinations: Destinations
    arrived: int

    @property
    def stream(self) -> Exchange: ...

    @property
    def sees_trailers(self) -> bool:
        """Whether Envoy sends the trailers of gRPC responses."""

    def decided(self, address: bytes, mutations: Sequence[bytes], *, recurs: bool) -> None:
        """The worker is known, and what of the headers is changed on the way there. ``recurs``: of others, too."""

    def refuse(self, error: IsochroneError, call: Call | None) -> None:
        """The request goes nowhere."""

    def abort(self) -> None: ...


class Pick(CallerRequest):
    """One request."""

    is_repeatable = False
    #: Its body is not kept.
    may_be_suspect = False

    def __init__(
        self,
        envoy: EnvoyCall,
        call: Call,
        head: Head,
        served: ServedModel,
        asked: Asked,
        subset: frozenset[str] | None,
    ) -> None:
        Request.__init__(self, envoy.arrived)
        self.gateway = envoy.gateway
        self.exchange = envoy.stream
        self.served = served
        self.call = call
        self.phase = Phase.PLACING
        self._envoy = envoy
        self._head = head
        self.agent = agent_name(head.get(envoy.gateway.fleet.agent_header))
        self.version = asked.version or call.version
        self.asked_epoch = head.get(EPOCH_HEADER)
        self.kind = Kind.STREAM if asked.streams else call.kind
        self.is_inference = call.is_inference
        if subset is not None:
            self.subset = subset
        parameters = asked.parameters
        timeout = timeout_of(call, head)
        if parameters.timeout_ns and (not timeout or parameters.timeout_ns < timeout):
            timeout = parameters.timeout_ns
        timeout = timeout or served.deadline_ns
        if timeout:
            self.deadline = self.arrived + timeout
        if not call.is_inference:
            # Without the deadline, too: how long the model's queue is does not matter to it.
            self.demand = served.plain_demand
            return
        key = served.affinity_key(head) if served.affinity.header else b""
        if parameters.sequence and served.rules.affinity.sequence:
            key = served.affinity.key(parameters.sequence)
            if self.kind is Kind.STATELESS:
                self.kind = Kind.SEQUENCE
        prompt = asked.prompt if served.reads_prompts else b""
        priority = parameters.priority or served.priority
        tokens = None if asked.tokens is None else token_deadlines(asked.tokens, self.arrived)
        if timeout or key or prompt or tokens is not None or priority != served.priority:
            starts = parameters.starts_sequence
            self.demand = Demand(key, self.deadline, 1, priority, (), starts, prompt, tokens)
        else:
            self.demand = served.plain_demand

    @property
    def account(self) -> bytes | None:
        """The proxy proves who it is, not who its caller is."""
        return None

    @property
    def head(self) -> Head:
        return self._head

    @property
    def body(self) -> Buffer:
        return b""

    # Instructions.

    def send(self, attempt: UpstreamAttempt) -> None:
        address = self._envoy.destinations.address(attempt.replica.endpoint.handle, self.call.is_grpc)
        if not address:
            # No failure of the worker's: nothing was sent there.
            self.gateway.cancelled(self)
            name = attempt.replica.endpoint.address
            self._envoy.refuse(Unavailable(f"the address of {name} is not known yet"), self.call)
            return
        self.phase = Phase.FORWARDED
        self._envoy.decided(address, self._mutations(attempt), recurs=self.deadline == NEVER)

    def _mutations(self, attempt: UpstreamAttempt) -> list[bytes]:
        """What of the headers is changed on the way to the worker, beside its address."""
        call, replica_set = self.call, attempt.replica_set
        mutations: list[bytes] = []
        pinned = replica_set.version if not self.version else ""
        if pinned and call.form in (Form.PATH, Form.GENERATE):
            mutations.append(set_header_again(b":path", call.target(pinned)))
        elif call.form is Form.OPENAI:
            value = pinned_value(self.served.name, self.version or replica_set.version)
            mutations.append(set_header_again(MODEL_HEADER, value))
        if self.deadline != NEVER:
            left = self.deadline - now_ns()
            if call.is_grpc:
                mutations.append(set_header(b"grpc-timeout", grpc_timeout(max(left, 1000) / 1e9)))
            else:
                mutations.append(set_header(TIMEOUT_HEADER, b"%.3f" % max(0.001, left / 1e6)))
        if attempt.asks and not self._wants_load:
            mutations.append(set_header_again(ORCA_FORMAT_HEADER, b"bin" if call.is_grpc else b"text"))
        if replica_set.stages:
            mutations.append(set_header_again(STAGES_HEADER, replica_set.stages))
        if attempt.division is not None and attempt.division.is_sent:
            mutations.append(set_header_again(DIVISION_HEADER, write_wish(attempt.division.division)))
        for name, _ in self._head.headers:
            if name not in _OWN_HEADERS or (name == STAGES_HEADER and replica_set.stages):
                continue
            if name != MODEL_HEADER or call.form is not Form.OPENAI:
                mutations.append(remove_header(name))
        return mutations

    @property
    def _wants_load(self) -> bool:
        return self._head.get(ORCA_FORMAT_HEADER) is not None

    def answer(self, attempt: UpstreamAttempt) -> None:
        """Envoy passes it on."""

    def reject(self, error: IsochroneError) -> None:
        if self.phase is not Phase.RESPONDING:
            self._envoy.refuse(error, self.call)

    def cut_off(self, error: IsochroneError) -> None:
        """The client has a part of the response, which the worker ends by the same deadline."""

    def abort(self) -> None:
        self._envoy.abort()

    # The response.

    def responded(self, headers: Headers, ends: bool) -> list[bytes]:
        """Envoy has the headers of the response; returns what of them is changed."""
        self.phase = Phase.RESPONDING
        attempt = self._attempt
        if attempt is None:
            return []
        attempt.headers = headers
        attempt.status = _status(headers)
        mutations = self._response_mutations(attempt)
        if reason := _proxys_own(attempt.status, headers, self.call.is_grpc):
            text = reason.decode("latin-1")[:200]
            self.gateway.lost(attempt, ConnectionLost(text, unprocessed=reason.startswith(b"no ")))
        elif self.kind is Kind.STREAM and attempt.status < 400 and not ends:
            self.gateway.streaming(attempt)
        elif ends or not (self.call.is_grpc and self._envoy.sees_trailers):
            self.gateway.answered(attempt)
        return mutations

    def _response_mutations(self, attempt: UpstreamAttempt) -> list[bytes]:
        mutations: list[bytes] = []
        if attempt.asks and not self._wants_load:
            mutations.append(remove_header(ORCA_HEADER))
        if self.asked_epoch is not None:
            mutations.append(set_header(EPOCH_HEADER, self.answered_epoch(self.asked_epoch)))
        if self._head.get(EXPLAIN_HEADER) is not None:
            mutations.append(set_header(PLACEMENT_HEADER, explanation(self, attempt, self.gateway.clock())))
        return mutations

    def ended_with(self, trailers: Headers) -> list[bytes]:
        """Envoy has the trailers of the response; returns what of them is changed."""
        attempt = self._attempt
        if attempt is None:
            return []
        attempt.trailers = trailers
        asked = attempt.asks
        self.gateway.answered(attempt)
        return [remove_header(ORCA_BINARY_HEADER)] if asked and not self._wants_load else []

    def leave(self) -> None:
        """Envoy has ended the call."""
        attempt = self._attempt
        if attempt is not None and self.phase is Phase.RESPONDING:
            self.gateway.answered(attempt)
        elif not self.over or self.held is not None:
            self.gateway.cancelled(self)

    @property
    def _attempt(self) -> UpstreamAttempt | None:
        attempt = self.attempts[0] if self.attempts else None
        assert attempt is None or isinstance(attempt, UpstreamAttempt)
        return attempt

    # The meaning of an answer.

    def outcome(self, attempt: UpstreamAttempt) -> Outcome:
        if self.call.is_grpc:
            return meaning_of(attempt.trailers or attempt.headers)
        status = attempt.status
        if status in _REJECTIONS or (status == 404 and self.is_version_gone(attempt)):
            return Outcome.NOT_BEGUN if status == 404 or is_marked(attempt.headers) else Outcome.REJECTED
        return Outcome.FAILED if status in _FAILURES else Outcome.ANSWERED

    def is_version_gone(self, attempt: UpstreamAttempt) -> bool:
        if not attempt.replica_set.version or self.version:
            return False
        if self.call.is_grpc:
            return _value(attempt.trailers or attempt.headers, b"grpc-status") in (b"5", b"14")
        return attempt.status in (404, 503)

    def is_late(self, attempt: UpstreamAttempt) -> bool:
        return is_late(attempt.trailers or attempt.headers) if self.call.is_grpc else attempt.status == 504

    def load_report(self, attempt: UpstreamAttempt) -> LoadReport | None:
        try:
            if value := _value(attempt.headers, ORCA_HEADER):
                return report_of_header(value)
            if value := _value(attempt.trailers or attempt.headers, ORCA_BINARY_HEADER):
                return report_of_message(b64decode(value + b"=" * (-len(value) % 4)))
        except (IsochroneError, Base64Error):
            pass
        return None

    # What only the sender of a request can do.

    def offer(self, samples: Samples) -> None:
        """A sample is a whole request."""

    def copy(self, served: ServedModel) -> CallerRequest:
        raise NotImplementedError("a picker copies no requests")

    def take_fingerprint(self) -> bytes:
        raise NotImplementedError("a picker does not see whole requests")

    def streams_answer(self, attempt: UpstreamAttempt) -> bool:
        return False

    def begin_streaming(self, attempt: UpstreamAttempt) -> None: ...

    def pass_on(self, attempt: UpstreamAttempt, data: Buffer) -> None: ...


class SilentPick(Pick):
    """A request whose response brings no load report: Envoy does not send the trailers that would have it."""

    can_ask: ClassVar[bool] = False


def _status(headers: Headers) -> int:
    value = _value(headers, b":status")
    return int(value) if value.isdigit() and len(value) == 3 else 0


def _value(headers: Headers, name: bytes) -> bytes:
    for key, value in headers:
        if key == name:
            return value
    return b""


def _proxys_own(status: int, headers: Headers, is_grpc: bool) -> bytes:
    """How Envoy describes its own answer to a request that no worker has answered; b"": a worker has.

    To what a worker has answered, Envoy adds the time that it took, unless it is set not to. Its own answers have a
    text that is known or, of HTTP, are plain text, which few errors of workers are.
    """
    if _value(headers, _SERVICE_TIME):
        return b""
    if is_grpc:
        text = _value(headers, b"grpc-message")
        return text if text.startswith(_PROXYS_TEXTS) else b""
    if status not in _PROXYS_STATUSES or not _value(headers, b"content-type").startswith(b"text/plain"):
        return b""
    return b"upstream: HTTP %d from the proxy itself" % status
