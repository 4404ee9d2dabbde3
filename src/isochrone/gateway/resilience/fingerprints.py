"""Fingerprints of requests: a hash of the path and body without the request id, equal for identical requests. Pure.

The gateway computes them only for requests that were in flight when a worker's process was lost, and for other requests
of that model while it has suspects.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from isochrone.wire.exchange import Buffer

_SIZE = 16
#: A JSON part up to this size is searched for an id; parsing a larger one would block the event loop.
_MAX_READ = 64 * 1024
#: Fields of a ModelInferRequest that are left out: model_name, model_version, id.
_LEFT_OUT = frozenset((0x0A, 0x12, 0x1A))


def of_http(path: bytes, body: Buffer, json_length: int) -> bytes:
    """The fingerprint of an HTTP request. ``json_length``: bytes of the JSON part; -1: the whole body."""
    end = len(body) if json_length < 0 else min(json_length, len(body))
    start = bytes(body[:end])
    if end <= _MAX_READ and b'"id"' in start:
        try:
            value = msgspec.json.decode(start)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None  # compressed or invalid: the worker rejects it
        if isinstance(value, dict):
            value.pop("id", None)
            start = msgspec.json.encode(value)
    digest = blake2b(path, digest_size=_SIZE)
    digest.update(b"\0%d\0" % len(start))
    digest.update(start)
    digest.update(memoryview(body)[end:])
    return digest.digest()


def of_grpc(path: bytes, message: Buffer, position: int) -> bytes:
    """The fingerprint of a gRPC message that begins at ``position``."""
    digest = blake2b(path, digest_size=_SIZE)
    size = len(message)
    while position < size and message[position] in _LEFT_OUT:
        length = shift = 0
        start = position + 1
        while start < size:
            byte = message[start]
            start += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        position = start + length
    digest.update(memoryview(message)[position:])
    return digest.digest()
