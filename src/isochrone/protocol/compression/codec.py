"""gzip and deflate with limits: on the size after decompression, and on the work done on the event loop.

A kilobyte can expand to a megabyte of zeros, and a megabyte takes milliseconds. ``Inflation.begin`` handles bodies that
take less than a millisecond. Larger bodies, and the compression of large answers, belong on a thread: zlib releases the
GIL, and works in small steps, so that no step holds the GIL for long.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from isochrone.errors import Cancelled, MalformedRequest, PayloadTooLarge, Unsupported
from isochrone.wire.exchange import Buffer

ACCEPTED = b"gzip, deflate"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_IDENTITY = (b"", b"identity")

#: Largest decompressed size (0.1 to 0.7 ms of work) and compressed size of a body that is inflated on the event loop.
INLINE_BYTES = 128 * 1024
_INLINE_COMPRESSED = 64 * 1024
#: Bytes of input and output of one step on a thread; between two steps other threads can take the GIL.
_STEP_IN, _STEP_OUT = 64 * 1024, 256 * 1024
#: A body may expand to this size or by this factor, whichever is larger. Tensors of zeros reach a factor of a thousand.
EXPANDED_BYTES, EXPANSION = 32 * 1024 * 1024, 100

#: Answers below this size are not compressed: the event loop would spend more time than the network saves.
MIN_COMPRESSED = 16 * 1024
#: Larger answers are compressed on a thread: 32 KiB take 0.5 to 0.8 ms.
_INLINE_COMPRESSION = 32 * 1024
#: Size of the sample that decides whether an answer is compressed, and the ratio that the sample must reach.
_SAMPLE, _WORTH = 4096, 0.9


def is_identity(encoding: bytes | None) -> bool:
    return encoding is None or encoding.strip().lower() in _IDENTITY


class Inflation:
    """Decompression of one body with a Content-Encoding or grpc-encoding.

    The result starts with ``room`` zero bytes, for a prefix. Raises ``MalformedRequest`` or ``PayloadTooLarge``.
    """

    __slots__ = (
        "_body",
        "_decoder",
        "_has_more",
        "_limit",
        "_name",
        "_room",
        "_tail",
        "_taken",
        "_whole",
        "_window",
        "abandoned",
        "allowed",
    )

    def __init__(self, encoding: bytes, body: Buffer, limit: int, room: int = 0) -> None:
        name = encoding.strip().lower()
        if name not in (b"gzip", b"x-gzip", b"deflate"):
            raise Unsupported(f"unsupported content-encoding '{name.decode('latin-1')}'; send one of gzip, deflate")
        self._name = "deflate" if name == b"deflate" else "gzip"
        self._window = zlib.MAX_WBITS if name == b"deflate" else _GZIP_WINDOW
        self._body = memoryview(body)
        self._limit = limit
        #: Largest size after decompression.
        self.allowed = min(limit, max(EXPANDED_BYTES, EXPANSION * len(body)))
        self._room = room
        #: Set by another thread: the result is no longer needed.
        self.abandoned = False
        #: Created for large bodies only: it costs several times as much as decompressing a small body.
        self._decoder: zlib._Decompress | None = None

    def _restart(self) -> zlib._Decompress:
        self._decoder = decoder = zlib.decompressobj(self._window)
        self._whole = bytearray(self._room)
        #: Bytes passed to the decoder; the part that it has not consumed; whether it may return more without input.
        self._taken = 0
        self._tail: Buffer = b""
        self._has_more = False
        return decoder

    def begin(self) -> bytearray | None:
        """The body, if it takes less than a millisecond; None: call ``resume`` on a thread."""
        try:
            return self._inline()
        except MalformedRequest:
            if not self._without_wrapper():
                raise
            return self._inline()

    def resume(self, most: int) -> bytearray | None:
        """Continue until the body is complete; None: ``most`` bytes are done, and more follow."""
        try:
            return self._step_by_step(most)
        except MalformedRequest:
            if not self._without_wrapper():
                raise
            self._restart()
            return self._step_by_step(most)

    def finish(self) -> bytearray:
        """The complete body."""
        while (whole := self.resume(self.allowed + 1)) is None:
            pass
        return whole

    def _without_wrapper(self) -> bool:
        """RFC 9110 §8.4.1.2: some senders omit the zlib wrapper. Returns whether to retry without it."""
        is_new = self._window == zlib.MAX_WBITS
        self._window = -zlib.MAX_WBITS if is_new else self._window
        return is_new

    def _inline(self) -> bytearray | None:
        if len(self._body) > _INLINE_COMPRESSED:
            return None
        decoder = zlib.decompressobj(self._window)
        piece = self._step(decoder, self._body, INLINE_BYTES)
        if not decoder.eof and (decoder.unconsumed_tail or len(piece) == INLINE_BYTES):
            return None
        self._check(decoder, len(piece), 0)
        whole = bytearray(self._room)
        whole += piece
        return whole

    def _step_by_step(self, most: int) -> bytearray | None:
        decoder = self._decoder or self._restart()
        whole, size = self._whole, len(self._body)
        while not decoder.eof:
            if self.abandoned:
                raise Cancelled("the caller has disconnected")
            step = min(_STEP_OUT, most + self._room - len(whole))
            if step <= 0:
                return None
            if not self._tail and not self._has_more:
                if self._taken == size:
                    break
                self._tail = self._body[self._taken : self._taken + _STEP_IN]
                self._taken += len(self._tail)
            piece = self._step(decoder, self._tail, step)
            whole += piece
            self._check_size(len(whole) - self._room)
            self._tail = decoder.unconsumed_tail
            self._has_more = len(piece) == step
        self._check(decoder, len(whole) - self._room, size - self._taken)
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
        if given > self.allowed:
            raise PayloadTooLarge(
                f"the {self._name} body of {len(self._body)} bytes expands to more than {self.allowed} bytes, over "
                f"{EXPANSION} times its size; send it uncompressed"
            )


class StartInflation(Inflation):
    """Decompression of the first ``wanted`` bytes of a body, or of all if there are fewer; the rest is not checked."""

    __slots__ = ("_wanted",)

    def __init__(self, encoding: bytes, body: Buffer, limit: int, wanted: int) -> None:
        super().__init__(encoding, body, limit)
        self._wanted = self.allowed = min(wanted, self.allowed)

    def _inline(self) -> bytearray | None:
        decoder = zlib.decompressobj(self._window)
        # Never the whole of a large body: the decoder copies its unused input.
        piece = self._step(decoder, self._body[:_INLINE_COMPRESSED], min(INLINE_BYTES, self._wanted) or 1)
        return bytearray(piece) if decoder.eof or len(piece) >= self._wanted else None

    def _step_by_step(self, most: int) -> bytearray | None:
        whole = super()._step_by_step(min(most, self._wanted))
        return self._whole if len(self._whole) == self._wanted else whole


def decompress(encoding: bytes, body: Buffer, limit: int) -> Buffer:
    """Decompress a whole body. Not for the event loop, unless the body is small."""
    if is_identity(encoding):
        return bytes(body)
    return Inflation(encoding, body, limit).finish()


def choose(accept_encoding: bytes | None) -> bytes | None:
    """The encoding of the answer: the first of gzip and deflate that the client accepts; None: neither."""
    if not accept_encoding:
        return None
    for offer in accept_encoding.lower().split(b","):
        name, _, rest = offer.strip().partition(b";")
        quality = rest.strip().removeprefix(b"q=")
        if name.strip() in (b"gzip", b"deflate") and quality not in (b"0", b"0.0", b"0.00", b"0.000"):
            return name.strip()
    return None


def compress(encoding: bytes, parts: Sequence[Buffer]) -> list[bytes]:
    """Compress an answer, as a list of pieces. Level 1: latency matters, and tensors hardly compress further."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW if encoding == b"gzip" else zlib.MAX_WBITS)
    steps = (memoryview(part)[at : at + _STEP_OUT] for part in parts for at in range(0, len(part), _STEP_OUT))
    return [*(encoder.compress(step) for step in steps), encoder.flush()]


def needs_thread(size: int) -> bool:
    """Whether to compress an answer of ``size`` bytes on a thread."""
    return size > _INLINE_COMPRESSION


def compresses_well(parts: Sequence[Buffer]) -> bool:
    """Whether a sample of a large answer compresses well: tensors of measured or computed numbers do not."""
    largest = max(parts, key=len)
    # From the largest part: the JSON part at the start is not representative of the tensors.
    sample = memoryview(largest)[:_SAMPLE]
    return len(zlib.compress(sample, 1)) < _WORTH * len(sample)
