"""Stock clients that request large answers or send large requests, many at once, with a generous timeout.

A call ends in one of four ways: answered right, rejected for lack of memory (the server says so), failed, or no end
within the timeout: a hang.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc_client
import tritonclient.http.aio as http_client
from tritonclient.utils import InferenceServerException

from bench.wire.large_models import CONSUME, PRODUCE

#: Seconds after which a call counts as hung.
PATIENCE = 120.0
_LIMIT = 1 << 30


class Calls:
    """One client of one server over one protocol."""

    def __init__(self, protocol: str, address: str) -> None:
        self._kind: Any = grpc_client if protocol == "grpc" else http_client
        self._options: dict[str, Any] = {}
        if protocol == "grpc":
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            self._client = grpc_client.InferenceServerClient(address, channel_args=options)
        else:
            self._client = http_client.InferenceServerClient(address, conn_limit=100, conn_timeout=PATIENCE)
            # aiohttp would ask for gzip: what is measured are large bodies, not zlib.
            self._options = {"headers": {"Accept-Encoding": "identity"}}
        self._large = np.full(0, 7, np.uint8)

    async def close(self) -> None:
        await self._client.close()

    async def produce(self, size: int) -> bool:
        """Request an answer of ``size`` bytes."""
        asked = self._kind.InferInput("size", [1], "INT64")
        asked.set_data_from_numpy(np.array([size], np.int64))
        answer = (await self._client.infer(PRODUCE, [asked], **self._options)).as_numpy("bytes")
        return bool(answer.size == size and answer[0] == answer[-1] == size % 251)

    async def consume(self, size: int) -> bool:
        """Send a request of ``size`` bytes."""
        if self._large.size < size:
            self._large = np.full(size, 7, np.uint8)
        brought = self._kind.InferInput("bytes", [size], "UINT8")
        brought.set_data_from_numpy(self._large[:size])
        answer = (await self._client.infer(CONSUME, [brought], **self._options)).as_numpy("size")
        return bool(answer[0] == size)


async def outcome(call: Awaitable[bool]) -> str:
    """The outcome of one call."""
    try:
        async with asyncio.timeout(PATIENCE):
            return "answered" if await call else "wrong"
    except TimeoutError:
        return "hung"
    except InferenceServerException as error:
        return "refused" if "max_buffered_bytes" in str(error) else f"failed: {str(error)[:200]}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {str(error)[:200]}"


async def run_together(call: Callable[[int], Awaitable[bool]], size: int, count: int, seconds: float) -> Counter[str]:
    """Keep ``count`` calls in progress for ``seconds``, then wait for the last ones."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    ends: Counter[str] = Counter()

    async def repeat() -> None:
        while True:
            end = await outcome(call(size))
            ends[end] += 1
            if loop.time() >= until or end == "hung":
                return
            if end != "answered":
                await asyncio.sleep(0.05)

    await asyncio.gather(*(repeat() for _ in range(count)))
    return ends
