"""The codec of gRPC: unary calls to one endpoint over shared HTTP/2 connections, and their answers.

The message passes unparsed: its first fields name the model, a version is appended. Header blocks of both directions
recur, so each is encoded once.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias, cast

from isochrone.clock import NEVER, now_ns
from isochrone.errors import (
    GRPC_DEADLINE_EXCEEDED,
    GRPC_RESOURCE_EXHAUSTED,
    GRPC_UNAVAILABLE,
    IsochroneError,
)
from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt, launched
from isochrone.gateway.evaluation.sampling import GRPC
from isochrone.gateway.fleet.commitment import EPOCH_HEADER
from isochrone.gateway.front import request_ids
from isochrone.gateway.front.discarding_exchange import DiscardingExchange
from isochrone.gateway.front.division_fields import division_field
from isochrone.gateway.front.explanation import EXPLAIN_HEADER, PLACEMENT_HEADER, explanation
from isochrone.gateway.front.known_messages import KnownMessages
from isochrone.gateway.front.trace_fields import trace_parent_field
from isochrone.gateway.latencies.agents import agent_name
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.resilience import fingerprints
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.upstream.load_reports import relayed_message, report_of_message
from isochrone.observe.tracing.trace_parent import TRACE_PARENT, sampled_trace, trace_parent_in
from isochrone.protocol.grpc.calls import CallHead, error_block, fail, message_of
from isochrone.protocol.grpc.routing_fields import Opening, layout_of, name_field, read_opening
from isochrone.protocol.headers.orca import ORCA_BINARY_HEADER, ORCA_FORMAT_HEADER
from isochrone.protocol.headers.rejections import UNPROCESSED_HEADER, is_marked
from isochrone.protocol.headers.request_fields import caller_ids
from isochrone.protocol.headers.stages import STAGES_HEADER
from isochrone.protocol.headers.timing import through_gateway
from isochrone.secure.access.internal import ON_BEHALF
from isochrone.wire.exchange import Buffer, Exchange, Head, Header, Headers, Route
from isochrone.wire.http2.client import request_block
from isochrone.wire.http2.grpc_client import grpc_timeout
from isochrone.wire.http2.hpack import Encoder
from isochrone.wire.http2.server_stream import response_block

if TYPE_CHECKING:
    from isochrone.gateway.evaluation.sampling import Samples
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway
    from isochrone.wire.http2.client import ClientStream
    from isochrone.wire.http2.server_stream import ServerStream

    #: Whom an answer goes to: a caller, or nobody if the request is a copy.
    _Caller: TypeAlias = ServerStream | DiscardingExchange

_prefix = Struct(">BI")
_encode = Encoder().encode
#: Messages up to this size are copied into one piece with their stamp.
_JOIN_LIMIT = 65_536
#: Bytes at the start of a message in which its id is looked for.
_ID_BYTES = 192
#: Tag of field 1: model_name.
_NAME_TAG = 0x0A
#: An opening that says nothing but the model.
PLAIN = Opening(b"")
_NOT_FORWARDED = frozenset(
    (
        b"te",
        b"content-type",
        b"content-length",
        b"grpc-timeout",
        b"grpc-encoding",
        b"origin",
        ORCA_FORMAT_HEADER,
        EXPLAIN_HEADER,
        STAGES_HEADER,
        EPOCH_HEADER,
        ON_BEHALF,
    )
)
#: The mark speaks of one attempt, not of the request.
_NOT_RETURNED = frozenset((b"content-length", ORCA_BINARY_HEADER, UNPROCESSED_HEADER))
_OK = b"0"
_ANSWERED = Outcome.ANSWERED
_NOT_FOUND = b"5"
#: INTERNAL, UNKNOWN and DATA_LOSS: the worker's own fault.
_FAILURES = frozenset((b"13", b"2", b"15"))
_REJECTIONS = frozenset(
    b"%d" % status for status in (GRPC_UNAVAILABLE, GRPC_RESOURCE_EXHAUSTED, GRPC_DEADLINE_EXCEEDED)
)

#: Bytes of a block that is remembered.
_MAX_BLOCK_BYTES = 4096
#: Fields of an answer → their encoded block, found by identity: a connection shares what it memoised.
_blocks: dict[int, tuple[Headers, bytes]] = {}


#: Trailers that say OK and nothing else a gateway must look at, and their block; by identity as well.
_good: dict[int, tuple[Headers, bytes]] = {}


def returned_block(status: int, fields: Headers, *, keep_load: bool = False, recurs: bool = True) -> bytes:
    """Headers (``status`` set) or trailers (0) as the caller gets them. ``recurs``: the same object may come again."""
    found = _blocks.get(id(fields))
    if found is not None and found[0] is fields and not keep_load:
        return found[1]
    kept = tuple(
        field for field in fields if field[0] not in _NOT_RETURNED or (keep_load and field[0] == ORCA_BINARY_HEADER)
    )
    block = response_block(status, kept) if status else trailer_block(kept)
    if recurs and not keep_load and len(block) <= _MAX_BLOCK_BYTES:
        if len(_blocks) >= 1024:
            _blocks.clear()
        _blocks[id(fields)] = (fields, block)
    return block


def trailer_block(fields: Headers) -> bytes:
    return _encode(list(fields))


def timeout_field(nanoseconds: int) -> bytes:
    """``grpc-timeout`` as a literal that can follow any encoded block (RFC 7541 §6.2.2: without indexing)."""
    value = grpc_timeout(max(nanoseconds, 1000) / 1e9)
    return b"\x00\x0cgrpc-timeout%c%s" % (len(value), value)


class GrpcRoute(Route):
    """Unary calls with one head that go to one endpoint: ModelInfer, and control calls that name a model."""

    def __init__(self, gateway: Gateway, head: Head, known: KnownMessages) -> None:
        self.gateway = gateway
        self.call = CallHead(head)
        self.agent = agent_name(head.get(gateway.fleet.agent_header))
        self.trace_id = sampled_trace(trace_parent_in(head.headers))
        self.caller_ids = caller_ids(head)
        self.explains = head.get(EXPLAIN_HEADER) is not None
        self.wants_load = self.call.wants_load
        self.timeout_ns = self.call.timeout_ns
        #: The epoch it asks for; answered with the one it got.
        self.epoch = head.get(EPOCH_HEADER)
        #: Answers go back with nothing added.
        self.returns_plainly = not (
            self.wants_load or self.call.wants_timing or self.explains or self.epoch is not None
        )
        self._known = known
        dropped = _NOT_FORWARDED if gateway.tracing is None else _NOT_FORWARDED | {TRACE_PARENT}
        passed = tuple(field for field in head.headers if field[0] not in dropped)
        passed += gateway.fleet.credential.for_caller(passed, head.peer)
        own = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
        scheme = gateway.fleet.scheme
        self.plain = request_block(b"POST", scheme, b"isochrone", head.target, (*own, *passed))
        asking = (*own, *passed, (ORCA_FORMAT_HEADER, b"bin"))
        self.asking = request_block(b"POST", scheme, b"isochrone", head.target, asking)

    def handle(self, exchange: Exchange) -> None:
        stream = cast("ServerStream", exchange)
        try:
            request = self._read(stream)
        except IsochroneError as error:
            stream.owner = None
            fail(stream, error)
        else:
            self.gateway.arrive(request)

    def _read(self, stream: ServerStream) -> GrpcRequest:
        body = stream.body
        length = len(body)
        if length > 8:
            field = bytes(body[5 : 7 + body[6]])
            named = self._known.model_of(field)
            if named is not None and named.plain and self.epoch is None:
                for begin, end, expected in self._known.layout(field, length):
                    if body[begin:end] != expected:
                        break
                else:
                    return GrpcRequest(self, stream, named, PLAIN, body, 5)
        body, start = message_of(body, self.call.encoding, self.gateway.limits.max_body_bytes)
        opening = read_opening(body, start)
        model = opening.model.decode("utf-8", "replace")
        fleet = self.gateway.fleet
        served = fleet.models.get(model) or fleet.model(model)
        if start:
            self._remember(body, opening, served)
        return GrpcRequest(self, stream, served, opening, body, start)

    def _remember(self, body: Buffer, opening: Opening, served: ServedModel) -> None:
        """Messages that have so much in common with this one say the same."""
        if len(body) < 8 or body[5] != _NAME_TAG or body[6] > 0x7F:
            return  # nothing named, or a name so long that its length takes two bytes
        if opening != Opening(opening.model) or served is self.gateway.fleet.unknown:
            return
        behind = 7 + body[6]
        layout = layout_of(body, behind)
        if layout is None:
            return
        self._known.remember(bytes(body[5:behind]), served, len(body), layout)


class GrpcRequest(CallerRequest):
    """One unary call."""

    def __init__(
        self, route: GrpcRoute, stream: _Caller, served: ServedModel, opening: Opening, message: Buffer, start: int
    ) -> None:
        Request.__init__(self, stream.arrived)
        self.gateway = route.gateway
        self.exchange = stream
        self.served = served
        self.demand = served.plain_demand
        self.route = route
        stream.owner = self
        #: The message, and where it begins: behind its prefix, or at 0 when it had to be decompressed.
        self.message = message
        self.start = start
        if route.agent:
            self.agent = route.agent
        if route.trace_id:
            self.trace_id = route.trace_id
        if route.caller_ids:
            self.caller_ids = route.caller_ids
        if route.epoch is not None:
            self.asked_epoch = route.epoch
        timeout = route.timeout_ns
        if opening is PLAIN and not timeout and not served.deadline_ns and not served.affinity.header:
            return
        if opening.version:
            self.version = opening.version.decode("utf-8", "replace")
        if opening.timeout_ns and (not timeout or opening.timeout_ns < timeout):
            timeout = opening.timeout_ns
        key = served.affinity_key(stream.head) if served.affinity.header else b""
        if opening.sequence and served.rules.affinity.sequence:
            # A sequence lives on one worker, and none of its requests may run twice.
            key = served.affinity.key(opening.sequence)
            self.kind = Kind.SEQUENCE
        timeout = timeout or served.deadline_ns
        if timeout:
            self.deadline = self.arrived + timeout
        if timeout or key or opening.priority:
            priority = opening.priority or served.priority
            self.demand = Demand(key, self.deadline, 1, priority, (), opening.starts_sequence)

    def opening_bytes(self) -> bytes:
        return bytes(self.message[self.start : self.start + _ID_BYTES])

    def copy(self, served: ServedModel) -> GrpcRequest:
        opening = read_opening(self.message, self.start)._replace(version=b"")
        message, start = self.message, self.start
        if served is not self.served:
            # The last field wins: another model's name at the end stands.
            message, start = b"".join((memoryview(message)[start:], name_field(served.name))), 0
        return GrpcRequest(self.route, DiscardingExchange(self.exchange), served, opening, message, start)

    def offer(self, samples: Samples) -> None:
        samples.offer(GRPC, self.exchange.head.target, (), self.message, self.start)

    def take_request_id(self) -> str:
        return request_ids.of_grpc(self.message, self.start)

    def take_fingerprint(self) -> bytes:
        return fingerprints.of_grpc(self.exchange.head.target, self.message, self.start)

    def send(self, attempt: UpstreamAttempt) -> None:
        route = self.route
        block = route.asking if attempt.asks or route.wants_load else route.plain
        if self.deadline != NEVER:
            block += timeout_field(self.deadline - now_ns())
        if attempt.replica_set.stages:
            block += attempt.replica_set.stage_field
        if attempt.division is not None:
            block += division_field(attempt.division)
        if attempt.trace_parent:
            block += trace_parent_field(attempt.trace_parent)
        body, start = self.message, self.start
        length = len(body) - start
        stamp = attempt.replica_set.stamp
        connections = attempt.replica.endpoint.handle.connections
        if stamp or not start:
            prefix = _prefix.pack(0, length + len(stamp))
            if length >= _JOIN_LIMIT:
                parts = [prefix, memoryview(body)[start:], *((stamp,) if stamp else ())]
                attempt.sent = connections.open_stream(block, parts, attempt)
                return
            body = b"".join((prefix, body[start:], stamp))
        attempt.sent = connections.open_whole(block, body, attempt)

    def outcome(self, attempt: UpstreamAttempt) -> Outcome:
        trailers = attempt.trailers
        found = _good.get(id(trailers))
        if found is not None and found[0] is trailers:
            return _ANSWERED
        status = b""
        for name, value in trailers or attempt.headers:
            if name == b"grpc-status":
                status = value
                break
        if not status or attempt.status != 200:
            attempt.foreign = not_grpc(attempt)
            return Outcome.FOREIGN
        if status == _NOT_FOUND and self.is_version_gone(attempt):
            # The endpoint of a version that is gone cannot have run it.
            return Outcome.NOT_BEGUN
        if status == _OK and trailers and not attempt.asks:
            # The same trailers come with the next answers: their meaning and their block are known then.
            if len(_good) >= 256:
                _good.clear()
            block = returned_block(0, trailers)
            if len(block) <= _MAX_BLOCK_BYTES:
                _good[id(trailers)] = (trailers, block)
        return meaning_of(trailers or attempt.headers)

    def is_version_gone(self, attempt: UpstreamAttempt) -> bool:
        if not attempt.replica_set.version or self.version:
            return False
        status = dict(attempt.trailers or attempt.headers).get(b"grpc-status")
        return status in (_NOT_FOUND, b"%d" % GRPC_UNAVAILABLE)

    def is_late(self, attempt: UpstreamAttempt) -> bool:
        return is_late(attempt.trailers or attempt.headers)

    def load_report(self, attempt: UpstreamAttempt) -> LoadReport | None:
        for name, value in attempt.trailers or attempt.headers:
            if name == ORCA_BINARY_HEADER:
                try:
                    return report_of_message(b64decode(value + b"=" * (-len(value) % 4)))
                except (IsochroneError, Base64Error):
                    return None
        return None

    def answer(self, attempt: UpstreamAttempt) -> None:
        stream = cast("_Caller", self.exchange)
        trailers = attempt.trailers
        good = _good.get(id(trailers))
        if good is not None and good[0] is trailers and self.route.returns_plainly and not attempt.streaming:
            head = _blocks.get(id(attempt.headers))
            if head is not None and head[0] is attempt.headers and len(attempt.body) == 1 and attempt.status == 200:
                stream.respond_unary(head[1], attempt.body[0], attempt.size, good[1])
                return
        route = self.route
        if route.call.wants_timing and trailers:
            trailers = through_gateway(trailers, now_ns() - self.arrived)
        if route.explains:
            placement = explanation(self, attempt, self.gateway.clock())
            trailers = (*(trailers or attempt.headers), (PLACEMENT_HEADER, placement))
        if route.epoch is not None:
            trailers = (*(trailers or attempt.headers), (EPOCH_HEADER, self.answered_epoch(route.epoch)))
        if route.wants_load and trailers:
            trailers = tuple(self._relayed(field) for field in trailers)
        if not trailers:
            # One block: a rejection, or an answer without a message.
            stream.end_with_trailers(returned_block(200, attempt.headers, keep_load=route.wants_load))
            return
        last = returned_block(0, trailers, keep_load=route.wants_load, recurs=trailers is attempt.trailers)
        if attempt.streaming:
            stream.end_with_trailers(last)
            return
        body = attempt.body[0] if len(attempt.body) == 1 else b"".join(attempt.body)
        stream.respond_unary(returned_block(200, attempt.headers), body, attempt.size, last)

    def _relayed(self, field: Header) -> Header:
        name, value = field
        if name != ORCA_BINARY_HEADER:
            return field
        try:
            message = b64decode(value + b"=" * (-len(value) % 4))
        except Base64Error:
            return field
        return name, b64encode(relayed_message(message, self.gateway.is_leaving)).rstrip(b"=")

    def reject(self, error: IsochroneError) -> None:
        stream = cast("_Caller", self.exchange)
        stream.owner = None
        fail(stream, error)

    # An answer that is passed on as it comes.

    def streams_answer(self, attempt: UpstreamAttempt) -> bool:
        return False

    def begin_streaming(self, attempt: UpstreamAttempt) -> None:
        if attempt.status != 200 or not is_grpc(attempt.headers):
            attempt.foreign = not_grpc(attempt)
            attempt.cancel()
            self.gateway.answered_foreign(attempt)
            return
        self.gateway.streaming(attempt)
        stream = cast("_Caller", self.exchange)
        stream.send_headers(returned_block(200, attempt.headers), False)
        pieces, attempt.body = attempt.body, []
        for piece in pieces:
            self.pass_on(attempt, piece)

    def pass_on(self, attempt: UpstreamAttempt, data: Buffer) -> None:
        stream = cast("_Caller", self.exchange)
        if stream.local_done:
            return
        stream.send_data(data)
        if stream.is_congested:
            upstream = cast("ClientStream", launched(attempt))
            upstream.hold_window()
            stream.on_writable = upstream.release_window

    def cut_off(self, error: IsochroneError) -> None:
        stream = cast("_Caller", self.exchange)
        stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=False))


def meaning_of(fields: Headers) -> Outcome:
    """The outcome that an answer's status stands for."""
    status = next((value for name, value in fields if name == b"grpc-status"), b"")
    if status in _REJECTIONS:
        return Outcome.NOT_BEGUN if is_marked(fields) else Outcome.REJECTED
    return Outcome.FAILED if status in _FAILURES else Outcome.ANSWERED


def is_late(fields: Headers) -> bool:
    """Whether an answer says that the deadline has passed, or cannot be met."""
    return (b"grpc-status", b"%d" % GRPC_DEADLINE_EXCEEDED) in fields


def has_status(fields: Headers) -> bool:
    return any(name == b"grpc-status" for name, _ in fields)


def is_grpc(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"application/grpc") for name, value in headers)


def not_grpc(attempt: UpstreamAttempt) -> str:
    without = "" if attempt.status != 200 else " and no grpc-status"
    return f"HTTP status {attempt.status}{without}, which is no gRPC answer"
