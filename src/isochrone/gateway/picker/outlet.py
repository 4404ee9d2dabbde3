"""The way of replies to Envoy: the stream of one call, its head before the first reply, and its flow control."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from isochrone.protocol.grpc.calls import OK_TRAILERS, RESPONSE_HEADERS, error_block

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.wire.http2.server_stream import ServerStream


class Outlet:
    """The replies of one call."""

    def __init__(self, stream: ServerStream) -> None:
        self._stream = stream

    def send(self, reply: bytes) -> None:
        stream = self._stream
        if not stream.begun:
            stream.send_headers(RESPONSE_HEADERS, False)
        stream.send_data(reply)
        if stream.is_congested:
            # Envoy sends bodies faster than it takes them back.
            stream.hold_window()
            stream.on_writable = stream.release_window

    def send_all(self, several: Iterable[bytes]) -> None:
        for reply in several:
            self.send(reply)

    def end(self) -> None:
        """No reply follows, and the call has ended well."""
        if not self._stream.begun:
            self._stream.send_headers(RESPONSE_HEADERS, False)
        self._stream.end_with_trailers(OK_TRAILERS)

    def fail(self, error: IsochroneError) -> None:
        """The call ends with the status of an error."""
        block = error_block(error.grpc_status, error.message, trailers_only=not self._stream.begun)
        self._stream.end_with_trailers(block)

    def abort(self) -> None:
        self._stream.abort()
