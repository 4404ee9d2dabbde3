"""Listens for the API: uvicorn in the controller's event loop, without uvicorn's signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from isochrone.errors import Unavailable

#: Seconds for requests in progress when it stops. Streams end by themselves.
_GRACE_SECONDS = 1
#: Connections that may wait to be accepted, uvicorn's own number.
_BACKLOG = 2048
#: Milliseconds after which the kernel ends a connection whose peer is gone or takes nothing: a browser that sleeps must
#: not hold a stream for ever.
_UNREAD_MILLISECONDS = 30_000


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The command handles signals."""
        yield


async def serve_api(
    app: Starlette,
    host: str,
    port: int,
    listening: Callable[[int], None] | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve the application of ``create_app`` until cancelled. ``listening`` is called with the port."""
    bound = _listen(host, port)
    if listening is not None:
        listening(bound.getsockname()[1])
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    # uvicorn would make a context of files, which it does not follow. This one must offer HTTP/1.1 alone.
    config.load()
    config.ssl = tls
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[bound]))
    try:
        await asyncio.shield(serving)
    finally:
        app.state.stopping.set()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        bound.close()


def _listen(host: str, port: int) -> socket.socket:
    """Bind here: uvicorn would end the process if the port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted connections inherit it.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)
            bound.bind(address)
            # Now, not when uvicorn is ready: who learns the port may connect at once.
            bound.listen(_BACKLOG)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --listen"
        ) from None
    return bound
