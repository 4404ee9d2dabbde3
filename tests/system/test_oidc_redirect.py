"""The address of the browser's return: strangers on this machine neither answer a login nor end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from isochrone.secure.oidc.login.redirect import Redirect, listening


async def asked(redirect: Redirect, request: bytes) -> bytes:
    """The answer to raw bytes; b"": the connection was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(redirect.uri).port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def run(scenario: Callable[[Redirect], Any]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), listening() as redirect:
            redirect.is_answer = lambda parameters: parameters.get("state") == "right"
            await scenario(redirect)

    asyncio.run(whole())


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


def test_the_answer() -> None:
    async def scenario(redirect: Redirect) -> None:
        page = await asked(redirect, get("/callback?code=a%20b&state=right"))
        assert page.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"a b" not in page
        assert b"content-security-policy: default-src 'none'" in page
        assert await redirect.answer() == {"code": "a b", "state": "right"}

    run(scenario)


@pytest.mark.parametrize(
    "request_",
    [
        get("/callback?code=evil&state=wrong"),
        get("/callback"),
        get("/"),
        get("/favicon.ico"),
        get("/callback?state=right&code=a&code=b"),
        get("/callback?state=wrong&state=right&code=a"),
        get("/callback/../callback?state=right"),
        get("/callback?" + "&".join(f"a{number}=1" for number in range(40)) + "&state=right"),
        get("/callback?state=right").replace(b"GET", b"POST"),
        get("/callback?state=right").replace(b"HTTP/1.1", b"HTTP/2"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /callback?state=right\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_not_the_answer(request_: bytes) -> None:
    async def scenario(redirect: Redirect) -> None:
        assert (await asked(redirect, request_)).startswith(b"HTTP/1.1 404 Not Found\r\n")
        await asked(redirect, get("/callback?code=c&state=right"))
        assert (await redirect.answer())["code"] == "c"

    run(scenario)


def test_a_head_without_end_is_closed() -> None:
    async def scenario(redirect: Redirect) -> None:
        assert await asked(redirect, b"GET /callback?state=right HTTP/1.1\r\nx: " + b"a" * 100_000) == b""
        await asked(redirect, get("/callback?code=c&state=right"))
        assert await redirect.answer()

    run(scenario)


def test_connections_that_say_nothing() -> None:
    async def scenario(redirect: Redirect) -> None:
        port = urlsplit(redirect.uri).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _, writer in silent:
            writer.close()
        page = b""
        while not page:
            page = await asked(redirect, get("/callback?code=c&state=right"))
        assert await redirect.answer()

    run(scenario)


def test_an_end_without_an_answer() -> None:
    async def scenario(redirect: Redirect) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(redirect.uri).port)
        await redirect.close()
        assert await reader.read() == b""
        writer.close()

    run(scenario)
