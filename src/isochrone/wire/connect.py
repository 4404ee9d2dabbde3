"""Client connections: TCP without Nagle's delay, and TLS with ALPN.

The client-side counterpart of ``listening``. Never retries.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Any, TypeVar

from isochrone.errors import Unavailable
from isochrone.resolving.resolver import LOOKUP_SECONDS, DoesNotResolve, is_literal, resolver
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http1.client import Http1ClientConnection
from isochrone.wire.http1.response_heads import ResponseHeads
from isochrone.wire.http2.client import Http2ClientConnection
from isochrone.wire.tls.client_tls import ServerSessions
from isochrone.wire.turn import Turn

_Connection = TypeVar("_Connection", Http1ClientConnection, Http2ClientConnection)

#: Seconds to wait for a connection to be accepted.
CONNECT_TIMEOUT = 5.0


async def connect_http1(
    host: str,
    port: int,
    *,
    limits: WireLimits | None = None,
    heads: ResponseHeads | None = None,
    turn: Turn | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    timeout: float = CONNECT_TIMEOUT,  # noqa: ASYNC109 (names the limit in the error)
) -> Http1ClientConnection:
    """Raises ``Unavailable``. Connections to the same servers may share ``heads``, the memoised response heads."""
    return await _connect(Http1ClientConnection(limits, heads, turn), host, port, tls, server_name, "http/1.1", timeout)


async def connect_http2(
    host: str,
    port: int,
    *,
    limits: WireLimits | None = None,
    turn: Turn | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    timeout: float = CONNECT_TIMEOUT,  # noqa: ASYNC109 (names the limit in the error)
) -> Http2ClientConnection:
    """Without TLS by prior knowledge (RFC 9113 §3.3); with TLS the server must select h2. Raises ``Unavailable``."""
    return await _connect(Http2ClientConnection(limits, turn=turn), host, port, tls, server_name, "h2", timeout)


async def connect_http1_unix(
    path: str,
    *,
    limits: WireLimits | None = None,
    timeout: float = CONNECT_TIMEOUT,  # noqa: ASYNC109 (names the limit in the error)
) -> Http1ClientConnection:
    """Over a Unix-domain socket. Raises ``Unavailable``; nothing was sent then."""
    connection = Http1ClientConnection(limits)
    try:
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, path)
    except TimeoutError:
        raise Unavailable(f"{path} did not accept a connection within {timeout:g} s") from None
    except OSError as error:
        raise Unavailable(f"cannot connect to {path}: {error.strerror or error}") from None
    return connection


async def _connect(
    connection: _Connection,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    server_name: str | None,
    protocol: str,
    seconds: float,
) -> _Connection:
    ends = asyncio.get_running_loop().time() + seconds
    addresses: Sequence[str] = (host,)
    try:
        if not is_literal(host):
            addresses = await resolver.addresses(host, min(LOOKUP_SECONDS, seconds))
        async with asyncio.timeout_at(ends):
            transport = await _first_connection(connection, addresses, port, tls, server_name or host)
    except TimeoutError:
        if isinstance(tls, ServerSessions) and tls.failure is not None:
            raise Unavailable(f"cannot connect to {host}:{port}: {tls.failure}") from None
        raise Unavailable(f"{host}:{port} did not accept a connection within {seconds:g} s{_outdated(host)}") from None
    except DoesNotResolve as error:
        raise Unavailable(f"cannot connect to {host}:{port}: {error}") from None
    except (OSError, ssl.SSLError) as error:
        reason = tls.failure or error if isinstance(tls, ServerSessions) else error
        raise Unavailable(f"cannot connect to {host}:{port}: {reason}{_outdated(host)}") from None
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        chosen = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        # A server without ALPN speaks HTTP/1.1 (RFC 9113 §3.2 asks for the name; RFC 9112 does not).
        if chosen != protocol and not (chosen is None and protocol == "http/1.1"):
            connection.close()
            raise Unavailable(f"{host}:{port}: expected the server to choose {protocol} by ALPN, given {chosen}")
    return connection


async def _first_connection(
    connection: _Connection, addresses: Sequence[str], port: int, tls: ssl.SSLContext | None, server_name: str
) -> Any:
    """The transport to the first address that accepts."""
    loop = asyncio.get_running_loop()
    last = len(addresses) - 1
    for number, address in enumerate(addresses):
        try:
            transport, _ = await loop.create_connection(
                lambda: connection, address, port, ssl=tls, server_hostname=server_name if tls else None
            )
            return transport
        except ssl.SSLError:
            raise
        except OSError:
            if number == last:
                raise
    raise OSError("no address")


def _outdated(host: str) -> str:
    """For an error: the addresses may no longer be the name's."""
    reason = resolver.fault(host)
    return f"; the name does not resolve ({reason}), so its last addresses were tried" if reason else ""
