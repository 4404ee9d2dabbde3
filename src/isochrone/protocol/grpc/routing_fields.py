"""The routing fields of a ModelInferRequest, read without parsing its tensors; and its version, stamped at the end.

protobuf writers put fields in the order of their numbers: model_name 1, model_version 2, id 3, parameters 4, then the
inputs 5, outputs 6 and raw contents 7. Readers take any order, and where a field comes twice the last one wins: a
version appended to the message stands, and so would a second model_name behind the tensors. The gateway must route,
count and admit the model that the worker will run, so every field is visited; tensors are stepped over by length.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from isochrone.errors import MalformedRequest
from isochrone.protocol.varint import read_varint
from isochrone.varint import encode_varint
from isochrone.wire.exchange import Buffer

_double = Struct("<d")
_NAME, _VERSION, _ID, _PARAMETERS = 0x0A, 0x12, 0x1A, 0x22
#: id 3, inputs 5, outputs 6, raw_input_contents 7.
_NOT_ROUTING = (_ID, 0x2A, 0x32, 0x3A)


class Opening(NamedTuple):
    """What the routing fields say."""

    model: bytes
    version: bytes = b""
    #: "" unless the request belongs to a sequence.
    sequence: bytes = b""
    timeout_ns: int = 0
    priority: int = 0
    #: It is the first request of its sequence.
    starts_sequence: bool = False
    #: Deadlines of tokens as the caller wrote them, not checked; 0: not given.
    time_to_first_token_ms: int | float | str = 0
    inter_token_ms: int | float | str = 0


def request_id(message: Buffer) -> bytes:
    """The id of a request; empty where it has none or does not parse."""
    position, end = 0, len(message)
    try:
        while position < end:
            tag, position = read_varint(message, position)
            if tag & 7 != 2:
                position = _skip(message, position, tag & 7)
                continue
            length, position = read_varint(message, position)
            if tag == _ID:
                return bytes(message[position : position + length])
            position += length
    except MalformedRequest:
        pass
    return b""


def read_opening(message: Buffer, position: int) -> Opening:
    """Reads a message that begins at ``position``."""
    model = version = sequence = b""
    timeout_ns = priority = 0
    starts_sequence = False
    first_token: int | float | str = 0
    inter_token: int | float | str = 0
    end = len(message)
    try:
        while position < end:
            tag = message[position]
            if tag > 0x7F or tag & 7 != 2:
                # A field that this protocol does not have, or a tag spelled with more bytes than it needs.
                tag, position = read_varint(message, position)
                if tag & 7 != 2:
                    position = _skip(message, position, tag & 7)
                    continue
                position -= 1
            length = message[position + 1]
            start = position + 2
            if length > 0x7F:
                length, start = read_varint(message, position + 1)
            position = start + length
            if position > end:
                raise MalformedRequest("a field of the request is cut off")
            if tag == _NAME:
                model = bytes(message[start:position])
            elif tag == _VERSION:
                version = bytes(message[start:position])
            elif tag == _PARAMETERS:
                key, value = _parameter(bytes(message[start:position]))
                if key == b"sequence_start":
                    starts_sequence = value is True
                    continue
                if isinstance(value, bool):
                    value = 0  # none of the others is a boolean
                if key == b"time_to_first_token_ms":
                    first_token = _number(value)
                    continue
                if key == b"inter_token_ms":
                    inter_token = _number(value)
                    continue
                if isinstance(value, float):
                    value = 0  # nor has it a fraction
                if key == b"sequence_id":
                    sequence = value if isinstance(value, bytes) else b"%d" % value if value else b""
                elif key == b"timeout" and isinstance(value, int):
                    timeout_ns = value * 1000
                elif key == b"priority" and isinstance(value, int):
                    priority = value
    except IndexError:
        raise MalformedRequest("a field of the request is cut off") from None
    if position > end:
        raise MalformedRequest("a field of the request is cut off")
    return Opening(model, version, sequence, timeout_ns, priority, starts_sequence, first_token, inter_token)


#: Of a message whose layout is remembered. Strangers choose how many fields a message has.
_MOST_FIELDS = 64
_MOST_FIXED_BYTES = 4096

#: Where a message must have which bytes: start, end, bytes.
Layout = tuple[tuple[int, int, bytes], ...]


def layout_of(message: Buffer, position: int) -> Layout | None:
    """What messages of this length must have in common to name the same model and nothing else that routing reads.

    ``position``: behind the first field, which is the model's name. None: something else than id and tensors follows,
    or more than is worth remembering. A message of the same length with the same tags and lengths at the same places
    has the same fields; their contents may differ.
    """
    end, same_from, fixed = len(message), 0, 0
    layout: list[tuple[int, int, bytes]] = []
    try:
        while position < end:
            tag = message[position]
            if tag not in _NOT_ROUTING:
                return None
            length, content = read_varint(message, position + 1)
            fixed += content - same_from
            if len(layout) == _MOST_FIELDS or fixed > _MOST_FIXED_BYTES:
                return None
            layout.append((same_from, content, bytes(message[same_from:content])))
            same_from = position = content + length
    except (IndexError, MalformedRequest):
        return None
    return tuple(layout) or ((0, end, bytes(message)),) if position == end else None


def _skip(message: Buffer, position: int, wire_type: int) -> int:
    """Where a field of an unknown number ends (protobuf's encoding: varint 0, fixed64 1, fixed32 5)."""
    if wire_type == 0:
        return read_varint(message, position)[1]
    if wire_type in (1, 5):
        return position + (8 if wire_type == 1 else 4)
    raise MalformedRequest(f"a field of the request has wire type {wire_type}")


def _number(value: int | float | bytes) -> int | float | str:
    """A number as the caller wrote it, perhaps as a string."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _parameter(entry: bytes) -> tuple[bytes, int | float | bytes]:
    """A map entry's key and its value, as the worker will read them."""
    try:
        found = _plain_parameter(entry)
    except (IndexError, MalformedRequest):
        found = None
    return _parsed_parameter(entry) if found is None else found


def _plain_parameter(entry: bytes) -> tuple[bytes, int | float | bytes] | None:
    """Of an entry as protobuf writers spell it: key, then value, each once. None: it is spelled in another way."""
    if entry[0] != 0x0A:
        return None
    length, start = read_varint(entry, 1)
    position = start + length
    key = entry[start:position]
    if entry[position] != 0x12:
        return None
    length, start = read_varint(entry, position + 1)
    if start + length != len(entry):
        return None
    value = _infer_parameter(entry[start:])
    return None if value is None else (key, value)


def _infer_parameter(message: bytes) -> int | float | bytes | None:
    """InferParameter: bool 1, int64 2, string 3, double 4, uint64 5; None: not exactly one of them."""
    tag = message[0]
    if tag in (0x08, 0x10, 0x28):
        number, end = read_varint(message, 1)
        if end != len(message) or number >= 1 << 64:
            return None
        if tag == 0x08:
            # Not by one expression with the other: compiled, it would be a number.
            return number != 0
        return number
    if tag == 0x1A:
        length, start = read_varint(message, 1)
        return message[start:] if start + length == len(message) else None
    if tag == 0x21 and len(message) == 9:
        (real,) = _double.unpack_from(message, 1)
        return float(real)
    return None


def _parsed_parameter(entry: bytes) -> tuple[bytes, int | float | bytes]:
    """By protobuf's own parser: fields twice, of unknown numbers or with long tags mean here what they mean there."""
    try:
        message = service_pb2.ModelInferRequest.FromString(b"\x22" + encode_varint(len(entry)) + entry)
    except DecodeError:
        raise MalformedRequest("a parameter of the request does not parse") from None
    for key, parameter in message.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = getattr(parameter, choice) if choice else 0
        return key.encode(), value.encode() if isinstance(value, str) else value
    return b"", 0


def version_field(version: str) -> bytes:
    """``model_version`` to append to a message."""
    return _string_field(_VERSION, version)


def name_field(name: str) -> bytes:
    """``model_name`` to append to a message."""
    return _string_field(_NAME, name)


def _string_field(tag: int, text: str) -> bytes:
    raw = text.encode()
    return bytes((tag,)) + encode_varint(len(raw)) + raw
