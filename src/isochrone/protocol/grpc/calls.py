"""gRPC calls on our own HTTP/2: request metadata, message framing, statuses, trailers.

Every method of this package uses it. grpcio costs ten times as much per call (docs/decisions), so only tests use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import structlog

from isochrone.clock import NEVER
from isochrone.errors import GRPC_DEADLINE_EXCEEDED, GRPC_UNAVAILABLE, Internal, IsochroneError, MalformedRequest
from isochrone.protocol.compression import codec
from isochrone.protocol.headers.orca import ORCA_BINARY_HEADER, ORCA_FORMAT_HEADER
from isochrone.protocol.headers.rejections import mark
from isochrone.protocol.headers.request_fields import request_fields
from isochrone.protocol.headers.timing import SERVER_TIMING_HEADER, TIMING_HEADER, server_timing
from isochrone.wire.exchange import Buffer, Exchange, Head, Header, Route
from isochrone.wire.http2.hpack import Encoder

if TYPE_CHECKING:
    from isochrone.protocol.headers.version_pins import Pin
    from isochrone.protocol.messages import InferRequest
    from isochrone.protocol.services.service import InferenceService
    from isochrone.wire.http2.server_stream import ServerStream

log = structlog.get_logger(__name__)

_encode = Encoder().encode
#: The headers of every gRPC response, and the trailers of a successful call. The encoder keeps no state, so the blocks
#: are valid on any connection.
RESPONSE_HEADERS = _encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
OK_TRAILERS = _encode([(b"grpc-status", b"0")])

_UNITS = {
    ord("H"): 3_600_000_000_000,
    ord("M"): 60_000_000_000,
    ord("S"): 1_000_000_000,
    ord("m"): 1_000_000,
    ord("u"): 1_000,
    ord("n"): 1,
}


def parse_timeout(value: bytes | None) -> int:
    """``grpc-timeout`` in ns (gRPC over HTTP/2: 1 to 8 digits and a unit); 0: no timeout."""
    if value is None:
        return 0
    unit = _UNITS.get(value[-1]) if value else None
    digits = value[:-1]
    if unit is None or not digits.isdigit() or len(digits) > 8:
        raise MalformedRequest(f"header grpc-timeout: expected up to 8 digits and one of HMSmun, given {value[:20]!r}")
    return max(int(digits) * unit, 1)


def error_block(status: int, message: str, *, trailers_only: bool, extras: tuple[Header, ...] = ()) -> bytes:
    """A status as trailers; ``trailers_only``: as the only header block of an answer without a message."""
    start: list[Header] = []
    if trailers_only:
        start = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    if status == GRPC_DEADLINE_EXCEEDED:
        # grpcio's text, which clients match: it must not matter to them which side's deadline expired first.
        message = f"Deadline Exceeded: {message}"
    # gRPC over HTTP/2: grpc-message is percent-encoded; bounded, since peers limit the size of a header list.
    text = quote(message[:1024], safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~").encode("ascii")
    return _encode([*start, (b"grpc-status", b"%d" % status), (b"grpc-message", text), *extras])


def frame_message(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def fail(stream: Any, error: IsochroneError) -> None:
    """Answer a call with an error, before any response was sent."""
    stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=True, extras=mark(error)))


def stopping_block() -> bytes:
    """The trailers of an idle streaming call when the server stops."""
    return error_block(GRPC_UNAVAILABLE, "the server is stopping", trailers_only=False)


def unexpected(error: Exception) -> Internal:
    """Log an unexpected exception with its traceback, and return the error for the caller."""
    log.error("a request failed unexpectedly", exc_info=error)
    return Internal(f"{type(error).__name__}: {error}")


class CallHead:
    """The request metadata of a call, read once per distinct header block.

    To read another metadata field, add it here. To return further trailing metadata, extend ``extras`` and
    ``is_plain``.
    """

    __slots__ = (
        "caller_id",
        "division",
        "encoding",
        "is_plain",
        "pin",
        "stages",
        "timeout_ns",
        "trace_context",
        "wants_load",
        "wants_timing",
    )

    def __init__(self, head: Head, pin: Pin | None = None) -> None:
        self.timeout_ns = parse_timeout(head.get(b"grpc-timeout"))
        self.encoding = head.get(b"grpc-encoding") or b"identity"
        #: The version that a control plane's route chose; None: the message says which.
        self.pin = pin
        stages = None if pin is None else pin.stages
        fields = request_fields(head, with_stages=stages is None)
        self.stages = fields.stages if stages is None else stages
        self.trace_context = fields.trace_context
        self.division = fields.division
        self.caller_id = fields.caller_id
        self.wants_timing = head.get(TIMING_HEADER) is not None
        # A client that balances by itself cannot ask (gRFC A58).
        self.wants_load = pin is not None or head.get(ORCA_FORMAT_HEADER) is not None
        #: The caller asks for no trailing metadata, so the trailers of successful calls are constant.
        self.is_plain = not (self.wants_timing or self.wants_load)

    def deadline(self, arrived: int, timeout_ns: int) -> int:
        """The earlier of the call's deadline and the request's ``timeout`` parameter."""
        own = self.timeout_ns
        if own and timeout_ns:
            return arrived + min(own, timeout_ns)
        if own or timeout_ns:
            return arrived + (own or timeout_ns)
        return NEVER

    def extras(self, request: InferRequest, service: InferenceService, now: int) -> tuple[Header, ...]:
        """The trailing metadata that the caller asked for: timing and load report."""
        extras: tuple[Header, ...] = ()
        if self.wants_timing:
            extras += ((SERVER_TIMING_HEADER, server_timing(request, now)),)
        if self.wants_load:
            plan = request.plan
            extras += ((ORCA_BINARY_HEADER, service.load_report(plan.model_name, plan.model_version).base64),)
        return extras


def message_of(body: Buffer, encoding: bytes, limit: int) -> tuple[Buffer, int]:
    """The message of a unary call: its buffer, and its start in the buffer."""
    size = len(body)
    if size < 5:
        raise MalformedRequest(f"a gRPC message has a prefix of 5 bytes, given {size} bytes")
    length = int.from_bytes(body[1:5], "big")
    if length != size - 5:
        raise MalformedRequest(f"the gRPC message announces {length} bytes, given {size - 5}")
    if body[0] == 0:
        return body, 5
    return unpack(body[0], body[5:], encoding, limit), 0


def only_message(body: Buffer) -> bytes:
    """The message of a unary call whose message has been decompressed."""
    found, start = message_of(body, b"identity", 0)
    return bytes(found[start:])


def unpack(flag: int, payload: Buffer, encoding: bytes, limit: int) -> Buffer:
    """A message, decompressed if its flag is set."""
    if flag == 0:
        return payload
    if flag != 1:
        raise MalformedRequest(f"the gRPC compressed flag: expected 0 or 1, given {flag}")
    if encoding == b"identity":
        raise MalformedRequest("a gRPC message is marked compressed, but grpc-encoding names no compression")
    return codec.decompress(encoding, payload, limit)


def respond(stream: ServerStream, payload: bytes) -> None:
    stream.respond_unary(RESPONSE_HEADERS, frame_message(payload), len(payload) + 5, OK_TRAILERS)


def parse(kind: Any, payload: bytes) -> Any:
    try:
        return kind.FromString(payload)
    except Exception as error:  # protobuf's DecodeError, whichever implementation is in use
        raise MalformedRequest(f"failed to parse {kind.DESCRIPTOR.name}: {error}") from None


class GrpcErrorRoute(Route):
    def __init__(self, error: IsochroneError) -> None:
        self._error = error

    def handle(self, exchange: Exchange) -> None:
        fail(exchange, self._error)
