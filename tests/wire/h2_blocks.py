"""Fields of header blocks, written by hand in the forms of RFC 7541 that our encoder does not use."""

from __future__ import annotations

from isochrone.wire.http2.hpack import encode_integer, encode_literal

#: The newest entry of the dynamic table (section 6.1).
INDEXED = b"\xbe"


def inserted(name: bytes, value: bytes) -> bytes:
    """A literal that becomes an entry of the table (section 6.2.1)."""
    return b"\x40" + b"".join(encode_integer(len(text), 7) + text for text in (name, value))


def literal(name: bytes, value: bytes) -> bytes:
    """A literal that becomes none (section 6.2.2)."""
    return encode_literal(name, value)
