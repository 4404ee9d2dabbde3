"""Compression of HTTP responses, where it pays; large responses are compressed on a thread.

``requests``, ``aiohttp`` and browsers accept gzip by default, so most responses that may be compressed are better sent
uncompressed: small ones, and tensors of numbers, which hardly compress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from isochrone.protocol.compression import codec, zstd
from isochrone.wire.exchange import Buffer, Exchange, Headers

_threads = ThreadPoolExecutor(2, thread_name_prefix="isochrone-deflate")


def respond_compressed(
    exchange: Exchange, encoding: bytes, headers: Headers, parts: Sequence[Buffer], extras: Callable[[], Headers]
) -> None:
    """Respond with status 200. ``extras`` returns further headers at the time of sending."""
    size = sum(len(part) for part in parts)
    if not codec.is_worth_it(encoding, parts, size):
        exchange.respond(200, headers + extras(), parts)
        return
    encoded = (*headers, (b"content-encoding", encoding))

    def send(packed: list[bytes]) -> None:
        if encoding == zstd.NAME and not codec.is_smaller(packed, size):
            exchange.respond(200, headers + extras(), parts)
        else:
            exchange.respond(200, encoded + extras(), packed)

    if not codec.needs_thread(size):
        send(codec.compress(encoding, parts))
        return

    def answer(done: asyncio.Future[list[bytes]]) -> None:
        if done.exception() is None:
            send(done.result())
        else:
            # For example out of memory: the uncompressed answer needs no more.
            exchange.respond(200, headers + extras(), parts)

    work = asyncio.get_running_loop().run_in_executor(_threads, codec.compress, encoding, parts)
    work.add_done_callback(answer)
