"""Compressed bodies: what expands, expands to what zlib and zstd say, and within the limit."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import zstandard

from fuzz.target import Target, outcome
from isochrone.protocol.compression.codec import Inflation, StartInflation, choose, compress

_LIMIT = 64 * 1024
_ENCODINGS = (b"gzip", b"deflate", b"zstd", b"X-GZIP", b"br")


def bodies(data: bytes) -> None:
    encoding = _ENCODINGS[data[0] % len(_ENCODINGS)] if data else b"gzip"
    body = data[1:]
    whole = _result(lambda: Inflation(encoding, body, _LIMIT).finish())
    assert _result(_stepwise, encoding, body) == whole, "in steps, it is another body"
    begun = _result(lambda: Inflation(encoding, body, _LIMIT).begin())
    assert begun in (whole, (True, None)), "at once, it is another body"
    if whole[0]:
        content = bytes(whole[1])
        assert len(content) <= _LIMIT
        expected = _expected(encoding.lower(), body)
        assert expected is None or expected == content, "the library says something else"
        if encoding in _ENCODINGS[:3]:
            packed = b"".join(compress(encoding, [content]))
            assert bytes(Inflation(encoding, packed, _LIMIT).finish()) == content
        start = outcome(lambda: StartInflation(encoding, body, _LIMIT, 10).finish())
        assert not start[0] or bytes(start[1])[:10] == content[:10]
    roomy = outcome(lambda: Inflation(encoding, body, _LIMIT, room=5).finish())
    assert roomy[0] == whole[0]
    assert not roomy[0] or bytes(roomy[1]) == bytes(5) + bytes(whole[1])
    assert choose(body) in (None, b"gzip", b"deflate", b"zstd")


def _result(call: Callable[..., object], *arguments: object) -> tuple[bool, object]:
    """A body that is damaged and too large has two faults: which of them is found first may differ."""
    ok, found = outcome(call, *arguments)
    return ok, found if ok else None


def _stepwise(encoding: bytes, body: bytes) -> bytearray:
    inflation = Inflation(encoding, body, _LIMIT)
    for most in range(777, 1 << 20, 777):
        found = inflation.resume(most)
        if found is not None:
            return found
    raise AssertionError("it does not end")


def _expected(encoding: bytes, body: bytes) -> bytes | None:
    try:
        if encoding == b"deflate":
            return zlib.decompress(body)
        if encoding == b"zstd":
            return zstandard.ZstdDecompressor().decompress(body, max_output_size=_LIMIT)
        return gzip.decompress(body)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError):
        return None


_TEXT = b'{"inputs":[]}' * 20
_RAW = zlib.compressobj(9, zlib.DEFLATED, -15)

TARGETS = (
    Target(
        "compressed_bodies",
        ("isochrone.protocol.compression.codec", "isochrone.protocol.compression.zstd"),
        "the body that gzip, zlib and zstandard give, at once, in steps and with room for a prefix; never more than "
        "the limit; only our errors",
        bodies,
        (
            b"\0" + gzip.compress(_TEXT, mtime=0),
            b"\1" + zlib.compress(_TEXT),
            b"\1" + _RAW.compress(_TEXT) + _RAW.flush(),
            b"\2" + zstandard.compress(_TEXT),
            b"\0" + gzip.compress(bytes(200_000), mtime=0),
            b"\2" + zstandard.compress(bytes(200_000)),
            b"\3" + gzip.compress(b"", mtime=0) + b"more",
        ),
    ),
)
