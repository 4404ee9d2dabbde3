"""The wire layer alone, for ``receiving``: answers every gRPC call at once, and reads nothing of its body.

python -m bench.wire.receiving_server PORT
"""

import asyncio
import sys
from typing import Any

import uvloop

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head, Route
from isochrone.wire.http2.hpack import Encoder
from isochrone.wire.listening.listener import Listener

_encode = Encoder().encode
_HEADERS = _encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
_TRAILERS = _encode([(b"grpc-status", b"0")])
_ANSWER = b"\0\0\0\0\x08answered"


class Answering(Route):
    """Answers ``held`` calls at a time."""

    def __init__(self, held: int) -> None:
        self._held = held
        self._waiting: list[Any] = []

    def handle(self, exchange: Any) -> None:
        self._waiting.append(exchange)
        if len(self._waiting) >= self._held:
            for each in self._waiting:
                each.respond_unary(_HEADERS, _ANSWER, len(_ANSWER), _TRAILERS)
            self._waiting = []


class Application:
    """One route for everything."""

    def __init__(self, held: int) -> None:
        self._route = Answering(held)

    def route(self, head: Head) -> Route:
        return self._route


async def serve(port: int, held: int) -> None:
    listener = Listener(Application(held), WireLimits())
    await listener.start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
