"""zstd of requests and of their answers for the asynchronous transport; large ones are worked on beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from isochrone.client.failures import unreadable
from isochrone.errors import IsochroneError, MalformedRequest
from isochrone.protocol.compression import zstd
from isochrone.protocol.compression.codec import MIN_ZSTD, Inflation, is_smaller, may_expand, needs_thread

_NAME = zstd.NAME.decode()
#: Answers are asked for in zstd alone.
ASKED = {"accept-encoding": _NAME}
_ENCODED = {"content-encoding": _NAME}

_threads = ThreadPoolExecutor(2, thread_name_prefix="isochrone-zstd")


async def packed(
    body: Sequence[bytes | memoryview], level: int
) -> tuple[Sequence[bytes | memoryview], Mapping[str, str]]:
    """The body as it is sent, and its headers: as it is, where compression does not make it smaller."""
    size = sum(map(len, body))
    if size < MIN_ZSTD:
        return body, {}
    if needs_thread(size, level):
        made = await asyncio.get_running_loop().run_in_executor(_threads, zstd.compress, body, level)
    else:
        made = zstd.compress(body, level)
    return (made, _ENCODED) if is_smaller(made, size) and may_expand(made, size) else (body, {})


async def unpacked(headers: Mapping[str, str], body: bytes | memoryview, place: str, limit: int) -> bytes | memoryview:
    """The body of an answer, of at most ``limit`` bytes; raises ``Internal`` if it does not decompress."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return body
    try:
        if encoding != _NAME:
            raise MalformedRequest(f"content-encoding {encoding!r}, and {_NAME} was asked for")
        inflation = Inflation(zstd.NAME, body, limit, expected=True)
        whole = inflation.begin()
        if whole is None:
            whole = await _finished(inflation)
    except IsochroneError as error:
        raise unreadable(place, error) from None
    # Outputs cannot be written, wherever they come from.
    return memoryview(whole).toreadonly()


async def _finished(inflation: Inflation) -> bytearray:
    """On a thread, which stops soon after the caller does."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, inflation.finish)
    finally:
        inflation.abandoned = True


def is_refused(status: int, headers: Mapping[str, str]) -> bool:
    """Whether a server has not begun a request because its body is in zstd.

    A server of Isochrone that lacks the package answers 415; one that knows no zstd, 501 with what it accepts.
    """
    return status == 415 or (status == 501 and _NAME not in headers.get("accept-encoding", _NAME))
