"""Answers of the gateway's own within a stream: to messages over their quota, between the messages of the endpoint."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from isochrone.errors import IsochroneError
from isochrone.protocol.grpc.calls import frame_message
from isochrone.protocol.grpc.routing_fields import request_id
from isochrone.wire.exchange import Buffer

#: Answers that may wait for the end of a message.
_MOST = 64


class RejectedMessages:
    """The rejections of one stream."""

    def __init__(self) -> None:
        self._endpoint = MessageBoundaries()
        self._waiting: list[bytes] = []

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= _MOST

    def add(self, message: Buffer, error: IsochroneError) -> None:
        response = service_pb2.ModelStreamInferResponse(error_message=error.message)
        response.infer_response.id = request_id(message).decode("utf-8", "replace")
        self._waiting.append(frame_message(response.SerializeToString()))

    def passed_on(self, data: Buffer) -> None:
        """Bytes of the endpoint have gone to the caller."""
        self._endpoint.feed(data)

    def take(self) -> bytes:
        """What may be sent now: nothing while a message of the endpoint is only half sent."""
        if not self._waiting or not self._endpoint.is_between:
            return b""
        waiting, self._waiting = self._waiting, []
        return b"".join(waiting)


class MessageBoundaries:
    """Where the gRPC messages of a byte stream end."""

    def __init__(self) -> None:
        self._prefix = b""
        #: Bytes of the current message that are still to come.
        self._left = 0

    @property
    def is_between(self) -> bool:
        return not self._left and not self._prefix

    def feed(self, data: Buffer) -> None:
        position, end = 0, len(data)
        while position < end:
            if self._left:
                step = min(self._left, end - position)
                self._left -= step
                position += step
                continue
            piece = bytes(data[position : position + 5 - len(self._prefix)])
            position += len(piece)
            self._prefix += piece
            if len(self._prefix) == 5:
                self._left = int.from_bytes(self._prefix[1:], "big")
                self._prefix = b""
