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
from isochrone.wire.listener import Listener

_encode = Encoder().encode
_HEADERS = _encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
_TRAILERS = _encode([(b"grpc-status", b"0")])
_ANSWER = b"\0\0\0\0\x08answered"


class Answering(Route):
    """Answers at once."""

    def handle(self, exchange: Any) -> None:
        exchange.respond_unary(_HEADERS, _ANSWER, len(_ANSWER), _TRAILERS)


class Application:
    """One route for everything."""

    def __init__(self) -> None:
        self._route = Answering()

    def route(self, head: Head) -> Route:
        return self._route


async def serve(port: int) -> None:
    listener = Listener(Application(), WireLimits())
    await listener.start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
