"""Load on a model that generates, from several processes: closed loops of streams and open loops of arrivals.

A job ends by itself: at the end of its time the streams of closed loops are cut, those of open loops have ``grace``
seconds more. Each process has its own connections and reports the share of a core that it used.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from bench.gpu.generation.stream_figures import Streams
from bench.gpu.generation.streams import Stream, StreamConnection
from bench.gpu.generation.workload import Flow, Requests, texts_of
from bench.worker.generator import poisson_schedule

#: Time that processes may take to start and to return what they have.
_SLACK_SECONDS = 60.0


class LoadFailed(RuntimeError):
    """A generator did not deliver; the message says why."""


@dataclass(frozen=True)
class Job:
    """What the generators do together."""

    url: str
    model: str
    tokenizer_file: Path
    flows: tuple[Flow, ...]
    seconds: float
    #: Of streams of open loops that have not ended after ``seconds``.
    grace: float = 0.0
    seed: int = 1


class _Run:
    """One generator's part of a job."""

    def __init__(self, job: Job, number: int, count: int, start_ns: int) -> None:
        self._job = job
        self._start_ns = start_ns
        self._flows = [flow.share(number, count) for flow in job.flows]
        seed = job.seed * 1000 + number
        self._requests = [Requests(texts_of(job.tokenizer_file), flow, seed) for flow in self._flows]
        self._seed = seed
        self._free: list[StreamConnection] = []
        self._connections: list[StreamConnection] = []
        self._streams: list[Stream] = []
        self._open = 0
        self._is_over = False
        self._drained = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> list[Stream]:
        loop = asyncio.get_running_loop()
        zero = loop.time() + (self._start_ns - time.monotonic_ns()) / 1e9
        await self._connect(sum(flow.streams or min(256, round(flow.rate)) for flow in self._flows))
        for index, flow in enumerate(self._flows):
            for _ in range(flow.streams):
                loop.call_at(zero, self._begin, index)
            for due in poisson_schedule(flow.rate, self._job.seconds, self._seed) if flow.rate else ():
                loop.call_at(zero + due / 1e9, self._arrive, index, self._start_ns + due)
        await asyncio.sleep(max(0.0, zero + self._job.seconds - loop.time()))
        self._is_over = True
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), self._job.grace)
        for connection in self._connections:
            connection.cut()
        for task in self._tasks:
            task.cancel()
        return self._streams

    async def _connect(self, count: int) -> None:
        for _ in range(count):
            self._free.append(await self._connection())

    async def _connection(self) -> StreamConnection:
        job = self._job
        address = urlsplit(job.url)
        make = partial(StreamConnection, address.netloc, f"/v2/models/{job.model}/generate_stream")
        _, connection = await asyncio.get_running_loop().create_connection(make, address.hostname, address.port)
        self._connections.append(connection)
        return connection

    def _begin(self, index: int) -> None:
        if not self._is_over:
            self._send(index, 0, True)

    def _arrive(self, index: int, due: int) -> None:
        self._open += 1
        self._send(index, due, False)

    def _send(self, index: int, due: int, repeats: bool) -> None:
        request = self._requests[index].next()
        now = time.monotonic_ns()
        stream = Stream(index, request.answer_tokens, due or now)
        stream.sent = now
        self._streams.append(stream)
        while self._free and not self._free[-1].is_open:
            self._free.pop()
        if self._free:
            connection = self._free.pop()
            connection.send(request, stream, partial(self._ended, connection, index, repeats))
            return

        async def connect_and_send() -> None:
            try:
                connection = await self._connection()
            except OSError as error:
                stream.status, stream.error = 0, f"no connection: {error}"
                self._leave(repeats)
                return
            connection.send(request, stream, partial(self._ended, connection, index, repeats))

        task = asyncio.get_running_loop().create_task(connect_and_send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ended(self, connection: StreamConnection, index: int, repeats: bool, stream: Stream) -> None:
        self._free.append(connection)
        self._leave(repeats)
        if repeats and not self._is_over:
            loop = asyncio.get_running_loop()
            # A refused caller comes back, but not at once.
            loop.call_later(0.0 if stream.status == 200 else 0.05, self._begin, index)

    def _leave(self, repeats: bool) -> None:
        self._open -= not repeats
        if self._is_over and not self._open:
            self._drained.set()


def _work(job: Job, number: int, count: int, start_ns: int) -> tuple[Streams, float]:
    began = time.process_time()
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        streams = runner.run(_Run(job, number, count, start_ns).run())
    return Streams.of(streams), (time.process_time() - began) / job.seconds


def _prepare(cores: Sequence[int], tokenizer_file: Path) -> None:
    os.sched_setaffinity(0, cores)
    texts_of(tokenizer_file)


class Generators:
    """``with Generators(…) as generators: streams = generators.run(job)``."""

    def __init__(self, count: int, cores: Sequence[int], tokenizer_file: Path) -> None:
        self._count = count
        self._stack = ExitStack()
        context = multiprocessing.get_context("spawn")
        # One pool each: a job must not wait behind another one in the same process.
        self._pools = [
            self._stack.enter_context(
                ProcessPoolExecutor(
                    1, context, initializer=_prepare, initargs=(_own(cores, number, count), tokenizer_file)
                )
            )
            for number in range(count)
        ]
        #: Of the last job: the share of a core that the busiest process used.
        self.busiest = 0.0
        for ready in [pool.submit(int) for pool in self._pools]:
            ready.result(_SLACK_SECONDS)

    def __enter__(self) -> Generators:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, job: Job, lead_seconds: float = 0.3) -> Streams:
        """Raises ``LoadFailed``."""
        most = max(flow.streams or 1_000_000 for flow in job.flows)
        pools = self._pools[: max(1, min(len(self._pools), most))]
        start_ns = time.monotonic_ns() + int(lead_seconds * 1e9)
        futures = [pool.submit(_work, job, number, len(pools), start_ns) for number, pool in enumerate(pools)]
        give_up = time.monotonic() + lead_seconds + job.seconds + job.grace + _SLACK_SECONDS
        try:
            found = [future.result(max(0.0, give_up - time.monotonic())) for future in futures]
        except (NotInTime, BrokenProcessPool, OSError) as error:
            raise LoadFailed(f"a generator failed: {type(error).__name__}: {error}") from error
        self.busiest = max(share for _, share in found)
        return Streams.joined([streams for streams, _ in found], start_ns)


def _own(cores: Sequence[int], number: int, count: int) -> tuple[int, ...]:
    return (cores[number],) if count <= len(cores) else tuple(cores)
