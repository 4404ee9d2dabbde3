"""zstd of requests and of their answers for the asynchronous transport; large ones are worked on beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from isochrone.client.failures import unreadable
from isochrone.client.http.requests import LIMITS
from isochrone.errors import IsochroneError
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
    if needs_thread(size):
        made = await asyncio.get_running_loop().run_in_executor(_threads, zstd.compress, body, level)
    else:
        made = zstd.compress(body, level)
    return (made, _ENCODED) if is_smaller(made, size) and may_expand(made, size) else (body, {})


async def unpacked(headers: Mapping[str, str], body: bytes | memoryview, place: str) -> bytes | memoryview:
    """The body of an answer; raises ``Internal`` if it does not decompress."""
    if headers.get("content-encoding", "identity") == "identity":
        return body
    try:
        inflation = Inflation(headers["content-encoding"].encode("latin-1"), body, LIMITS.max_body_bytes, expected=True)
        whole = inflation.begin()
        if whole is None:
            whole = await asyncio.get_running_loop().run_in_executor(_threads, inflation.finish)
    except IsochroneError as error:
        raise unreadable(place, error) from None
    # Outputs cannot be written, wherever they come from.
    return memoryview(whole).toreadonly()
