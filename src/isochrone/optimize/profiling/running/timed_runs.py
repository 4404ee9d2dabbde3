"""Runs of a loaded version on all its instances at the same time, each on a thread of its own, and their times."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isochrone.clock import SECOND, now_ns
from isochrone.optimize.measuring.timing import LEAST_RUNS, timing_of

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.interface import Executable

#: The median is known closely enough.
_PRECISION = 0.02
#: Of fewer runs the 99th percentile is the slowest one.
_ENOUGH_RUNS = 200
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class RunTimes:
    run_ns: float
    p99_ns: float
    rows_per_second: float
    runs: int


class _Runner:
    """One instance: it runs batches until it is stopped."""

    def __init__(self, executable: Executable, cpus: tuple[int, ...], inputs: Tensors) -> None:
        self._executable = executable
        self._cpus = cpus
        self._inputs = inputs
        self.samples: list[int] = []
        self.error: BaseException | None = None
        self.began = self.ended = 0

    def serve(self, ready: threading.Barrier, stop: threading.Event) -> None:
        try:
            if self._cpus:  # as the worker pins the thread of an instance
                os.sched_setaffinity(0, self._cpus)
            run, inputs, samples = self._executable.execute, self._inputs, self.samples
            run(inputs, None)  # it allocates, and caches are cold
            ready.wait()
            at = self.began = now_ns()
            while True:
                run(inputs, None)
                before, at = at, now_ns()
                samples.append(at - before)
                if stop.is_set():
                    break
            self.ended = at
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self.error = error
            stop.set()
            ready.abort()


def time_runs(
    executables: Sequence[Executable],
    cpus: Sequence[tuple[int, ...]],
    make_inputs: Callable[[], Tensors],
    rows: int,
    *,
    least_seconds: float,
    seconds: float,
) -> RunTimes:
    """Ends when the median is known and there are enough runs, not before ``least_seconds``, or after ``seconds``.

    Runs that last longer are completed. An error of the model is raised.
    """
    runners = [_Runner(each, of, make_inputs()) for each, of in zip(executables, cpus, strict=True)]
    ready, stop = threading.Barrier(len(runners) + 1), threading.Event()
    threads = [threading.Thread(target=each.serve, args=(ready, stop), daemon=True) for each in runners]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        _wait(runners, stop, least_seconds, seconds)
    except threading.BrokenBarrierError:
        pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for runner in runners:
        if runner.error is not None:
            raise runner.error
    timing = timing_of([sample for runner in runners for sample in runner.samples])
    throughput = sum(rows * len(each.samples) / (each.ended - each.began) for each in runners) * SECOND
    return RunTimes(timing.median, timing.p99, throughput, timing.runs)


def _wait(runners: Sequence[Any], stop: threading.Event, least_seconds: float, seconds: float) -> None:
    began = now_ns()
    while not stop.wait(_LOOK_SECONDS):
        elapsed = (now_ns() - began) / SECOND
        if elapsed >= seconds:
            return
        if elapsed < least_seconds or min(len(each.samples) for each in runners) < LEAST_RUNS:
            continue
        samples = [sample for each in runners for sample in tuple(each.samples)]
        if len(samples) >= _ENOUGH_RUNS and timing_of(samples).spread <= _PRECISION:
            return
