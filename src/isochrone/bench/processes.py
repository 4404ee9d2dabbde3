"""The generator processes of one run: started together, begun at one instant, and their results merged.

A run that is interrupted ends early and returns what was measured. No process outlives the call, and none outlives the
command: each ends when its pipe does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

from isochrone.bench.generator import Progress
from isochrone.bench.messages import (
    Failed,
    FromGenerator,
    Prepare,
    Ready,
    Report,
    Result,
    Start,
    Stop,
    columns_size,
    decode_answer,
    encode,
    outcomes_of,
)
from isochrone.bench.recording import added
from isochrone.bench.results.outcomes import GeneratorUse, Outcomes, Run, merged
from isochrone.bench.workload.mix import labels
from isochrone.bench.workload.spec import Workload
from isochrone.client.answers import TensorMetadata
from isochrone.clock import SECOND, now_ns
from isochrone.errors import Internal, Unavailable

_GENERATOR = "isochrone.bench.generator_process"
#: From the order to start to the start: longer than the order takes to reach every process.
_LEAD_NS = SECOND // 10
#: As long before an interruption's end of the window: all processes end it at the same instant.
_STOP_LEAD_NS = SECOND // 50
#: For imports, large inputs and connections.
_READY_SECONDS = 120.0
#: Beyond the run and its time-out: for sending the result.
_PATIENCE_SECONDS = 60.0
_LONGEST_LINE = 1 << 22

ReportProgress = Callable[[Progress], None]


class Measured(NamedTuple):
    run: Run
    is_interrupted: bool


class _Part(NamedTuple):
    """What one generator measured."""

    result: Result
    outcomes: Outcomes
    carried: Outcomes


async def measure(
    workload: Workload,
    declared: Sequence[Sequence[TensorMetadata]],
    processes: int,
    *,
    report: ReportProgress,
    stop: asyncio.Event,
) -> Measured:
    """One run. ``stop`` interrupts it. Raises ``Unavailable`` if the target cannot be reached at the start."""
    count = min(processes, workload.in_flight or workload.max_in_flight)
    first_sequence = int.from_bytes(os.urandom(5), "big") << 20
    children: list[_Child] = []
    try:
        for index in range(count):
            order = Prepare(
                workload.model_dump_json(),
                [[(each.name, each.datatype, list(each.shape)) for each in inputs] for inputs in declared],
                index,
                count,
                # Ids of different processes and kinds are apart, and stay below 2^63.
                (first_sequence + (index << 40)) & ((1 << 62) - 1),
            )
            children.append(await _Child.started(order))
        interrupted = await _until_ready(children, stop)
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        if interrupted:
            return Measured(_run_of(workload, [], started_at, 0.0), is_interrupted=True)
        start = now_ns() + _LEAD_NS
        for child in children:
            child.tell(Start(start))
        interrupted = await _until_ended(children, workload, stop, report)
        results = [child.result for child in children if child.result is not None]
        return Measured(_run_of(workload, results, started_at, _seconds(results)), interrupted)
    finally:
        for child in children:
            await child.end()


class _Child:
    """One generator process."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self.progress = Progress(-1.0, (), 0, 0, 0)
        self.result: _Part | None = None

    @classmethod
    async def started(cls, order: Prepare) -> _Child:
        # Closed by ``end``.
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _GENERATOR,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=_LONGEST_LINE,
                # Ctrl-C is the command's alone: it then ends the run.
                start_new_session=True,
            )
        except BaseException:
            errors.close()
            raise
        child = cls(process, errors)
        child.tell(order)
        return child

    def tell(self, order: Prepare | Start | Stop) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(encode(order))

    async def answer(self) -> FromGenerator:
        """The next message. Raises ``Internal`` if the process ends without one."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise await self._death()
        answer: FromGenerator = decode_answer(line)
        return answer

    async def wait_ready(self) -> None:
        answer = await self.answer()
        if isinstance(answer, Failed):
            raise Unavailable(answer.message)
        assert isinstance(answer, Ready)

    async def run(self, changed: Callable[[], None]) -> None:
        """Read progress until the result."""
        assert self._process.stdout is not None
        while True:
            answer = await self.answer()
            if isinstance(answer, Report):
                self.progress = Progress(
                    answer.seconds, answer.counts, answer.in_flight, answer.median_ns, answer.p99_ns
                )
                changed()
            elif isinstance(answer, Failed):
                raise Internal(answer.message)
            elif isinstance(answer, Result):
                try:
                    columns = [
                        outcomes_of(count, await self._process.stdout.readexactly(columns_size(count)))
                        for count in (answer.requests, answer.carried)
                    ]
                except asyncio.IncompleteReadError:
                    raise await self._death() from None
                self.result = _Part(answer, *columns)
                return

    async def end(self) -> None:
        process = self._process
        if process.returncode is None and self.result is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._errors.close()

    async def _death(self) -> Internal:
        status = await self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return Internal(f"a generator process ended early ({how}): {lines[-1][:500] if lines else 'without a word'}")


async def _until_ready(children: Sequence[_Child], stop: asyncio.Event) -> bool:
    """Whether the run was interrupted before all were ready."""
    ready = asyncio.gather(*(child.wait_ready() for child in children))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((ready, stopped), timeout=_READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            return False
        if stopped.done():
            return True
        raise Internal(f"the generator processes were not ready after {_READY_SECONDS:g} s; name fewer --processes")
    finally:
        await _cancelled(ready, stopped)


async def _until_ended(
    children: Sequence[_Child], workload: Workload, stop: asyncio.Event, report: ReportProgress
) -> bool:
    """Whether the run was interrupted."""
    ended = asyncio.gather(*(child.run(lambda: report(_added(children))) for child in children))
    stopped = asyncio.ensure_future(stop.wait())
    seconds = workload.warmup_seconds + workload.seconds + workload.timeout_seconds + _PATIENCE_SECONDS
    try:
        await asyncio.wait((ended, stopped), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            # Interrupted, or so late that it would not end by itself: what is measured so far counts.
            at = now_ns() + _STOP_LEAD_NS
            for child in children:
                child.tell(Stop(at))
            await asyncio.wait((ended,), timeout=_PATIENCE_SECONDS)
        if not ended.done():
            raise Internal("the generator processes did not end; what they measured is lost")
        ended.result()
        return stopped.done()
    finally:
        await _cancelled(ended, stopped)


async def _cancelled(*futures: asyncio.Future[Any]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


def _added(children: Sequence[_Child]) -> Progress:
    """The progress of all generators; latencies are those of the slowest one."""
    parts = [child.progress for child in children]
    known = [part.counts for part in parts if part.counts]
    return Progress(
        max(part.seconds for part in parts),
        tuple(map(sum, zip(*known, strict=True))),
        sum(part.in_flight for part in parts),
        max(part.median_ns for part in parts),
        max(part.p99_ns for part in parts),
    )


def _seconds(parts: Sequence[_Part]) -> float:
    return max((part.result.seconds for part in parts), default=0.0)


def _run_of(workload: Workload, parts: Sequence[_Part], started_at: str, seconds: float) -> Run:
    outcomes = merged([part.outcomes for part in parts])
    results = [part.result for part in parts]
    names = labels(workload.kinds)
    rate = workload.rate
    if workload.trace:
        rate = len(outcomes) / seconds if seconds else 0.0
    return Run(
        target=workload.target,
        kinds=names,
        rate=rate if workload.is_open_loop else None,
        in_flight=workload.in_flight,
        seconds=seconds,
        started_at=started_at,
        outcomes=outcomes,
        generators=tuple(
            GeneratorUse(result.cpu_share, result.lag_p50_ns, result.lag_p99_ns, result.lag_max_ns)
            for result in results
        ),
        errors=added([result.errors for result in results]),
        warmup_seconds=workload.warmup_seconds,
        carried=merged([part.carried for part in parts]),
        streams=tuple(name for name, kind in zip(names, workload.kinds, strict=True) if kind.stream),
        unfinished=sum(result.unfinished for result in results),
        stalls=tuple(sorted((begins, ends) for result in results for begins, ends in result.stalls)),
    )
