"""One blocking HTTP/1.1 connection: sends a request, reads its answer.

A request leaves in one call to the kernel, a large body straight from the arrays' memory; a large answer is received
into a buffer of its size. Heads are parsed, and memoised, by the code that the gateway uses. Never retries.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isochrone.client.address import Address
from isochrone.client.failures import late, lost, unreachable
from isochrone.client.http.requests import LIMITS, has_ended
from isochrone.client.scheme_hints import hint_of_plain, hint_of_tls, is_tls_alert
from isochrone.errors import DeadlineExceeded
from isochrone.wire.http1.chunked import ChunkedDecoder, ChunkedError
from isochrone.wire.http1.response_heads import ResponseHead, ResponseHeads
from isochrone.wire.receiver import too_large

CONNECT_SECONDS = 5.0
_READ = 64 * 1024
#: Smaller requests are joined: one copy is cheaper than a list of buffers for the kernel.
_JOIN_LIMIT = 16 * 1024
#: writev takes 1,024 buffers.
_MOST_BUFFERS = 1000


class Answer(NamedTuple):
    """A complete answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes | memoryview


class HttpConnection:
    """One connection. After an exception it must not be used again."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, heads: ResponseHeads, seconds: float | None
    ) -> None:
        self._place = str(address)
        self._heads = heads
        self._limited = False
        limit = CONNECT_SECONDS if seconds is None else min(seconds, CONNECT_SECONDS)
        try:
            plain = socket.create_connection((address.host, address.port), limit)
        except TimeoutError:
            if limit == seconds:
                raise DeadlineExceeded(f"no connection to {address} within the deadline") from None
            raise unreachable(self._place, f"no connection within {limit:g} s") from None
        except OSError as error:
            raise unreachable(self._place, error.strerror or str(error)) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = tls.wrap_socket(plain, server_hostname=address.host) if tls is not None else plain
            self._socket.settimeout(None)
        except OSError as error:
            plain.close()
            hint = hint_of_plain(self._place, str(error))
            raise unreachable(self._place, f"no TLS connection: {error.strerror or error}{hint}") from None
        self._is_plain = tls is None
        #: Nothing has come from the server.
        self._is_silent = True
        self.is_reusable = True

    def close(self) -> None:
        self._socket.close()

    def is_open(self) -> bool:
        return not has_ended(self._socket.fileno())

    def exchange(self, head: bytes, body: Sequence[bytes | memoryview], ends: float | None) -> Answer:
        """Sends a request and reads its answer; ``ends`` is the deadline on ``time.monotonic``."""
        try:
            self._send(head, body, ends)
            return self._receive(ends)
        except TimeoutError:
            raise late(self._place) from None
        except ChunkedError as error:
            raise lost(self._place, f"malformed chunked answer: {error}") from None

    def _limit(self, ends: float | None) -> None:
        """Limits the next call to the time that is left."""
        if ends is not None:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            self._limited = True
        elif self._limited:
            self._socket.settimeout(None)
            self._limited = False

    def _send(self, head: bytes, body: Sequence[bytes | memoryview], ends: float | None) -> None:
        self._limit(ends)
        size = sum(map(len, body))
        try:
            if size <= _JOIN_LIMIT or not self._is_plain:
                self._socket.sendall(b"".join((head, *body)))
            else:
                self._send_parts([memoryview(part) for part in (head, *body)], ends)
        except TimeoutError:
            raise
        except OSError as error:
            # The server cannot have begun a request that it has not got.
            reason = f"the connection broke while the request was sent: {error.strerror or error}"
            raise lost(self._place, reason, unprocessed=True) from None

    def _send_parts(self, parts: list[memoryview], ends: float | None) -> None:
        parts = [part for part in parts if len(part)]
        while parts:
            sent = self._socket.sendmsg(parts[:_MOST_BUFFERS])
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]
                self._limit(ends)

    def _receive(self, ends: float | None) -> Answer:
        data = b""
        while True:
            while (stop := data.find(b"\r\n\r\n") + 4) < 4:
                data += self._read(ends, before=not data)
                if self._is_silent:
                    self._heard(data)
            raw = data[:stop]
            head = self._heads.get(raw) or self._heads.parse(raw)
            data = data[stop:]
            if head.status >= 200:
                break
        body = self._body(head, data, ends)
        self.is_reusable = self.is_reusable and head.keep_alive and (head.chunked or head.content_length >= 0)
        return Answer(head.status, _texts(head), body)

    def _heard(self, data: bytes) -> None:
        """The first bytes of the server."""
        if self._is_plain and is_tls_alert(data):
            raise lost(self._place, f"the server answers with an alert of TLS{hint_of_tls(self._place)}")
        self._is_silent = False

    def _body(self, head: ResponseHead, data: bytes, ends: float | None) -> bytes | memoryview:
        length = head.content_length
        if head.chunked:
            decoder = ChunkedDecoder()
            decoder.feed(data)
            while not decoder.done:
                decoder.feed(self._read(ends))
            return bytes(decoder.take())
        if length < 0:
            pieces = [data]
            while piece := self._read(ends, may_end=True):
                pieces.append(piece)
            return b"".join(pieces)
        if len(data) >= length:
            self.is_reusable = len(data) == length
            return data[:length]
        if length > LIMITS.max_body_bytes:
            raise too_large(LIMITS.max_body_bytes)
        # Not zeroed, as a bytearray would be.
        buffer = np.empty(length, np.uint8).data
        filled = len(data)
        buffer[:filled] = data
        while filled < length:
            self._limit(ends)
            try:
                count = self._socket.recv_into(buffer[filled:])
            except TimeoutError:
                raise
            except OSError as error:
                raise lost(self._place, f"the connection broke within an answer: {error}") from None
            if not count:
                raise lost(self._place, "the server closed the connection within an answer")
            filled += count
        return buffer

    def _read(self, ends: float | None, *, before: bool = False, may_end: bool = False) -> bytes:
        self._limit(ends)
        where = "before an answer" if before else "within an answer"
        hint = hint_of_tls(self._place) if self._is_silent else ""
        try:
            data = self._socket.recv(_READ)
        except TimeoutError:
            raise
        except OSError as error:
            raise lost(self._place, f"the connection broke {where}: {error.strerror or error}{hint}") from None
        if not data and not may_end:
            raise lost(self._place, f"the server closed the connection {where}{hint}")
        return data


def _texts(head: ResponseHead) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
