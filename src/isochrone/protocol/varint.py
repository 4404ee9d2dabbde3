"""Reads protobuf's variable-length integers: seven bits per byte, the lowest first. ``varint`` writes them."""

from __future__ import annotations

from isochrone.errors import MalformedRequest
from isochrone.wire.exchange import Buffer

#: Ten bytes hold 64 bits; a longer number is malformed.
_MAX_SHIFT = 63


def read_varint(message: Buffer, position: int) -> tuple[int, int]:
    """Return the number at ``position`` and the position after it."""
    value = shift = 0
    try:
        while shift <= _MAX_SHIFT:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
    except IndexError:
        raise MalformedRequest("failed to parse the protobuf message: a varint is cut short") from None
    raise MalformedRequest("failed to parse the protobuf message: a varint is longer than ten bytes")
