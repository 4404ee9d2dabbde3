"""Messages of an external processor to Envoy, written without protobuf classes. Pure.

What recurs is written once: replies that change nothing, and the parts of a decision that name a worker. Each function
returns a whole gRPC message with its prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from isochrone.gateway.picker.received import Part
from isochrone.protocol.grpc.calls import frame_message
from isochrone.varint import encode_varint
from isochrone.wire.exchange import Buffer, Header

DESTINATION_HEADER = b"x-gateway-destination-endpoint"
#: Bytes of a body in one message: gateways accept 64 KiB.
MOST_BODY = 62_000
#: Part → field of ProcessingResponse.
_FIELDS = {
    Part.REQUEST_HEADERS: 1,
    Part.RESPONSE_HEADERS: 2,
    Part.REQUEST_BODY: 3,
    Part.RESPONSE_BODY: 4,
    Part.REQUEST_TRAILERS: 5,
    Part.RESPONSE_TRAILERS: 6,
}
#: HeaderValueOption.append_action: OVERWRITE_IF_EXISTS_OR_ADD. A value that a client sent must not survive.
_OVERWRITE = b"\x18\x02"
_CLEAR_ROUTE_CACHE = b"\x28\x01"
_ENDS = b"\x10\x01"
#: Bytes of headers in what is remembered: clients choose some of them.
_MOST_REMEMBERED = 1024


def field(number: int, content: bytes) -> bytes:
    """A field with a length: a message, bytes or a string."""
    return bytes((number << 3 | 2,)) + encode_varint(len(content)) + content


def set_header(name: bytes, value: bytes) -> bytes:
    """A member of HeaderMutation.set_headers."""
    return field(1, field(1, field(1, name) + field(3, value)) + _OVERWRITE)


_set_header_again = lru_cache(maxsize=4096)(set_header)


def set_header_again(name: bytes, value: bytes) -> bytes:
    """The same for values that recur."""
    return _set_header_again(name, value) if len(value) <= _MOST_REMEMBERED else set_header(name, value)


@lru_cache(maxsize=256)
def remove_header(name: bytes) -> bytes:
    """A member of HeaderMutation.remove_headers."""
    return field(2, name)


@lru_cache(maxsize=4096)
def _destination(address: bytes) -> tuple[bytes, bytes]:
    """The header that names a worker, and the same as dynamic metadata, which Envoy's own policies read."""
    value = field(2, field(3, address))
    inner = field(1, field(1, DESTINATION_HEADER) + value)
    outer = field(1, field(1, b"envoy.lb") + field(2, field(5, inner)))
    return set_header(DESTINATION_HEADER, address), field(8, outer)


def decision(part: Part, address: bytes, mutations: tuple[bytes, ...], body: bytes | None = None) -> bytes:
    """The request goes to a worker: the reply to its headers or, in buffered mode, to its body.

    ``body`` replaces the one that came; None: that one stays.
    """
    header, metadata = _destination(address)
    common = field(2, b"".join((header, *mutations)))
    if body is not None:
        common += field(3, field(1, body))
    return frame_message(field(_FIELDS[part], field(1, common + _CLEAR_ROUTE_CACHE)) + metadata)


_decision_again = lru_cache(maxsize=4096)(decision)


def decision_again(part: Part, address: bytes, mutations: tuple[bytes, ...]) -> bytes:
    """The same for decisions that recur: of requests without a deadline and without a body of their own."""
    if sum(map(len, mutations)) > _MOST_REMEMBERED:
        return decision(part, address, mutations)
    return _decision_again(part, address, mutations)


#: Replies that change nothing. Trailers have no CommonResponse.
_UNCHANGED = {part: frame_message(field(number, b"" if number > 4 else b"\x0a\0")) for part, number in _FIELDS.items()}


def unchanged(part: Part) -> bytes:
    """Go on with what came."""
    return _UNCHANGED[part]


def changed(part: Part, mutations: Sequence[bytes]) -> bytes:
    """Go on with other headers or trailers."""
    if not mutations:
        return _UNCHANGED[part]
    joined = b"".join(mutations)
    content = field(1, joined) if part is Part.REQUEST_TRAILERS or part is Part.RESPONSE_TRAILERS else None
    return frame_message(field(_FIELDS[part], content if content is not None else field(1, field(2, joined))))


def handed_back(part: Part, body: Buffer, ends: bool) -> list[bytes]:
    """A body in full duplex, where Envoy passes on what the processor sends it."""
    view = memoryview(body)
    size = len(view)
    replies = []
    for start in range(0, max(size, 1), MOST_BODY):
        piece = view[start : start + MOST_BODY]
        is_last = start + MOST_BODY >= size
        streamed = (field(1, bytes(piece)) if len(piece) else b"") + (_ENDS if ends and is_last else b"")
        replies.append(frame_message(field(_FIELDS[part], field(1, field(3, field(3, streamed))))))
    return replies


def immediate(status: int, headers: Iterable[Header], body: bytes, grpc_status: int | None, details: bytes) -> bytes:
    """Envoy answers the request with this, and forwards it nowhere."""
    content = field(1, b"\x08" + encode_varint(status))
    mutation = b"".join(set_header(name, value) for name, value in headers)
    if mutation:
        content += field(2, mutation)
    content += field(3, body)
    if grpc_status is not None:
        content += field(4, b"\x08" + encode_varint(grpc_status))
    return frame_message(field(7, content + field(5, details)))
