"""A client of ``generate_stream`` that only notes when tokens come: some 3 µs per event, over asyncio's protocols."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from collections.abc import Callable
from typing import cast

from bench.gpu.generation.workload import Request
from isochrone.protocol.headers.rejections import UNPROCESSED_HEADER

_TOKENS = re.compile(rb'"num_output_tokens":(\d+)')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ERROR = b'data: {"error"'
_LAST_CHUNK = b"\r\n0\r\n\r\n"
#: As a status: the connection ended first, the bench cut it, or the worker dropped it after it had been admitted.
LOST, CUT, DROPPED = 0, 1, 2
_MARK = b"\r\n" + UNPROCESSED_HEADER + b":"
_TIMEOUT = 504
#: Of the error of a request that was admitted and whose deadline passed.
_PASSED = re.compile(r"deadline\b.* passed\b")


class Stream:
    """One request and the tokens of its answer."""

    __slots__ = ("due", "ended", "error", "flow", "sent", "status", "times", "tokens", "wanted")

    def __init__(self, flow: int, wanted: int, due: int) -> None:
        self.flow = flow
        self.wanted = wanted
        self.due = due
        #: 0: not yet.
        self.sent = self.ended = 0
        #: Of HTTP, or one of the above; -1: the answer has not ended.
        self.status = -1
        self.error = ""
        #: When each event came, and the tokens in it.
        self.times = array("q")
        self.tokens = array("q")


def plain_status(status: int, is_marked: bool) -> int:
    """Of an answer without events: the worker marks those of which nothing has run; any other 504 was admitted."""
    return status if is_marked or status != _TIMEOUT else DROPPED


def event_status(status: int, has_tokens: bool, error: str) -> int:
    """Of an answer whose last event is an error.

    As the first event it has a status of its own, marked or not: the worker's engine refused the request when it knew
    the tokens of the prompt, or dropped it later. Which of them, only the text says, as it does behind tokens.
    """
    if _PASSED.search(error):
        return DROPPED
    return 500 if has_tokens or status == 200 else status


class StreamConnection(asyncio.Protocol):
    """One kept connection; one stream at a time."""

    def __init__(self, host: str, path: str) -> None:
        self._heading = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n".encode()
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None
        self._ended: Callable[[Stream], None]
        self._rest = b""
        self._status = 0
        self._is_marked = False
        self._missing = -1

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def stream(self) -> Stream | None:
        """The one under way."""
        return self._stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: Request, stream: Stream, ended: Callable[[Stream], None]) -> None:
        assert self._transport is not None
        self._stream, self._ended = stream, ended
        self._rest, self._status, self._missing = b"", 0, -1
        stream.sent = stream.sent or time.monotonic_ns()
        length = b"content-length: %d\r\n\r\n" % len(request.body)
        self._transport.write(self._heading + length + request.body)

    def cut(self) -> None:
        """Closes the connection at once, as a client that has gone."""
        if self._stream is not None:
            self._end(CUT)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        stream = self._stream
        if stream is None:
            return
        data = self._rest + data if self._rest else data
        if not self._status:
            head, found, rest = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = data
                return
            self._status = int(head[9:12])
            self._is_marked = _MARK in head.lower()
            length = _LENGTH.search(head)
            self._missing = int(length[1]) if length else -1
            # The end of the last chunk is looked for with the line end before it.
            data = b"\r\n" + rest if length is None else rest
        if self._missing >= 0:
            self._rest = data
            if len(data) >= self._missing:
                stream.error = data.decode(errors="replace")
                self._end(plain_status(self._status, self._is_marked))
            return
        end = data.rfind(b"\n\n")
        events = data[: end + 2] if end >= 0 else b""
        for found_tokens in _TOKENS.findall(events):
            stream.times.append(now)
            stream.tokens.append(int(found_tokens))
        if (at := events.find(_ERROR)) >= 0:
            stream.error = events[at:].decode(errors="replace")
            self._status = event_status(self._status, bool(stream.times), stream.error)
        if data.endswith(_LAST_CHUNK):
            self._end(self._status)
            return
        self._rest = data[end + 2 :] if end >= 0 else data

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None:
            self._stream.error = self._stream.error or f"disconnected: {error}"
            self._end(LOST)

    def _end(self, status: int) -> None:
        stream, self._stream = self._stream, None
        assert stream is not None
        stream.status, stream.ended = status, time.monotonic_ns()
        self._ended(stream)
