"""Load generator processes of the GPU benches: started once, given one job after the other.

Each is a process of its own with its own connections, cores and shared-memory regions, so that together they are never
the bottleneck; each reports its share of a core. Answers are compared with a reference before the figures are believed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np

from bench.gpu.figures import TOLERANCE, deviation, percentiles_us
from bench.gpu.load.links import Links
from bench.gpu.load.loops import Outcome, closed_loop, open_loop
from bench.gpu.load.messages import answered, heading, messages_of
from bench.gpu.load.regions import BYTES, SlotRegions
from bench.gpu.models.specs import Sizes, spec_of
from bench.worker.generator import poisson_schedule

#: Time for connections and regions of a job.
_READY_SECONDS = 60.0


class GeneratorFailed(RuntimeError):
    """A generator did not deliver; the message says why."""


@dataclass(frozen=True)
class Job:
    """What one generator does. ``rate``: of an open loop; 0: a closed one."""

    model: str
    sizes: Sizes
    addresses: tuple[str, ...]
    #: The reference's rows, by version of the model.
    references: dict[int, np.ndarray]
    transport: str = BYTES
    connections: int = 1
    in_flight: int = 1
    rate: float = 0.0
    seconds: float = 1.0
    warm_seconds: float = 0.5
    #: Answers that are checked, at least.
    verify: int = 8
    number: int = 0
    seed: int = 1


def work(job: Job, link: Connection) -> Outcome:
    """One job, in the generator's process."""
    spec = spec_of(job.model, job.sizes)
    with ExitStack() as stack:
        regions = None
        if job.transport != BYTES:
            prefix = f"bench-{job.number}"
            regions = stack.enter_context(SlotRegions(job.transport, job.addresses[0], spec, job.in_flight, prefix))
        messages = messages_of(spec) if regions is None else regions.messages()
        links = Links(job.addresses, job.connections, messages)
        stack.callback(links.close)
        due = poisson_schedule(job.rate, job.seconds, job.seed + job.number) if job.rate else []
        link.send("ready")
        if not link.poll(_READY_SECONDS):
            raise GeneratorFailed("nobody gave the start")
        start_ns = link.recv()
        if start_ns is None:
            raise GeneratorFailed("another generator could not begin")
        if job.rate:
            found = open_loop(links, len(messages), due, start_ns, keep=job.verify, first_kind=job.number)
        else:
            found = closed_loop(
                *(links, len(messages), job.in_flight, start_ns, job.warm_seconds, job.seconds),
                rotate=regions is None,
                keep=job.verify if regions is None else 0,
            )
        found.kept, kept = [], found.kept
        for kind, body in kept:
            reference = job.references[int(heading(body)[0])]
            _judge(found, answered(spec, body), reference[kind % len(reference)])
        if regions is not None:
            for slot in range(job.in_flight):
                reference = next(iter(job.references.values()))
                _judge(found, regions.output(slot), reference[slot % len(reference)])
    return found


def _judge(found: Outcome, given: np.ndarray, expected: np.ndarray) -> None:
    found.verified += 1
    found.worst_deviation = max(found.worst_deviation, deviation(given, expected))


def _serve_jobs(link: Connection, cores: frozenset[int]) -> None:
    os.sched_setaffinity(0, cores)
    while (job := link.recv()) is not None:
        try:
            link.send(work(job, link))
        except Exception as error:
            link.send(f"{type(error).__name__}: {error}")


class Generators:
    """``with Generators(count, cores) as generators: generators.run(job, …)``."""

    def __init__(self, count: int, cores: Sequence[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[tuple[Any, Connection]] = []
        for number in range(count):
            here, there = context.Pipe()
            own = frozenset({cores[number]}) if count <= len(cores) else frozenset(cores)
            process = context.Process(target=_serve_jobs, args=(there, own), daemon=True)
            process.start()
            there.close()
            self._processes.append((process, here))

    def __enter__(self) -> Generators:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, link in self._processes:
            try:
                link.send(None)
            except OSError:
                pass
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            link.close()

    def __len__(self) -> int:
        return len(self._processes)

    def run(self, job: Job, count: int = 0, lead_seconds: float = 0.05) -> list[Outcome]:
        """The same job in ``count`` of the processes at once, in flight or rate shared between them."""
        return self.finish(self.begin(job, count, lead_seconds))

    def begin(self, job: Job, count: int = 0, lead_seconds: float = 0.05) -> tuple[Running, int]:
        """Starts it; the common start in ns of the monotonic clock comes with it."""
        count = min(count or len(self), len(self))
        if not job.rate:
            count = min(count, job.in_flight)
        parts = []
        for number, (_, link) in enumerate(self._processes[:count]):
            share = job.in_flight // count + (number < job.in_flight % count)
            part = replace(job, number=number, in_flight=share, rate=job.rate / count)
            link.send(part)
            parts.append(link)
        self._await_readiness(parts)
        start_ns = time.monotonic_ns() + int(lead_seconds * 1e9)
        for link in parts:
            link.send(start_ns)
        return Running(parts, job.seconds + job.warm_seconds + _READY_SECONDS), start_ns

    def _await_readiness(self, links: list[Connection]) -> None:
        """Returns when all are ready. If one is not, the others are called off: they wait for the start."""
        ready, problems = [], []
        for link in links:
            try:
                self._expect(link, _READY_SECONDS, "ready")
                ready.append(link)
            except GeneratorFailed as problem:
                problems.append(str(problem))
        if not problems:
            return
        for link in ready:
            link.send(None)
            try:
                self._expect(link, _READY_SECONDS)
            except GeneratorFailed:  # it says that it was called off
                pass
        raise GeneratorFailed("; ".join(dict.fromkeys(problems)))

    def finish(self, begun: tuple[Running, int]) -> list[Outcome]:
        running, _ = begun
        give_up = time.monotonic() + running.seconds
        outcomes = []
        problems = []
        for link in running.links:
            try:
                outcomes.append(self._expect(link, give_up - time.monotonic()))
            except GeneratorFailed as problem:
                problems.append(str(problem))
        if problems:
            raise GeneratorFailed("; ".join(dict.fromkeys(problems)))
        return outcomes

    def _expect(self, link: Connection, seconds: float, what: str = "") -> Outcome:
        if not link.poll(max(0.0, seconds)):
            raise GeneratorFailed(f"a generator did not answer within {seconds:.0f} s")
        try:
            given = link.recv()
        except EOFError:
            raise GeneratorFailed("a generator's process ended") from None
        if isinstance(given, str) and given != what:
            raise GeneratorFailed(given)
        found: Outcome = given
        return found


@dataclass(frozen=True)
class Running:
    """A job under way."""

    links: list[Connection]
    seconds: float


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All generators of a job as one figure."""
    problems: Counter[str] = sum((each.problems for each in outcomes), Counter())
    return {
        "requests_per_second": sum(each.answers / each.seconds for each in outcomes),
        **percentiles_us(np.concatenate([each.latencies_ns for each in outcomes])),
        "answers": sum(each.answers for each in outcomes),
        "failed": sum(each.failed for each in outcomes),
        "problems": dict(problems.most_common(3)),
        "verified": sum(each.verified for each in outcomes),
        "worst_deviation": max(each.worst_deviation for each in outcomes),
        "generator_cpu": [round(each.cpu_share, 2) for each in outcomes],
    }


def fault(figure: dict[str, Any]) -> str:
    """Why a figure does not count; empty if it does."""
    if figure["failed"]:
        return f"{figure['failed']} failed: {next(iter(figure['problems']), '')}"
    if not figure["answers"]:
        return "no answer in the measured time"
    if not figure["verified"]:
        return "no answer was checked"
    if figure["worst_deviation"] > TOLERANCE:
        return f"wrong answers: off by {figure['worst_deviation']:.3g} of the largest value"
    return ""
