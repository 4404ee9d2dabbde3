"""zstd (RFC 8878), where the package ``zstandard`` is installed: one frame, in steps of a limited size.

A frame names the memory that its decompression needs; RFC 9659 limits it for HTTP. The library tells neither whether a
frame is complete nor where it ends, so the lengths of its blocks are followed here first. The library releases the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from isochrone.errors import Cancelled, MalformedRequest, PayloadTooLarge, UnsupportedEncoding
from isochrone.wire.exchange import Buffer


def _library() -> Any:
    """None: it is not installed."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


zstandard = _library()

NAME = b"zstd"
#: What the package is called for users.
PACKAGE = "zstandard (pip install isochrone[compression])"
#: RFC 9659: a recipient need not take more, and a sender must not need more. Levels up to 19 need less.
MAX_WINDOW = 8 * 1024 * 1024
#: Latency matters, and tensors hardly compress further.
DEFAULT_LEVEL = 1
HIGHEST_LEVEL = 19

_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK_HEAD, _CHECKSUM = 3, 4
_RLE, _RESERVED = 1, 3
#: Empty blocks take time and carry nothing. Encoders make one block of 128 KiB, or one of each part that is flushed.
_MOST_BLOCKS, _BYTES_PER_BLOCK = 1024, 256
#: Frames with more blocks take more than a millisecond.
_QUICK_BLOCKS = 300
#: Blocks between two looks whether the result is still needed.
_LOOK_EVERY = 4096
_UNKNOWN_SIZE = (1 << 64) - 1


def is_installed() -> bool:
    return zstandard is not None


def check_installed() -> None:
    if not is_installed():
        raise UnsupportedEncoding(
            f"content-encoding zstd needs the package {PACKAGE} on this server; install it, or send gzip"
        )


class ZstdDecoder:
    """Decompresses one body. With ``is_start``, the end of the body is not checked.

    ``is_abandoned``: whether the result is no longer needed; then it raises ``Cancelled``.
    """

    __slots__ = ("_left", "_reader", "announced", "eof")

    def __init__(self, body: Buffer, is_start: bool = False, is_abandoned: Callable[[], bool] = lambda: False) -> None:
        content, _, start, has_checksum = _frame_head(body)
        if not is_start:
            _check_end(body, start, has_checksum, is_abandoned)
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        self._reader: Any = decompressor.stream_reader(body, read_across_frames=False)
        #: The size of the content, if the frame announces it; otherwise -1.
        self.announced = content
        self._left = content
        self.eof = False

    def read(self, most: int) -> bytes:
        """Up to ``most`` bytes; fewer only at the end."""
        piece = self._step(most)
        if self._left >= 0:
            self._left -= len(piece)
            # One more step, for the checksum.
            self.eof = len(piece) < most or (self._left <= 0 and not self._step(1))
        else:
            self.eof = len(piece) < most
        return piece

    def _step(self, most: int) -> bytes:
        try:
            return bytes(self._reader.read(most))
        except zstandard.ZstdError as error:
            raise MalformedRequest(f"the zstd body does not decompress: {error}") from None


def window_of(body: Buffer) -> int:
    """Bytes of memory that decompressing the body takes, beside the result."""
    return _frame_head(body)[1]


def has_few_blocks(body: Buffer) -> bool:
    """Whether a small body takes less than a millisecond by its number of blocks. What is malformed takes none."""
    position = _frame_head(body)[2]
    data = bytes(body)
    last = len(data) - _BLOCK_HEAD
    for _ in range(_QUICK_BLOCKS):
        if position > last:
            return True
        head = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        if head & 1:
            return True
        position += _BLOCK_HEAD + (1 if head >> 1 & 3 == _RLE else head >> 3)
    return False


def compress(parts: Sequence[Buffer], level: int = DEFAULT_LEVEL) -> list[bytes]:
    """One frame, as a list of pieces."""
    size = sum(len(part) for part in parts)
    encoder = zstandard.ZstdCompressor(level=level).compressobj(size=size)
    pieces: Iterable[bytes] = [encoder.compress(part) for part in parts if len(part)]
    return [*(piece for piece in pieces if piece), encoder.flush()]


def _frame_head(body: Buffer) -> tuple[int, int, int, bool]:
    """The announced size of the content (-1: none), the window, the length of the head, and whether a checksum ends it.

    Raises for a window above the limit.
    """
    if not len(body):
        raise MalformedRequest("the zstd body ends early")
    if bytes(body[:4]) != _MAGIC[: len(body)]:
        raise MalformedRequest("the zstd body does not decompress: it does not begin with a frame")
    try:
        found = zstandard.get_frame_parameters(bytes(body[:18]))
        length = zstandard.frame_header_size(bytes(body[:18]))
    except zstandard.ZstdError:
        raise MalformedRequest("the zstd body ends early") from None
    if found.window_size > MAX_WINDOW:
        raise PayloadTooLarge(
            f"the zstd body needs a window of {found.window_size} bytes, and {MAX_WINDOW} are allowed; compress it "
            f"with a level up to {HIGHEST_LEVEL} and no long-distance matching"
        )
    if found.dict_id:
        raise MalformedRequest("the zstd body needs a dictionary; compress it without one")
    content = -1 if found.content_size == _UNKNOWN_SIZE else int(found.content_size)
    return content, int(found.window_size), int(length), bool(found.has_checksum)


def _check_end(body: Buffer, start: int, has_checksum: bool, is_abandoned: Callable[[], bool]) -> None:
    """Raises if the frame ends behind or before the end of the body."""
    size, position = len(body), start
    for number in range(_MOST_BLOCKS + size // _BYTES_PER_BLOCK):
        if position + _BLOCK_HEAD > size:
            raise MalformedRequest("the zstd body ends early")
        if not number % _LOOK_EVERY and is_abandoned():
            raise Cancelled("the caller has disconnected")
        head = body[position] | body[position + 1] << 8 | body[position + 2] << 16
        kind = head >> 1 & 3
        if kind == _RESERVED:
            raise MalformedRequest("the zstd body does not decompress: a block has an unknown type")
        position += _BLOCK_HEAD + (1 if kind == _RLE else head >> 3)
        if head & 1:
            break
    else:
        raise PayloadTooLarge(f"the zstd body of {size} bytes has too many small blocks; flush the encoder less often")
    position += _CHECKSUM if has_checksum else 0
    if position > size:
        raise MalformedRequest("the zstd body ends early")
    if position < size:
        raise MalformedRequest(f"{size - position} bytes follow the zstd body")
