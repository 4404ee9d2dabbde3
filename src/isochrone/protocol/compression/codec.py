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


class Inflation:
    """One body behind a Content-Encoding or grpc-encoding.

    ``room`` bytes stand before what it gives, for a prefix. Raises what is wrong with the body.
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
        #: Bytes it may grow to.
        self.allowed = min(limit, max(GROWN_BYTES, GROWTH * len(body)))
        self._room = room
        #: Set by another thread: nobody waits for it any more.
        self.abandoned = False
        #: Made for what takes long: a small body never needs it, and it costs several times as much as that body.
        self._decoder: zlib._Decompress | None = None

    def _restart(self) -> zlib._Decompress:
        self._decoder = decoder = zlib.decompressobj(self._window)
        self._whole = bytearray(self._room)
        #: Bytes of the body handed to the decoder; those of them it has not used; whether it may give more without any.
        self._taken = 0
        self._tail: Buffer = b""
        self._has_more = False
        return decoder

    def begin(self) -> bytearray | None:
        """The body, if it is a matter of less than a millisecond; None: ``go_on`` has to be called, on a thread."""
        try:
            return self._at_once()
        except MalformedRequest:
            if not self._without_wrapper():
                raise
            return self._at_once()

    def go_on(self, most: int) -> bytearray | None:
        """Works on until the body is whole; None: it has ``most`` bytes, and more will come."""
        try:
            return self._step_by_step(most)
        except MalformedRequest:
            if not self._without_wrapper():
                raise
            self._restart()
            return self._step_by_step(most)

    def finish(self) -> bytearray:
        """The body, however large it is allowed to be."""
        while (whole := self.go_on(self.allowed + 1)) is None:
            pass
        return whole

    def _without_wrapper(self) -> bool:
        """RFC 9110 §8.4.1.2: some senders leave the zlib wrapper off. Whether that is still to be tried."""
        is_new = self._window == zlib.MAX_WBITS
        self._window = -zlib.MAX_WBITS if is_new else self._window
        return is_new

    def _at_once(self) -> bytearray | None:
        if len(self._body) > _AT_ONCE_COMPRESSED:
            return None
        decoder = zlib.decompressobj(self._window)
        piece = self._step(decoder, self._body, AT_ONCE)
        if not decoder.eof and (decoder.unconsumed_tail or len(piece) == AT_ONCE):
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
                raise Cancelled("the caller has gone")
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
                f"the {self._name} body of {len(self._body)} bytes grows to more than {self.allowed} bytes, over "
                f"{GROWTH} times its size; send it uncompressed"
            )


class StartInflation(Inflation):
    """The first ``wanted`` bytes of a body, or all of it if it has less; what stands behind them is not looked at."""

    __slots__ = ("_wanted",)

    def __init__(self, encoding: bytes, body: Buffer, limit: int, wanted: int) -> None:
        super().__init__(encoding, body, limit)
        self._wanted = self.allowed = min(wanted, self.allowed)

    def _at_once(self) -> bytearray | None:
        decoder = zlib.decompressobj(self._window)
        # Never all of a large body: a decoder copies what it leaves.
        piece = self._step(decoder, self._body[:_AT_ONCE_COMPRESSED], min(AT_ONCE, self._wanted) or 1)
        return bytearray(piece) if decoder.eof or len(piece) >= self._wanted else None

    def _step_by_step(self, most: int) -> bytearray | None:
        whole = super()._step_by_step(min(most, self._wanted))
        return self._whole if len(self._whole) == self._wanted else whole


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
