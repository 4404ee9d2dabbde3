"""Compression of HTTP responses, where it pays; large responses are compressed on a thread.

``requests``, ``aiohttp`` and browsers accept gzip by default, so most responses that may be compressed are better sent
uncompressed: small ones, and tensors of numbers, which hardly compress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from isochrone.protocol.compression import codec
from isochrone.wire.exchange import Buffer, Exchange, Headers

_threads = ThreadPoolExecutor(2, thread_name_prefix="isochrone-deflate")


def respond_compressed(
    exchange: Exchange, encoding: bytes, headers: Headers, parts: Sequence[Buffer], extras: Callable[[], Headers]
) -> None:
    """Respond with status 200. ``extras`` returns further headers at the time of sending."""
    size = sum(len(part) for part in parts)
    if size < codec.MIN_COMPRESSED or not codec.compresses_well(parts):
        exchange.respond(200, headers + extras(), parts)
        return
    encoded = (*headers, (b"content-encoding", encoding))
    if not codec.needs_thread(size):
        exchange.respond(200, encoded + extras(), codec.compress(encoding, parts))
        return

    def answer(done: asyncio.Future[list[bytes]]) -> None:
        if done.exception() is None:
            exchange.respond(200, encoded + extras(), done.result())
        else:
            # For example out of memory: the uncompressed answer needs no more.
            exchange.respond(200, headers + extras(), parts)

    work = asyncio.get_running_loop().run_in_executor(_threads, codec.compress, encoding, parts)
    work.add_done_callback(answer)
