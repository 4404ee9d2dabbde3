"""gzip and deflate bodies, with a limit on what they may grow to: a kilobyte can hold a gigabyte of zeros."""

from __future__ import annotations

import zlib

from isochrone.errors import MalformedRequest, PayloadTooLarge, Unsupported
from isochrone.wire.exchange import Buffer

ACCEPTED = b"gzip, deflate"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def decompress(encoding: bytes, body: Buffer, limit: int) -> bytes:
    """The body behind a Content-Encoding or grpc-encoding."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return bytes(body)
    if name in (b"gzip", b"x-gzip"):
        return _inflate(body, _GZIP_WINDOW, "gzip", limit)
    if name == b"deflate":
        try:
            return _inflate(body, zlib.MAX_WBITS, "deflate", limit)
        except MalformedRequest:
            # RFC 9110 §8.4.1.2: some senders leave the zlib wrapper off.
            return _inflate(body, -zlib.MAX_WBITS, "deflate", limit)
    raise Unsupported(f"unsupported content-encoding '{name.decode('latin-1')}'; send one of gzip, deflate")


def _inflate(body: Buffer, window: int, name: str, limit: int) -> bytes:
    decoder = zlib.decompressobj(window)
    try:
        result = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise MalformedRequest(f"the {name} body does not decompress: {error}") from None
    if len(result) > limit:
        raise PayloadTooLarge(f"the {name} body is larger than max_body_bytes ({limit}) when decompressed")
    if not decoder.eof:
        raise MalformedRequest(f"the {name} body ends early")
    if decoder.unused_data:
        raise MalformedRequest(f"{len(decoder.unused_data)} bytes follow the {name} body")
    return result


def choose(accept_encoding: bytes | None) -> bytes | None:
    """The encoding to answer in: the client's first of gzip and deflate that it does not rule out."""
    if not accept_encoding:
        return None
    for offer in accept_encoding.lower().split(b","):
        name, _, rest = offer.strip().partition(b";")
        quality = rest.strip().removeprefix(b"q=")
        if name.strip() in (b"gzip", b"deflate") and quality not in (b"0", b"0.0", b"0.00", b"0.000"):
            return name.strip()
    return None


def compress(encoding: bytes, parts: list[Buffer]) -> bytes:
    """Level 1: an answer waits for this, and tensors hardly compress further."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW if encoding == b"gzip" else zlib.MAX_WBITS)
    return b"".join([*(encoder.compress(part) for part in parts), encoder.flush()])
