"""Requests at a constant mean rate over all models: open loop, Poisson, HTTP/1.1, each with a deadline."""

import asyncio
import random
import time
from collections.abc import Sequence

from isochrone.errors import IsochroneError
from isochrone.wire.connect import connect_http1
from isochrone.wire.http1.client import Http1ClientConnection

_BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[0]}]}'
_HEADERS = ((b"host", b"bench"), (b"content-type", b"application/json"), (b"x-request-timeout-ms", b"2000"))


class Callers:
    """``rate`` 0: none."""

    def __init__(self, port: int, models: Sequence[str], rate: float) -> None:
        self._port = port
        self._models = models
        self._rate = rate
        self._random = random.Random(2)
        self._idle: list[Http1ClientConnection] = []
        self._latencies: list[float] = []
        self._failed: dict[str, int] = {}

    async def run(self, seconds: float) -> None:
        begun = time.monotonic()
        if not self._rate:
            await asyncio.sleep(seconds)
            return
        due, tasks = begun, set()
        while due < begun + seconds:
            due += self._random.expovariate(self._rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.ensure_future(self._call(self._random.choice(self._models), due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        for connection in self._idle:
            connection.close()

    async def _call(self, model: str, due: float) -> None:
        try:
            connection = self._idle.pop() if self._idle else await connect_http1("127.0.0.1", self._port)
            path = f"/v2/models/{model}/infer".encode()
            answer = await connection.request(b"POST", path, _HEADERS, (_BODY,), timeout=5)
        except IsochroneError as error:
            self._fail(type(error).__name__)
            return
        self._idle.append(connection)
        if answer.status != 200:
            self._fail(f"{answer.status} {bytes(answer.body)[:120]!r}")
        self._latencies.append(time.monotonic() - due)

    def _fail(self, reason: str) -> None:
        self._failed[reason] = self._failed.get(reason, 0) + 1

    def figures(self) -> dict[str, object]:
        """Latency counts from the instant at which a request was due."""
        ordered = sorted(self._latencies)
        found: dict[str, object] = {"requests": len(ordered), "failed": self._failed}
        if ordered:
            found |= {
                f"p{share * 100:g}": ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99)
            }
            found["worst"] = ordered[-1]
        return found
