"""Writes protobuf's variable-length integers: seven bits per byte, the lowest first. ``protocol.varint`` reads them."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """Of a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
