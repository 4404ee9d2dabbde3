"""The codec of streaming gRPC calls: ModelStreamInfer to one endpoint.

The first message names the model, and with it the request arrives at the machine; all later messages follow it to the
same endpoint. Each message is stamped with the version that its stream was admitted with. A model that a later message
is the first to name gets its version then, and waits for a strict switch like a first one. Quotas count every message.
Both directions wait for each other's windows: a slow reader on one side stops the sender on the other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from isochrone.clock import NEVER, now_ns
from isochrone.errors import (
    ConnectionLost,
    DeadlineExceeded,
    IsochroneError,
    MalformedRequest,
    Unavailable,
)
from isochrone.gateway.caller_requests import CallerRequest, CallerStream, UpstreamAttempt
from isochrone.gateway.front.division_fields import division_field
from isochrone.gateway.front.generate_requests import token_deadlines
from isochrone.gateway.front.grpc_requests import (
    GrpcRoute,
    has_status,
    is_grpc,
    is_late,
    meaning_of,
    not_grpc,
    returned_block,
    timeout_field,
)
from isochrone.gateway.front.rejected_messages import RejectedMessages
from isochrone.gateway.front.stamps import Stamps
from isochrone.gateway.front.trace_fields import trace_parent_field
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.requests import quota_accounts
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.placing import has_ready_worker
from isochrone.gateway.requests.request import Attempt
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.traffic.prompts import token_times
from isochrone.gateway.traffic.token_counts import PassedMessages, PassedTokens, estimate
from isochrone.gateway.upstream.connections import Waiting
from isochrone.protocol.compression.codec import Inflation, is_identity
from isochrone.protocol.compression.inflating import inflate
from isochrone.protocol.grpc.calls import error_block, fail, unpack
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.protocol.grpc.routing_fields import Opening, read_opening
from isochrone.secure.access.permissions import INFERENCE
from isochrone.wire.bodies.budget import SMALL
from isochrone.wire.exchange import Buffer, Consumer, Exchange, Headers

if TYPE_CHECKING:
    from isochrone.gateway.evaluation.sampling import Samples
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.replicas import LoadReport
    from isochrone.wire.http2.client import ClientStream
    from isochrone.wire.http2.server_stream import ServerStream


class StreamRoute(GrpcRoute):
    """Streaming calls with one head."""

    streaming = True

    def open(self, exchange: Exchange) -> Consumer:
        return StreamRequest(self, cast("ServerStream", exchange))


class StreamAttempt(UpstreamAttempt):
    """One sending of a stream: the receiver of the endpoint's messages."""

    #: The stream to the endpoint, once it is open.
    upstream: ClientStream | None = None

    def cancel(self) -> None:
        if self.upstream is not None:
            self.upstream.cancel()
        else:
            super().cancel()

    def head(self, status: int, headers: Headers) -> None:
        super().head(status, headers)
        cast("StreamRequest", self.request).head_received(self)

    def data(self, data: Buffer) -> None:
        if not self.over:
            self.replica.endpoint.heard_at = now_ns()
            cast("StreamRequest", self.request).pass_on(self, data)

    def complete(self, trailers: Headers) -> None:
        if not self.over:
            cast("StreamRequest", self.request).completed(self, trailers)

    def whole(self, status: int, headers: Headers, data: Buffer, trailers: Headers) -> None:
        self.head(status, headers)
        if data:
            self.data(data)
        self.complete(trailers)

    def failed(self, error: IsochroneError) -> None:
        if not self.over:
            cast("StreamRequest", self.request).connection_lost(self, error)


class StreamRequest(CallerStream):
    """One call: a consumer of the caller's messages, and a request once the first of them has come."""

    attempt_type: ClassVar[type[Attempt]] = StreamAttempt
    can_ask = False
    #: Which of its messages ended a process cannot be known.
    may_be_suspect = False
    #: Before it arrives: its messages wait here.
    can_wait = False

    def __init__(self, route: StreamRoute, stream: ServerStream) -> None:
        super().__init__(stream.arrived)
        self.kind = Kind.STREAM
        self.route = route
        self.gateway = route.gateway
        self.exchange = stream
        self.agent = route.agent
        self.trace_id = route.trace_id
        timeout = route.call.timeout_ns
        if timeout:
            self.deadline = stream.arrived + timeout
        self._stream = stream
        self._reader = MessageReader(route.gateway.limits.max_body_bytes, stream)
        self._has_arrived = False
        self._stamps = Stamps(route.gateway.fleet)
        #: All messages, while there is no connection to send them on, and as long as another endpoint may still take
        #: the call: until this one answers, or it is too much. None: from then on.
        self._kept: list[bytes] | None = []
        self._kept_size = 0
        #: Bytes of messages that are not on their way to the endpoint yet, or that another one may still need.
        self._reserved = 0
        #: Messages that came while the model's version was being switched, or while it had no worker.
        self._parked: list[tuple[int, Buffer]] = []
        #: A large compressed message that a thread works on; later ones wait, and the caller's end.
        self._inflation: Inflation | None = None
        #: The caller has ended its side; and the same while messages wait.
        self._ended = False
        self._ended_waiting = False
        #: Something was sent either way since the gateway, stopping, last looked.
        self._active = True
        self._headers_sent = False
        #: Answers to messages over their quota; None: there were no quotas when it began.
        self._rejections: RejectedMessages | None = None
        stream.owner = self
        self.gateway.stream_opened(self)

    @property
    def body(self) -> Buffer:
        return b""

    @property
    def _upstream(self) -> ClientStream | None:
        return cast("StreamAttempt", self.attempts[0]).upstream if self.attempts else None

    # The caller's side.

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        self._active = True
        try:
            self._reader.feed(data)
            self._read()
        except IsochroneError as error:
            self._end_with(error)

    def _read(self) -> None:
        """Take the messages that have come."""
        while not self.over and self._inflation is None and (message := self._reader.take()) is not None:
            flag, payload = message
            if flag == 1 and not is_identity(self.route.call.encoding):
                # The version is stamped on every message, so compressed ones go on as plain ones.
                packed = len(payload)
                inflation = Inflation(self.route.call.encoding, payload, self.gateway.limits.max_body_bytes)
                body = inflate(inflation, self._reader, partial(self._inflated, packed))
                if body is None:
                    self._inflation = inflation
                    self._stream.hold_window()
                    return
                if len(body) <= SMALL:
                    self._reader.keep(len(body))
                self._reader.give_back(packed)
                flag, payload = 0, body
            self._reserved += len(payload)
            self._take(flag, payload)

    def _inflated(self, packed: int, found: bytearray | IsochroneError) -> None:
        self._inflation = None
        if self.over:
            return
        self._reader.give_back(packed)
        self._active = True
        try:
            if isinstance(found, IsochroneError):
                raise found
            self._reserved += len(found)
            self._take(0, found)
            self._read()
        except IsochroneError as error:
            self._end_with(error)
            return
        if self._inflation is None and not self.is_parked:
            self._go_on()

    def _go_on(self) -> None:
        """Nothing of the caller's waits any more."""
        upstream = self._upstream
        if upstream is None or not upstream.is_congested:
            self._stream.release_window()
        if self._ended_waiting:
            self.ended()

    def ended(self) -> None:
        """The caller has ended its side."""
        if self.over:
            return
        if self.is_parked or self._inflation is not None:
            self._ended_waiting = True
            return
        if not self._reader.is_empty:
            self._end_with(MalformedRequest("the stream ends inside a message"))
            return
        if not self._has_arrived:
            try:
                self._arrive(Opening(b""))
            except IsochroneError as error:
                self._end_with(error)
                return
        self._ended = True
        upstream = self._upstream
        if upstream is not None and not upstream.local_done:
            upstream.send_data(b"", True)

    def shed(self) -> None:
        """Both windows bound the bytes that wait here."""

    def stopping(self) -> None:
        """Only the worker knows which messages belong together: a call that has been silent for a while is ended."""
        if not self._active and not self.over and self._inflation is None:
            self._end_with(Unavailable("the gateway is stopping"))
        self._active = False

    def abandoned(self) -> None:
        if self._inflation is not None:
            self._inflation.abandoned = True
        self._leave()

    def expire(self) -> None:
        """Its deadline has passed before its first message came."""
        self._end_with(DeadlineExceeded("the call's deadline has passed"))

    # A strict switch, or a model without workers.

    def _waits_for_worker(self, opening: Opening) -> bool:
        """Whether the first message waits until its model has a worker."""
        served = self.gateway.fleet.model(opening.model.decode("utf-8", "replace"))
        if not served.rules.waiting_room.max_requests or (opening.sequence and not opening.starts_sequence):
            return False
        self.served, self.version = served, opening.version.decode("utf-8", "replace")
        self.arrived = self.gateway.clock()
        if not self.waits_since:
            self.came_at = self.arrived
        self.demand = served.plain_demand
        waiting = self.gateway.machine.waiting
        may_go_on = self.waits_since or not waiting.has_before(self)
        if (may_go_on and has_ready_worker(self, self.arrived)) or not waiting.enter(self, self.arrived):
            return False
        self._park()
        return True

    def _park(self) -> None:
        self.is_parked = True
        self._stream.hold_window()

    def _must_wait(self, opening: Opening) -> bool:
        """Whether a message waits for a switch of versions. A stream stays with the versions it was admitted with."""
        if opening.version or self._stamps.knows(opening.model):
            return False
        served = self.gateway.fleet.model(opening.model.decode("utf-8", "replace"))
        if not served.is_held:
            return False
        self.gateway.machine.hold(self, served)
        self._park()
        return True

    def resume(self) -> None:
        """The switch of versions is over, or a worker is ready."""
        self.is_parked = False
        parked, self._parked = self._parked, []
        if self.over:
            return
        try:
            for flag, payload in parked:
                self._take(flag, payload)
        except IsochroneError as error:
            self._end_with(error)
            return
        if not self.is_parked and self._inflation is None:
            self._go_on()

    # Messages.

    def _take(self, flag: int, payload: Buffer) -> None:
        if self.is_parked:
            self._parked.append((flag, payload))
            return
        message = unpack(flag, payload, self.route.call.encoding, self.gateway.limits.max_body_bytes)
        opening = read_opening(message, 0)
        grant = self._stream.head.grant
        if grant is not None:
            try:
                grant.require(INFERENCE, opening.model.decode("utf-8", "replace"), opening.priority)
            except IsochroneError as error:
                self.gateway.count_refusal(self._stream, error)
                raise
        if self.gateway.fleet.holding and self._must_wait(opening):
            self._parked.append((0, message))
            return
        if not self._has_arrived:
            if self._waits_for_worker(opening):
                self._parked.append((0, message))
                return
            self._arrive(opening)
        elif self._is_over_quota(opening, message):
            return
        if self.over:
            return
        if self.served.counts_tokens:
            quota_accounts.spend(self, estimate(len(message)), self.gateway.clock())
        stamp = self._stamps.of(opening, self)
        self._send(b"".join((b"\0", (len(message) + len(stamp)).to_bytes(4, "big"), message, stamp)))

    def _arrive(self, opening: Opening) -> None:
        served = self.served = self.gateway.fleet.model(opening.model.decode("utf-8", "replace"))
        self._has_arrived = True
        # The call may have been opened long ago: latencies, quotas and admission count from its first message.
        self.arrived = self.gateway.clock()
        if not self.waits_since:
            self.came_at = self.arrived
        self.version = opening.version.decode("utf-8", "replace")
        key = b""
        if opening.sequence and served.rules.affinity.sequence:
            key = served.affinity.key(opening.sequence)
        key = key or served.affinity_key(self._stream.head)
        if opening.timeout_ns:
            self.first_due = self.arrived + opening.timeout_ns
        priority = opening.priority or served.priority
        tokens = token_times(opening.time_to_first_token_ms, opening.inter_token_ms)
        deadlines = None if tokens is None else token_deadlines(tokens, self.arrived)
        self.demand = Demand(key, self.deadline, 1, priority, (), opening.starts_sequence, tokens=deadlines)
        self.gateway.arrive(self)
        if not self.over:
            self._stamps.add(opening, b"" if self.version else self.replica_set.stamp)
            if self.gateway.fleet.has_quotas:
                self._rejections = RejectedMessages()

    def _is_over_quota(self, opening: Opening, message: Buffer) -> bool:
        """Count a message; one over its quota is answered here, and the stream goes on."""
        served = self.gateway.fleet.model(opening.model.decode("utf-8", "replace"))
        if not served.quotas:
            return False
        try:
            quota_accounts.count_message(self, served, self.gateway.clock())
        except quota_accounts.QuotaExceeded as error:
            rejections = self._rejections
            if rejections is None or rejections.is_full or self._stream.is_congested:
                raise  # it asks for more than it may, and does not read the answers; or quotas are new
            rejections.add(message, error)
            self._send_rejections()
            self._give_back()
            return True
        return False

    def _send_rejections(self) -> None:
        if self._rejections is not None and (ready := self._rejections.take()):
            self._send_headers(())
            self._stream.send_data(ready)

    # To the endpoint.

    def _send(self, framed: bytes) -> None:
        if self.over:
            return
        upstream = self._upstream
        if self._kept is not None:
            self._kept.append(framed)
            self._kept_size += len(framed)
            if self._kept_size > self.gateway.limits.stream_window:
                if upstream is None:
                    self._stream.hold_window()
                else:
                    self._kept = None
        if upstream is not None:
            upstream.send_data(framed)
            self._look_after(upstream)

    def send(self, attempt: UpstreamAttempt) -> None:
        block = self.route.plain
        if self.deadline != NEVER:
            block += timeout_field(self.deadline - now_ns())
        block += attempt.replica_set.stage_field
        if attempt.division is not None:
            block += division_field(attempt.division)
        if attempt.trace_parent:
            block += trace_parent_field(attempt.trace_parent)
        sent = attempt.replica.endpoint.handle.connections.open_stream(block, (), attempt, end=False)
        attempt.sent = sent
        if isinstance(sent, Waiting):
            sent.on_launched = partial(self._connected, attempt)
        else:
            self._connected(attempt, sent)

    def _connected(self, attempt: UpstreamAttempt, upstream: ClientStream) -> None:
        """A stream to the endpoint is open."""
        cast("StreamAttempt", attempt).upstream = upstream
        if attempt.over or self.over:
            upstream.cancel()
            return
        for framed in self._kept or ():
            upstream.send_data(framed)
        if self._kept_size > self.gateway.limits.stream_window:
            self._kept = None
        self._look_after(upstream)
        if not upstream.is_congested:
            self._writable()
        if self._ended:
            upstream.send_data(b"", True)

    def _writable(self) -> None:
        """The endpoint's side takes more; messages that are parked go first."""
        if not self.is_parked:
            self._stream.release_window()
            self._give_back()

    def _look_after(self, upstream: ClientStream) -> None:
        """Messages were sent to the endpoint: the caller waits, and their bytes count, until they have gone."""
        if upstream.is_congested:
            self._stream.hold_window()
        if upstream.is_congested or upstream.unsent:
            upstream.on_writable = self._writable
        else:
            self._give_back()

    def _give_back(self) -> None:
        """Nothing waits to be sent: messages count no longer, unless another endpoint may still need them."""
        upstream = self._upstream
        if self._kept is None and not self.is_parked and (upstream is None or not upstream.unsent):
            reserved, self._reserved = self._reserved, 0
            self._reader.give_back(reserved)

    # From the endpoint.

    def head_received(self, attempt: StreamAttempt) -> None:
        if attempt.status != 200 or not is_grpc(attempt.headers):
            attempt.foreign = not_grpc(attempt)
            attempt.cancel()
            self.gateway.answered_foreign(attempt)
            return
        if not has_status(attempt.headers):
            # Otherwise the call ends at once: another endpoint may take it.
            self._kept = None
            self._give_back()

    def pass_on(self, attempt: UpstreamAttempt, data: Buffer) -> None:
        stream = self._stream
        if self.over or stream.local_done:
            return
        self._active = True
        if not attempt.streaming:
            self.gateway.streaming(attempt)
        self._send_headers(attempt.headers)
        stream.send_data(data)
        if self.served.counts_tokens:
            self.charge_passed(data)
        if self._rejections is not None:
            self._rejections.passed_on(data)
            self._send_rejections()
        upstream = self._upstream
        if stream.is_congested and upstream is not None:
            upstream.hold_window()
            stream.on_writable = upstream.release_window

    def _send_headers(self, headers: Headers) -> None:
        if not self._headers_sent:
            self._headers_sent = True
            self._stream.send_headers(returned_block(200, headers or ((b"content-type", b"application/grpc"),)), False)

    def completed(self, attempt: StreamAttempt, trailers: Headers) -> None:
        if not has_status(trailers or attempt.headers) or (attempt.streaming and not trailers):
            attempt.foreign = "it ended the call without a grpc-status"
            self.gateway.answered_foreign(attempt)
            return
        attempt.trailers = trailers
        self.gateway.answered(attempt)

    def connection_lost(self, attempt: StreamAttempt, error: IsochroneError) -> None:
        if self._kept is None and isinstance(error, ConnectionLost) and error.unprocessed:
            # It is not begun, but its messages are gone: nobody else can have it.
            error = ConnectionLost(str(error))
        self.gateway.lost(attempt, error)

    def make_counts(self) -> PassedTokens:
        return PassedMessages()

    def tokens_of(self, attempt: Attempt | None) -> int:
        """Its messages are charged as they come."""
        return 0

    # The meaning of an answer.

    def outcome(self, attempt: UpstreamAttempt) -> Outcome:
        outcome = meaning_of(attempt.trailers or attempt.headers)
        return Outcome.REJECTED if outcome is Outcome.NOT_BEGUN and self._kept is None else outcome

    def is_version_gone(self, attempt: UpstreamAttempt) -> bool:
        return False

    def is_late(self, attempt: UpstreamAttempt) -> bool:
        return is_late(attempt.trailers or attempt.headers)

    def load_report(self, attempt: UpstreamAttempt) -> LoadReport | None:
        return None

    def offer(self, samples: Samples) -> None:
        """Streams are not sampled: a sample is one request."""

    def copy(self, served: ServedModel) -> CallerRequest:
        raise NotImplementedError("streams are not copied")

    def take_fingerprint(self) -> bytes:
        raise NotImplementedError("streams are no suspects")

    def streams_answer(self, attempt: UpstreamAttempt) -> bool:
        return True

    def begin_streaming(self, attempt: UpstreamAttempt) -> None:
        """``pass_on`` does."""

    # The end.

    def answer(self, attempt: UpstreamAttempt) -> None:
        self._close()
        if attempt.trailers:
            self._send_headers(attempt.headers)
            self._stream.end_with_trailers(returned_block(0, attempt.trailers))
        elif self._headers_sent:
            self._stream.end_with_trailers(returned_block(0, attempt.headers, recurs=False))
        else:
            self._stream.end_with_trailers(returned_block(200, attempt.headers))

    def reject(self, error: IsochroneError) -> None:
        self._close()
        if self._headers_sent:
            self._stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=False))
        else:
            fail(self._stream, error)

    def cut_off(self, error: IsochroneError) -> None:
        self.reject(error)

    def _end_with(self, error: IsochroneError) -> None:
        """A mistake of the caller's, or the gateway's own reason."""
        if not self.over:
            self._leave(error)
            self.reject(error)

    def _leave(self, error: IsochroneError | None = None) -> None:
        """``error``: what the gateway ends it with; None: its caller has gone."""
        if self._has_arrived or self.held is not None:
            self.gateway.cancelled(self, error)
        self.over = True
        self._close()

    def _close(self) -> None:
        self._stream.owner = None
        self.gateway.streams.discard(self)
