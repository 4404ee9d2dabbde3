"""The chunked transfer coding (RFC 9112 §7.1), incremental and strict, for request and response bodies.

Not httptools, because it does not report where in a buffer a message ends, which pipelining needs.
"""

from __future__ import annotations

import re

_MAX_SIZE_LINE = 256
_MAX_TRAILER_BYTES = 16 * 1024

_SIZE, _DATA, _DATA_END, _TRAILER, _DONE = range(5)
#: Beside a tab, no control character may stand in an extension: some readers end a line at one.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class ChunkedError(Exception):
    """The bytes are not a valid chunked body."""


class ChunkedDecoder:
    """Collects a chunked body from the bytes that it is fed."""

    __slots__ = ("_body", "_left", "_partial", "_state", "_trailer_bytes", "total")

    def __init__(self) -> None:
        # One buffer, not a list of pieces: with two-byte chunks a list would take twenty times the body's size.
        self._body = bytearray()
        #: Body bytes so far; the caller compares them with its limit.
        self.total = 0
        self._state = _SIZE
        self._left = 0
        self._partial = b""
        self._trailer_bytes = 0

    @property
    def done(self) -> bool:
        return self._state == _DONE

    def feed(self, data: bytes, position: int = 0) -> int:
        """Consume bytes from ``position``; returns the index after the last byte of this message."""
        end = len(data)
        while position < end and self._state != _DONE:
            if self._state == _DATA:
                take = min(self._left, end - position)
                self._body += memoryview(data)[position : position + take]
                self.total += take
                self._left -= take
                position += take
                if not self._left:
                    self._state = _DATA_END
                continue
            line, position = self._line(data, position)
            if line is None:
                break
            if self._state == _DATA_END:
                if line:
                    raise ChunkedError("chunk data is longer than its size line says")
                self._state = _SIZE
            elif self._state == _SIZE:
                self._left = _parse_size(line)
                self._state = _DATA if self._left else _TRAILER
            elif not line:
                self._state = _DONE
            else:
                self._trailer_bytes += len(line)
                if self._trailer_bytes > _MAX_TRAILER_BYTES:
                    raise ChunkedError(f"trailers are larger than {_MAX_TRAILER_BYTES} bytes")
        return position

    def take(self) -> bytearray:
        """The body since the last call."""
        body, self._body = self._body, bytearray()
        return body

    def _line(self, data: bytes, position: int) -> tuple[bytes | None, int]:
        """One line without its CRLF, or None if it is not complete."""
        newline = data.find(b"\n", position)
        limit = _MAX_TRAILER_BYTES if self._state == _TRAILER else _MAX_SIZE_LINE
        if newline < 0:
            self._partial += data[position:]
            if len(self._partial) > limit:
                raise ChunkedError("a chunk's size line is too long")
            return None, len(data)
        line = self._partial + data[position : newline + 1]
        self._partial = b""
        if len(line) > limit + 2:
            raise ChunkedError("a chunk's size line is too long")
        # Some parsers treat a bare CR as a line's end.
        if not line.endswith(b"\r\n") or line.count(b"\r") != 1:
            raise ChunkedError("a line of a chunked body must end with CRLF")
        return line[:-2], newline + 1


def _parse_size(line: bytes) -> int:
    digits = line.partition(b";")[0].rstrip(b" \t")
    # int() alone would accept "+1", "0x1" and "1_0": such differences enable request smuggling.
    if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
        raise ChunkedError(f"chunk size {bytes(line[:32])!r} is not a hexadecimal number")
    if len(line) > len(digits) and _CONTROL.search(line):
        raise ChunkedError("a chunk's extension contains a control character")
    return int(digits, 16)
