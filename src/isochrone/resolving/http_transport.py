"""The transport of httpx clients that resolve names here, instead of on the event loop's default executor."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from isochrone.resolving.resolver import LOOKUP_SECONDS, DoesNotResolve, Resolver, is_literal, resolver

#: httpx's own.
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)


def resolving_transport(
    verify: ssl.SSLContext | bool = False, limits: httpx.Limits | None = None, names: Resolver = resolver
) -> httpx.AsyncHTTPTransport:
    """For ``httpx.AsyncClient(transport=…)``: without proxies, certificates and names of the environment."""
    transport = httpx.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits or _LIMITS)
    # httpx has no parameter for it.
    pool: Any = transport._pool
    pool._network_backend = _ResolvingBackend(pool._network_backend, names)
    return transport


class _ResolvingBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, inner: httpcore.AsyncNetworkBackend, names: Resolver) -> None:
        self._inner = inner
        self._names = names

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        if is_literal(host):
            return await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        loop = asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + timeout
        failure: Exception = httpcore.ConnectError(f"the name {host} has no address")
        try:
            addresses = await self._names.addresses(host, min(LOOKUP_SECONDS, timeout or LOOKUP_SECONDS))
            async with asyncio.timeout_at(ends):
                for address in addresses:
                    try:
                        return await self._inner.connect_tcp(address, port, None, local_address, socket_options)
                    except httpcore.ConnectError as error:
                        failure = error
        except DoesNotResolve as error:
            raise httpcore.ConnectError(str(error)) from error
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no connection to {host}:{port} within {timeout:g} s") from None
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's)
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return await self._inner.connect_unix_socket(path, timeout, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
