"""Asks a provider over HTTP: bounded in size and time, without redirects, proxies and cookies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx

from isochrone.secure.oidc.settings import Provider
from isochrone.secure.oidc.strict_json import NotAnObject, read_object

#: Of one answer, from the connection's beginning to its last byte.
TIMEOUT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 512 * 1024
#: A compressed answer could be a thousand times as large as its bytes.
_HEADERS: Final = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "isochrone"}


class FetchFailed(Exception):
    """No usable answer; the message names the URL and says why."""


class Answer(NamedTuple):
    status: int
    document: dict[str, Any]


class Fetcher:
    """A client for one provider."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, url: str) -> dict[str, Any]:
        """The JSON object of an answer with status 200."""
        answer = await self._ask("GET", url)
        if answer.status != 200:
            raise FetchFailed(f"{url} answered {answer.status}")
        return answer.document

    async def post(self, url: str, form: Mapping[str, str], basic: tuple[str, str] | None = None) -> Answer:
        """The JSON object of any answer. ``basic``: user and password."""
        return await self._ask("POST", url, form, basic)

    async def _ask(
        self, method: str, url: str, form: Mapping[str, str] | None = None, basic: tuple[str, str] | None = None
    ) -> Answer:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                # None would take the client's.
                authentication = httpx.BasicAuth(*basic) if basic is not None else httpx.Auth()
                async with self._client.stream(method, url, data=form, auth=authentication) as response:
                    content = await _content(response, url)
        except TimeoutError:
            raise FetchFailed(f"{url} did not answer within {TIMEOUT_SECONDS:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise FetchFailed(f"{url}: {str(error) or type(error).__name__}") from None
        try:
            # RFC 7009 has no body in its answers.
            return Answer(response.status_code, read_object(content) if content else {})
        except NotAnObject as error:
            raise FetchFailed(f"{url} answered {response.status_code}; its body {error}") from None


async def _content(response: httpx.Response, url: str) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FetchFailed(f"{url} answered with a content-encoding, which was not asked for")
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _MOST_BYTES:
            raise FetchFailed(f"{url} answered with more than {_MOST_BYTES} bytes")
    return bytes(content)


@asynccontextmanager
async def fetcher(provider: Provider) -> AsyncIterator[Fetcher]:
    # Reading the system's certificate authorities takes tens of milliseconds.
    context = await asyncio.to_thread(_tls, provider)
    limits = httpx.Limits(max_connections=2, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        verify=context,
        trust_env=False,
        follow_redirects=False,
        headers=_HEADERS,
        timeout=TIMEOUT_SECONDS,
        limits=limits,
    ) as client:
        yield Fetcher(client)


def _tls(provider: Provider) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=provider.ca or None)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FetchFailed(f"ca: expected a PEM file of certificates, given {provider.ca}: {reason}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
