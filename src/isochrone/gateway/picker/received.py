"""Messages of Envoy to an external processor, read without protobuf classes. Pure.

Field numbers are those of ``envoy/service/ext_proc/v3/external_processor.proto``, ``envoy/config/core/v3/base.proto``
and ``google/protobuf/struct.proto``. Only the fields that a picker goes by are read; others are stepped over by their
length. Headers come with every request, and most of them came before: those are read once.
"""

from __future__ import annotations

from enum import IntEnum

from isochrone.errors import MalformedRequest
from isochrone.protocol.varint import read_varint
from isochrone.wire.exchange import Header, Headers

#: Wire types of protobuf's encoding.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: Tag of HeaderMap.headers.
_HEADER = 0x0A
_SUBSET_NAMESPACE = b"envoy.lb.subset_hint"
_SUBSET_KEY = b"x-gateway-destination-endpoint-subset"
#: Metadata of different routes that is remembered, and the size of one.
_MOST_METADATA, _MAX_METADATA = 256, 4096
#: The same of headers.
_MOST_PAIRS, _MAX_PAIR = 4096, 512


class Part(IntEnum):
    """The parts of a request and of its response, by the number of their field in ProcessingRequest."""

    NOTHING = 0
    REQUEST_HEADERS = 2
    RESPONSE_HEADERS = 3
    REQUEST_BODY = 4
    RESPONSE_BODY = 5
    REQUEST_TRAILERS = 6
    RESPONSE_TRAILERS = 7


_PARTS = {int(part): part for part in Part if part}


class BodyMode(IntEnum):
    """How Envoy sends bodies (ProcessingMode.BodySendMode)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


class ProtocolConfig:
    """How the filter is configured; only the first message of a stream says it."""

    __slots__ = ("request_body", "response_body")

    def __init__(self, request_body: int = 0, response_body: int = 0) -> None:
        #: A ``BodyMode``, or a number that is not known here.
        self.request_body = request_body
        self.response_body = response_body


class Received:
    """One ProcessingRequest."""

    __slots__ = ("config", "content", "is_observed_only", "metadata", "part")

    def __init__(self, message: bytes) -> None:
        #: Which part it brings, and that part's message.
        self.part = Part.NOTHING
        self.content = b""
        self.metadata = b""
        self.config: ProtocolConfig | None = None
        #: Envoy waits for no answer (``observability_mode``).
        self.is_observed_only = False
        position, end = 0, len(message)
        while position < end:
            tag, position = read_varint(message, position)
            number, wire_type = tag >> 3, tag & 7
            if wire_type != _LENGTH:
                if number == 10 and wire_type == _VARINT:
                    value, position = read_varint(message, position)
                    self.is_observed_only = value != 0
                else:
                    position = _skip(message, position, wire_type, number)
                continue
            length, start = read_varint(message, position)
            position = start + length
            if position > end:
                raise _cut_off()
            part = _PARTS.get(number)
            if part is not None:
                content = message[start:position]
                # Of two parts the last one counts; the same part twice is merged, which is to join its encodings.
                self.content = self.content + content if part is self.part else content
                self.part = part
            elif number == 8:
                self.metadata += message[start:position]
            elif number == 11:
                self.config = _protocol_config(message[start:position], self.config)
        if position > end:
            raise _cut_off()


def _protocol_config(message: bytes, known: ProtocolConfig | None) -> ProtocolConfig:
    config = known or ProtocolConfig()
    for number, value in _fields(message):
        if isinstance(value, int):
            if number == 1:
                config.request_body = value
            elif number == 2:
                config.response_body = value
    return config


def read_headers(message: bytes) -> tuple[Headers, bool]:
    """HttpHeaders: the headers, pseudo-headers among them, and whether the message ends with them."""
    headers: list[Header] = []
    ends = False
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position)
        if tag == 0x18:
            value, position = read_varint(message, position)
            ends = value != 0
        elif tag == 0x0A:
            length, start = read_varint(message, position)
            position = start + length
            if position > end:
                raise _cut_off()
            _read_header_map(message, start, position, headers)
        else:
            position = _skip(message, position, tag & 7, tag >> 3)
    if position > end:
        raise _cut_off()
    return tuple(headers), ends


def read_trailers(message: bytes) -> Headers:
    """HttpTrailers, whose one field has the number that headers have in HttpHeaders."""
    return read_headers(message)[0]


#: Encoded header → its name and value. Most headers of a request are those of the one before.
_pairs: dict[bytes, Header] = {}


def _read_header_map(message: bytes, position: int, end: int, headers: list[Header]) -> None:
    while position < end:
        if message[position] != _HEADER:
            tag, position = read_varint(message, position)
            position = _skip(message, position, tag & 7, tag >> 3)
            continue
        length = message[position + 1] if position + 1 < end else 0x80
        start = position + 2
        if length > 0x7F:
            length, start = read_varint(message, position + 1)
        position = start + length
        if position > end:
            raise _cut_off()
        encoded = message[start:position]
        pair = _pairs.get(encoded)
        if pair is None:
            pair = _read_header(encoded)
            if length <= _MAX_PAIR:
                if len(_pairs) >= _MOST_PAIRS:
                    _pairs.clear()
                _pairs[encoded] = pair
        headers.append(pair)
    if position > end:
        raise _cut_off()


def _read_header(message: bytes) -> Header:
    """HeaderValue. Envoy sends values as bytes; as a string only if it is old."""
    key = value = raw = b""
    for number, content in _fields(message):
        if isinstance(content, bytes):
            if number == 1:
                key = content
            elif number == 2:
                value = content
            elif number == 3:
                raw = content
    return key, raw or value


def read_body(message: bytes) -> tuple[bytes, bool]:
    """HttpBody: its bytes, and whether the message ends with them."""
    body, ends = b"", False
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            body = value
        elif number == 2 and isinstance(value, int):
            ends = value != 0
    return body, ends


#: Metadata → the subset it names. Requests of one route bring the same.
_subsets: dict[bytes, frozenset[str] | None] = {}


def read_subset(metadata: bytes) -> frozenset[str] | None:
    """The endpoints that a request may go to; None: any. It may be empty: then there is none.

    Gateways name them as a list of strings, or as one string with commas.
    """
    if not metadata:
        return None
    if metadata in _subsets:
        return _subsets[metadata]
    subset = _read_subset(metadata)
    if len(metadata) <= _MAX_METADATA:
        if len(_subsets) >= _MOST_METADATA:
            _subsets.clear()
        _subsets[metadata] = subset
    return subset


def _read_subset(metadata: bytes) -> frozenset[str] | None:
    namespace = _entry(metadata, _SUBSET_NAMESPACE)
    value = _entry(namespace, _SUBSET_KEY) if namespace is not None else None
    if value is None:
        return None
    named: list[bytes] = []
    for number, content in _fields(value):
        if number == 3 and isinstance(content, bytes):
            named = [content]
        elif number == 6 and isinstance(content, bytes):
            values = [item for index, item in _fields(content) if index == 1 and isinstance(item, bytes)]
            named = [text for item in values for index, text in _fields(item) if index == 3 and isinstance(text, bytes)]
    addresses = (address.strip() for text in named for address in text.decode("utf-8", "replace").split(","))
    return frozenset(address for address in addresses if address)


def _entry(message: bytes, wanted: bytes) -> bytes | None:
    """The value of a map, field 1 of the message, at a key; None: it has none. A key that comes again counts."""
    found = None
    for number, content in _fields(message):
        if number != 1 or not isinstance(content, bytes):
            continue
        key = value = b""
        for index, part in _fields(content):
            if isinstance(part, bytes):
                if index == 1:
                    key = part
                elif index == 2:
                    value = value + part
        if key == wanted:
            found = value
    return found


def _fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Numbers and values of fields; those of fixed width are left out."""
    found: list[tuple[int, int | bytes]] = []
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = read_varint(message, position)
            found.append((number, value))
        elif wire_type == _LENGTH:
            length, start = read_varint(message, position)
            position = start + length
            if position > end:
                raise _cut_off()
            found.append((number, message[start:position]))
        else:
            position = _skip(message, position, wire_type, number)
    if position > end:
        raise _cut_off()
    return found


def _skip(message: bytes, position: int, wire_type: int, number: int) -> int:
    """The position after a field that is not read."""
    if wire_type == _VARINT:
        return read_varint(message, position)[1]
    if wire_type == _LENGTH:
        length, start = read_varint(message, position)
        return start + length
    if wire_type in (_FIXED64, _FIXED32):
        return position + (8 if wire_type == _FIXED64 else 4)
    raise MalformedRequest(f"failed to parse the message: field {number} has wire type {wire_type}")


def _cut_off() -> MalformedRequest:
    return MalformedRequest("failed to parse the message: a field is cut off")
