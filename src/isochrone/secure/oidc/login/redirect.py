"""The address on this machine to which a provider's login page sends the browser back (RFC 8252, section 7.3).

Any program on this machine can connect. A request that is not the answer gets 404, and the login goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl, urlsplit

PATH: Final = "/callback"
_MOST_HEAD: Final = 16_384
_MOST_FIELDS: Final = 32
_MOST_CONNECTIONS: Final = 16
#: Seconds in which a browser sends its request.
_PATIENCE: Final = 10.0
_DONE: Final = "The answer has arrived. Return to the terminal; this page can be closed."
_NOT_HERE: Final = "Not found."


class Redirect:
    """``uri`` for the authorization request; ``answer`` for its answer."""

    def __init__(self) -> None:
        self.uri = ""
        #: Whether these parameters are the answer. Set before the browser is sent away.
        self.is_answer: Callable[[Mapping[str, str]], bool] = lambda _: False
        self._answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._connections: set[asyncio.Task[None]] = set()

    async def answer(self) -> Mapping[str, str]:
        return await self._answer

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. No coroutine: asyncio would report the end of a login as an error of its task."""
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._exchange(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = _parameters(head.partition(b"\r\n")[0])
        is_answer = found is not None and self.is_answer(found)
        writer.write(_page("200 OK", _DONE) if is_answer else _page("404 Not Found", _NOT_HERE))
        await writer.drain()
        if is_answer and not self._answer.done():
            assert found is not None
            self._answer.set_result(found)

    async def close(self) -> None:
        self._answer.cancel()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


@asynccontextmanager
async def listening() -> AsyncIterator[Redirect]:
    redirect = Redirect()
    server = await asyncio.start_server(redirect.accept, "127.0.0.1", 0, limit=_MOST_HEAD)
    redirect.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"
    try:
        yield redirect
    finally:
        server.close()
        await redirect.close()
        await server.wait_closed()


def _parameters(line: bytes) -> Mapping[str, str] | None:
    """Of a request's first line; None: not a request for this path. A parameter that comes twice is none (RFC 6749)."""
    try:
        method, target, version = line.decode("ascii").split(" ")
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return None
    names = [name for name, _ in pairs]
    if method != "GET" or parts.path != PATH or not version.startswith("HTTP/1.") or len(set(names)) != len(names):
        return None
    return dict(pairs)


def _page(status: str, text: str) -> bytes:
    """No byte of the request is in it. The address, which has the code, leaves the browser's history."""
    script = "<script>history.replaceState(null, '', '/')</script>"
    body = f"<!doctype html><meta charset=utf-8><title>isochrone</title><p>{text}</p>{script}"
    headers = (
        f"HTTP/1.1 {status}",
        "content-type: text/html; charset=utf-8",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "referrer-policy: no-referrer",
        "content-security-policy: default-src 'none'; script-src 'unsafe-inline'",
        "connection: close",
    )
    return ("\r\n".join(headers) + "\r\n\r\n" + body).encode()
