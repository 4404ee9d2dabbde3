"""gzip and deflate bodies: what they may grow to, and how much of the work may be done on the event loop.

A kilobyte can hold a megabyte of zeros, and a megabyte takes milliseconds. ``Inflation.begin`` does what takes less
than a millisecond; the rest, and compression of large answers, belongs on a thread: zlib releases the interpreter
there, and pieces are small, so that none is copied for long while it holds it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from isochrone.errors import Cancelled, MalformedRequest, PayloadTooLarge, Unsupported
from isochrone.wire.exchange import Buffer

ACCEPTED = b"gzip, deflate"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_IDENTITY = (b"", b"identity")

#: Bytes of a body that is inflated at once: 0.1 to 0.7 ms, by its content; and those it may have before.
AT_ONCE = 128 * 1024
_AT_ONCE_COMPRESSED = 64 * 1024
#: Bytes taken in and given out in one step on a thread: between two steps other threads get the interpreter.
_STEP_IN, _STEP_OUT = 64 * 1024, 256 * 1024
#: A body may grow to this size, or to so many times its own, whichever is more; tensors of zeros reach a thousand.
GROWN_BYTES, GROWTH = 32 * 1024 * 1024, 100

#: Answers below this size are not compressed: what is saved on the way costs more on the loop.
LEAST = 16 * 1024
#: Larger ones are compressed on a thread: 32 KiB take 0.5 to 0.8 ms.
_MOST_AT_ONCE = 32 * 1024
#: Bytes at the start of a large answer that tell whether it is worth it, and what has to be left of them.
_SAMPLE, _WORTH = 4096, 0.9


def is_identity(encoding: bytes | None) -> bool:
    return encoding is None or encoding.strip().lower() in _IDENTITY


class Inflated(bytearray):
    """A body, decompressed; can be watched until nobody has it any more."""

    __slots__ = ("__weakref__",)


class Inflation:
    """One body behind a Content-Encoding or grpc-encoding.

    ``room`` bytes stand before what it gives, for a prefix. Raises what is wrong with the body.
    """

    __slots__ = ("_allowed", "_body", "_limit", "_name", "_room", "_window", "abandoned")

    def __init__(self, encoding: bytes, body: Buffer, limit: int, room: int = 0) -> None:
        name = encoding.strip().lower()
        if name not in (b"gzip", b"x-gzip", b"deflate"):
            raise Unsupported(f"unsupported content-encoding '{name.decode('latin-1')}'; send one of gzip, deflate")
        self._name = "deflate" if name == b"deflate" else "gzip"
        self._window = zlib.MAX_WBITS if name == b"deflate" else _GZIP_WINDOW
        self._body = memoryview(body)
        self._limit = limit
        self._allowed = min(limit, max(GROWN_BYTES, GROWTH * len(body)))
        self._room = room
        #: Set by another thread: nobody waits for it any more.
        self.abandoned = False

    def begin(self) -> Inflated | None:
        """The body, if it is a matter of less than a millisecond; None: ``finish`` has to be called, on a thread."""
        if len(self._body) > _AT_ONCE_COMPRESSED:
            return None
        try:
            return self._at_once()
        except MalformedRequest:
            if not self._without_wrapper():
                raise
            return self._at_once()

    def finish(self) -> Inflated:
        """The body, however large it is allowed to be."""
        try:
            return self._step_by_step()
        except MalformedRequest:
            if not self._without_wrapper():
                raise
            return self._step_by_step()

    def _without_wrapper(self) -> bool:
        """RFC 9110 §8.4.1.2: some senders leave the zlib wrapper off. Whether that is still to be tried."""
        is_new = self._window == zlib.MAX_WBITS
        self._window = -zlib.MAX_WBITS if is_new else self._window
        return is_new

    def _at_once(self) -> Inflated | None:
        decoder = zlib.decompressobj(self._window)
        piece = self._step(decoder, self._body, AT_ONCE)
        if not decoder.eof and (decoder.unconsumed_tail or len(piece) == AT_ONCE):
            return None
        whole = Inflated(self._room)
        whole += piece
        self._check(decoder, len(piece), 0)
        return whole

    def _step_by_step(self) -> Inflated:
        decoder = zlib.decompressobj(self._window)
        whole = Inflated(self._room)
        size = len(self._body)
        taken = 0
        while taken < size and not decoder.eof:
            data: Buffer = self._body[taken : taken + _STEP_IN]
            taken = min(size, taken + _STEP_IN)
            while True:
                if self.abandoned:
                    raise Cancelled("the caller has gone")
                piece = self._step(decoder, data, _STEP_OUT)
                whole += piece
                self._check_size(len(whole) - self._room)
                data = decoder.unconsumed_tail
                if decoder.eof or (not data and len(piece) < _STEP_OUT):
                    break
        self._check(decoder, len(whole) - self._room, size - taken)
        return whole

    def _step(self, decoder: zlib._Decompress, data: Buffer, most: int) -> bytes:
        try:
            return decoder.decompress(data, most)
        except zlib.error as error:
            raise MalformedRequest(f"the {self._name} body does not decompress: {error}") from None

    def _check(self, decoder: zlib._Decompress, given: int, left: int) -> None:
        self._check_size(given)
        if not decoder.eof:
            raise MalformedRequest(f"the {self._name} body ends early")
        if left or decoder.unused_data:
            raise MalformedRequest(f"{left + len(decoder.unused_data)} bytes follow the {self._name} body")

    def _check_size(self, given: int) -> None:
        if given > self._limit:
            raise PayloadTooLarge(
                f"the {self._name} body is larger than max_body_bytes ({self._limit}) when decompressed"
            )
        if given > self._allowed:
            raise PayloadTooLarge(
                f"the {self._name} body of {len(self._body)} bytes grows to more than {self._allowed} bytes, over "
                f"{GROWTH} times its size; send it uncompressed"
            )


def decompress(encoding: bytes, body: Buffer, limit: int) -> Buffer:
    """The body behind a Content-Encoding or grpc-encoding, whole. Not for the event loop, unless it is small."""
    if is_identity(encoding):
        return bytes(body)
    return Inflation(encoding, body, limit).finish()


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


def compress(encoding: bytes, parts: Sequence[Buffer]) -> list[bytes]:
    """The pieces of the answer. Level 1: the caller waits for this, and tensors hardly compress further."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW if encoding == b"gzip" else zlib.MAX_WBITS)
    steps = (memoryview(part)[at : at + _STEP_OUT] for part in parts for at in range(0, len(part), _STEP_OUT))
    return [*(encoder.compress(step) for step in steps), encoder.flush()]


def takes_long(size: int) -> bool:
    """Whether an answer of so many bytes is to be compressed on a thread."""
    return size > _MOST_AT_ONCE


def is_worth_it(parts: Sequence[Buffer]) -> bool:
    """Whether the start of a large answer gets smaller: numbers that were measured or computed hardly do."""
    largest = max(parts, key=len)
    # Inside it: an answer may begin with a small JSON part, which says nothing of the tensors.
    sample = memoryview(largest)[:_SAMPLE]
    return len(zlib.compress(sample, 1)) < _WORTH * len(sample)
