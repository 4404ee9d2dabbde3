"""The first fields of a ModelInferRequest, read without parsing the rest; and its version, stamped at the end.

protobuf writers put fields in the order of their numbers: model_name 1, model_version 2, id 3, parameters 4, then the
inputs. Where a field comes twice the last one wins, so a version appended to the message stands.
"""

from __future__ import annotations

from typing import NamedTuple

from isochrone.errors import MalformedRequest
from isochrone.wire.exchange import Buffer

_NAME, _VERSION, _ID, _PARAMETERS = 0x0A, 0x12, 0x1A, 0x22


class Opening(NamedTuple):
    """What the first fields say."""

    model: bytes
    version: bytes = b""
    #: "" unless the request belongs to a sequence.
    sequence: bytes = b""
    timeout_ns: int = 0
    priority: int = 0


def read_opening(message: Buffer, position: int) -> Opening:
    """Reads from ``position`` up to the first input."""
    model = version = sequence = b""
    timeout_ns = priority = 0
    end = len(message)
    try:
        while position < end:
            tag = message[position]
            if tag not in (_NAME, _VERSION, _ID, _PARAMETERS):
                break
            length = message[position + 1]
            start = position + 2
            if length > 0x7F:
                length, start = _varint(message, position + 1)
            position = start + length
            if position > end:
                raise MalformedRequest("the request's first fields are cut off")
            if tag == _NAME:
                model = bytes(message[start:position])
            elif tag == _VERSION:
                version = bytes(message[start:position])
            elif tag == _PARAMETERS:
                key, value = _parameter(bytes(message[start:position]))
                if key == b"sequence_id":
                    sequence = value if isinstance(value, bytes) else b"%d" % value if value else b""
                elif key == b"timeout" and isinstance(value, int):
                    timeout_ns = value * 1000
                elif key == b"priority" and isinstance(value, int):
                    priority = value
    except IndexError:
        raise MalformedRequest("the request's first fields are cut off") from None
    return Opening(model, version, sequence, timeout_ns, priority)


def _varint(message: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise MalformedRequest("a length of the request's first fields is no varint")


def _parameter(entry: bytes) -> tuple[bytes, int | bytes]:
    """A map entry's key and its value, where that is a number or a string."""
    key = b""
    value: int | bytes = 0
    position = 0
    while position < len(entry):
        tag = entry[position]
        if tag & 7 != 2:
            break
        length, start = _varint(entry, position + 1)
        position = start + length
        if tag == 0x0A:
            key = entry[start:position]
        elif tag == 0x12:
            value = _infer_parameter(entry[start:position])
    return key, value


def _infer_parameter(message: bytes) -> int | bytes:
    """InferParameter: bool 1, int64 2, string 3, double 4, uint64 5."""
    if not message:
        return 0
    tag = message[0]
    if tag in (0x10, 0x28):
        return _varint(message, 1)[0]
    if tag == 0x1A:
        length, start = _varint(message, 1)
        return message[start : start + length]
    return 0


def version_field(version: str) -> bytes:
    """``model_version`` to append to a message."""
    return _string_field(_VERSION, version)


def name_field(name: str) -> bytes:
    """``model_name`` to append to a message."""
    return _string_field(_NAME, name)


def _string_field(tag: int, text: str) -> bytes:
    raw = text.encode()
    length = len(raw)
    size = bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes((tag,)) + bytes(size) + raw
