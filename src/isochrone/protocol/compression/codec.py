"""gzip, deflate and zstd with limits: on the size after decompression, and on the work done on the event loop.

A kilobyte can expand to a megabyte of zeros, and a megabyte takes milliseconds. ``Inflation.begin`` handles bodies that
take less than a millisecond. Larger bodies, and the compression of large answers, belong on a thread: the libraries
release the GIL, and work in small steps, so that no step holds the GIL for long.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from isochrone.errors import Cancelled, MalformedRequest, PayloadTooLarge, Unsupported
from isochrone.protocol.compression import zstd
from isochrone.protocol.compression.zstd import ZstdDecoder
from isochrone.wire.exchange import Buffer

_ACCEPTED = (b"gzip", b"deflate", zstd.NAME) if zstd.is_installed() else (b"gzip", b"deflate")
#: As a header's value.
ACCEPTED = b", ".join(_ACCEPTED)
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
#: The same for zstd, which is faster, and which no client asks for first that does not mean it.
MIN_ZSTD = 1024
#: Larger answers are compressed on a thread: 32 KiB take 0.5 to 0.8 ms.
_INLINE_COMPRESSION = 32 * 1024
#: Higher levels of zstd are for a thread, whatever the size.
_INLINE_LEVEL = 3
#: Size of the sample that decides whether an answer is compressed, and the ratio that the sample must reach.
_SAMPLE, _WORTH = 4096, 0.9


def is_identity(encoding: bytes | None) -> bool:
    return encoding is None or encoding.strip().lower() in _IDENTITY


class Inflation:
    """Decompression of one body with a Content-Encoding or grpc-encoding.

    The result starts with ``room`` zero bytes, for a prefix. Raises ``MalformedRequest`` or ``PayloadTooLarge``.
    ``expected``: the body was asked for, and may expand up to the limit.
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
        "_zstd",
        "abandoned",
        "allowed",
        "working_bytes",
    )

    def __init__(self, encoding: bytes, body: Buffer, limit: int, room: int = 0, expected: bool = False) -> None:
        name = encoding.strip().lower()
        if name == zstd.NAME:
            zstd.check_installed()
        elif name not in (b"gzip", b"x-gzip", b"deflate"):
            raise Unsupported(
                f"unsupported content-encoding '{name.decode('latin-1')}'; send one of {ACCEPTED.decode()}"
            )
        self._name = name.decode().removeprefix("x-")
        self._window = zlib.MAX_WBITS if name == b"deflate" else _GZIP_WINDOW
        #: Bytes that the work takes beside the result, if they count.
        self.working_bytes = zstd.window_of(body) if name == zstd.NAME else 0
        self._body = memoryview(body)
        self._limit = limit
        #: Largest size after decompression.
        self.allowed = limit if expected else min(limit, max(EXPANDED_BYTES, EXPANSION * len(body)))
        self._room = room
        #: Set by another thread: the result is no longer needed.
        self.abandoned = False
        #: Created for large bodies only: it costs several times as much as decompressing a small body.
        self._decoder: zlib._Decompress | None = None
        self._zstd: ZstdDecoder | None = None

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
        if self._name == "zstd":
            return self._inline_zstd()
        decoder = zlib.decompressobj(self._window)
        piece = self._step(decoder, self._body, INLINE_BYTES)
        if not decoder.eof and (decoder.unconsumed_tail or len(piece) == INLINE_BYTES):
            return None
        self._check(decoder, len(piece), 0)
        whole = bytearray(self._room)
        whole += piece
        return whole

    def _inline_zstd(self) -> bytearray | None:
        if not zstd.has_few_blocks(self._body):
            return None
        decoder = ZstdDecoder(self._body)
        self._check_size(decoder.announced)
        if decoder.announced > INLINE_BYTES:
            return None
        piece = decoder.read(INLINE_BYTES)
        if not decoder.eof:
            return None
        self._check_size(len(piece))
        whole = bytearray(self._room)
        whole += piece
        return whole

    def _zstd_step_by_step(self, most: int, is_start: bool) -> bytearray | None:
        decoder = self._zstd
        if decoder is None:
            decoder = self._zstd = ZstdDecoder(self._body, is_start, lambda: self.abandoned)
            self._whole = bytearray(self._room)
            if not is_start:
                self._check_size(decoder.announced)
        whole = self._whole
        while not decoder.eof:
            if self.abandoned:
                raise Cancelled("the caller has disconnected")
            step = min(_STEP_OUT, most + self._room - len(whole))
            if step <= 0:
                return None
            whole += decoder.read(step)
            self._check_size(len(whole) - self._room)
        return whole

    def _step_by_step(self, most: int) -> bytearray | None:
        if self._name == "zstd":
            return self._zstd_step_by_step(most, is_start=False)
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
        # Never the whole of a large body: zlib's decoder copies its unused input, and empty blocks of zstd take time.
        start, most = self._body[:_INLINE_COMPRESSED], min(INLINE_BYTES, self._wanted) or 1
        if self._name == "zstd":
            if not zstd.has_few_blocks(start):
                return None
            is_whole = len(start) == len(self._body)
            begun = ZstdDecoder(start, is_start=not is_whole)
            piece = begun.read(most)
            return bytearray(piece) if (begun.eof and is_whole) or len(piece) >= self._wanted else None
        decoder = zlib.decompressobj(self._window)
        piece = self._step(decoder, start, most)
        return bytearray(piece) if decoder.eof or len(piece) >= self._wanted else None

    def _step_by_step(self, most: int) -> bytearray | None:
        most = min(most, self._wanted)
        whole = self._zstd_step_by_step(most, True) if self._name == "zstd" else super()._step_by_step(most)
        return self._whole if len(self._whole) == self._wanted else whole


def decompress(encoding: bytes, body: Buffer, limit: int) -> Buffer:
    """Decompress a whole body. Not for the event loop, unless the body is small."""
    if is_identity(encoding):
        return bytes(body)
    return Inflation(encoding, body, limit).finish()


def choose(accept_encoding: bytes | None) -> bytes | None:
    """The encoding of the answer: the first of gzip, deflate and zstd that the client accepts; None: none of them."""
    if not accept_encoding:
        return None
    for offer in accept_encoding.lower().split(b","):
        name, _, rest = offer.strip().partition(b";")
        quality = rest.strip().removeprefix(b"q=")
        if name.strip() in _ACCEPTED and quality not in (b"0", b"0.0", b"0.00", b"0.000"):
            return name.strip()
    return None


def compress(encoding: bytes, parts: Sequence[Buffer]) -> list[bytes]:
    """Compress an answer, as a list of pieces. Level 1: latency matters, and tensors hardly compress further."""
    if encoding == zstd.NAME:
        return zstd.compress(parts)
    encoder = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW if encoding == b"gzip" else zlib.MAX_WBITS)
    steps = (memoryview(part)[at : at + _STEP_OUT] for part in parts for at in range(0, len(part), _STEP_OUT))
    return [*(encoder.compress(step) for step in steps), encoder.flush()]


def needs_thread(size: int, zstd_level: int = zstd.DEFAULT_LEVEL) -> bool:
    """Whether to compress ``size`` bytes on a thread. The highest level takes 12 ms for 32 KiB."""
    return size > _INLINE_COMPRESSION or zstd_level > _INLINE_LEVEL


def is_worth_it(encoding: bytes, parts: Sequence[Buffer], size: int) -> bool:
    """Whether to try to compress an answer: neither a small one, nor tensors that a sample shows not to compress.

    zstd takes so little time for what does not compress that it needs no sample.
    """
    if encoding == zstd.NAME:
        return size >= MIN_ZSTD
    return size >= MIN_COMPRESSED and compresses_well(parts)


def is_smaller(packed: Sequence[bytes], size: int) -> bool:
    """Whether to send what was compressed."""
    return sum(len(piece) for piece in packed) < _WORTH * size


def may_expand(packed: Sequence[bytes], size: int) -> bool:
    """Whether a server takes a request that expands to ``size`` bytes: others are sent uncompressed."""
    return size <= max(EXPANDED_BYTES, EXPANSION * sum(len(piece) for piece in packed))


def compresses_well(parts: Sequence[Buffer]) -> bool:
    """Whether a sample of a large answer compresses well: tensors of measured or computed numbers do not."""
    largest = max(parts, key=len)
    # From the largest part: the JSON part at the start is not representative of the tensors.
    sample = memoryview(largest)[:_SAMPLE]
    return len(zlib.compress(sample, 1)) < _WORTH * len(sample)
