"""The parts of the generation bench that follow single streams: cancellation, and prefix reuse."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from bench.gpu.generation.parts import attempt
from bench.gpu.generation.repository import read_metrics
from bench.gpu.generation.service import LOAD_SECONDS, Bench
from bench.gpu.generation.streams import Stream, StreamConnection
from bench.gpu.generation.workload import request, texts_of

CANCEL, PREFIX = "cancel", "prefix"
_SECONDS = 30.0


async def connect(url: str, model: str) -> StreamConnection:
    address = urlsplit(url)
    make = partial(StreamConnection, address.netloc, f"/v2/models/{model}/generate_stream")
    _, connection = await asyncio.get_running_loop().create_connection(make, address.hostname, address.port)
    return connection


class Cancellation:
    """Cuts connections under load and reads the metrics page until the blocks are free."""

    def __init__(self, bench: Bench, model: str, client: httpx.AsyncClient) -> None:
        self._bench, self._model, self._client = bench, model, client
        self._source = random.Random(11)

    async def round(self, count: int) -> dict[str, Any]:
        """``count`` streams decode; half of them is cut, then the rest."""
        texts = texts_of(self._bench.tokenizer_file)
        connections = [await connect(self._bench.server.url, self._model) for _ in range(count)]
        for number, connection in enumerate(connections):
            prompt = f"{self._source.getrandbits(30)} {texts.cut(self._bench.sizes.prompts.most, self._source)}"
            wanted = request(prompt, self._bench.sizes.context // 2, number, str(number), {})
            connection.send(wanted, Stream(0, wanted.answer_tokens, 0), lambda stream: None)
        decoding = [each.stream for each in connections if each.stream is not None]
        ends = time.monotonic() + _SECONDS
        while not all(len(each.times) > 2 for each in decoding):
            if time.monotonic() > ends:
                return {"problem": "streams did not begin"}
            await asyncio.sleep(0.005)
        # What a step takes, and the steps that one reading takes.
        first, began = await self.metrics(), time.monotonic()
        await asyncio.sleep(0.2)
        alone, at = await self.metrics(), time.monotonic()
        step_ms = (at - began) * 1e3 / max(1.0, alone["steps"] - first["steps"])
        half = await self.cut(connections[: count // 2], count - count // 2)
        rest = await self.cut(connections[count // 2 :], 0)
        left = (await self.metrics())["blocks_in_use"]
        problem = "blocks are in use although no stream is left" if left else half.pop("problem") or rest.pop("problem")
        return {
            "step_ms": step_ms,
            **{f"half_{key}": value for key, value in half.items()},
            **{f"all_{key}": value for key, value in rest.items()},
            "blocks_left": left,
            "problem": problem,
        }

    async def cut(self, connections: list[StreamConnection], expected: int) -> dict[str, Any]:
        """Readings on both sides of the cut: the steps between them bound those that the streams took part in."""
        before = await self.metrics()
        began = time.monotonic()
        for connection in connections:
            connection.cut()
        await asyncio.sleep(0)
        while (now := await self.metrics())["running"] > expected:
            if time.monotonic() - began > _SECONDS:
                return {"problem": f"{now['running']:.0f} run {_SECONDS:.0f} s after the cut: expected {expected}"}
        return {
            "ms": (time.monotonic() - began) * 1e3,
            "steps": now["steps"] - before["steps"],
            "blocks_before": before["blocks_in_use"],
            "blocks_after": now["blocks_in_use"],
            "problem": "",
        }

    async def metrics(self) -> dict[str, float]:
        return read_metrics((await self._client.get(self._bench.server.metrics_url)).text)


def cancel(bench: Bench) -> None:
    """Streams whose client has gone: how soon their blocks are free."""
    if not bench.given.wanted(CANCEL) or not bench.has_time(LOAD_SECONDS, CANCEL):
        return

    async def run(model: str, count: int) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            cancellation = Cancellation(bench, model, client)
            await cancellation.round(min(2, count))  # connections and code are warm after it
            rounds = [await cancellation.round(count) for _ in range(bench.given.cuts)]
        problem = next((each["problem"] for each in rounds if each["problem"]), "")
        good = [each for each in rounds if not each["problem"]]
        numbers = {key: [each[key] for each in good] for key in (good[0] if good else {}) if key != "problem"}
        medians = {key: float(np.median(values)) for key, values in numbers.items()}
        worst = {f"{key}_max": float(max(values)) for key, values in numbers.items() if key.endswith(("_ms", "_steps"))}
        return {"cuts": len(good), **medians, **worst, "problem": problem}

    count = min(bench.sizes.rows, 64)
    with bench.variant("cancel") as model:
        attempt(bench, {"part": CANCEL, "cell": CANCEL, "streams": count}, lambda: asyncio.run(run(model, count)))


def prefix(bench: Bench) -> None:
    """One long beginning, many requests, one after the other: the first computes it, later ones find it."""
    given = bench.given

    async def first_token_ms(connection: StreamConnection, prompt: str) -> float:
        ended = asyncio.Event()
        stream = Stream(0, 4, 0)
        connection.send(request(prompt, 4, 1, "prefix", {}), stream, lambda _: ended.set())
        await asyncio.wait_for(ended.wait(), _SECONDS)
        return (stream.times[0] - stream.sent) / 1e6 if len(stream.times) else float("nan")

    async def run(model: str) -> dict[str, Any]:
        texts, source = texts_of(bench.tokenizer_file), random.Random(5)
        connection = await connect(bench.server.url, model)
        await first_token_ms(connection, texts.cut(64, source))
        firsts, laters = [], []
        for group in range(given.groups):
            shared = f"{group} {source.getrandbits(30)} {texts.cut(bench.sizes.long_prompt - 64, source)}"
            times = [
                await first_token_ms(connection, f"{shared} {number} {texts.cut(24, source)}") for number in range(8)
            ]
            firsts.append(times[0])
            laters += times[1:]
        connection.cut()
        return {
            "first_request_p50_ms": float(np.median(firsts)),
            "later_requests_p50_ms": float(np.median(laters)),
            "later_requests_p99_ms": float(np.percentile(laters, 99)),
            "reused_tokens": bench.server.metrics()["reused_tokens"],
            "problem": "" if np.isfinite([*firsts, *laters]).all() else "a request had no token",
        }

    for name, reuse in (("reuse", "true"), ("none", "false")):
        cell = f"{PREFIX}/{name}"
        if given.wanted(cell) and bench.has_time(LOAD_SECONDS, cell):
            with bench.variant(f"prefix-{name}", {"prefix_reuse": reuse}) as model:
                attempt(bench, {"part": PREFIX, "cell": cell}, lambda: asyncio.run(run(model)))
