"""The accounting of an open loop on a clock that the test moves: exactly the latencies of a calculated queue."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.load_tool.lindley import percentile, service_times_ns, sojourn_times
from isochrone.bench import generator as generator_module
from isochrone.bench.analysis.summary import summarize
from isochrone.bench.generator import Generator
from isochrone.bench.results.outcomes import OK, Run
from isochrone.bench.sending.preparing import PreparedKind
from isochrone.bench.sending.sender import Done
from isochrone.bench.workload.arrivals import poisson
from isochrone.bench.workload.mix import Kind
from isochrone.clock import MILLISECOND, SECOND

_START = 5 * SECOND


class SimulatedClock:
    """An event loop whose time passes only while it has nothing to do; to the ns."""

    def __init__(self) -> None:
        self.now = _START
        self.loop = _SimulatedLoop(self)

    def now_ns(self) -> int:
        return self.now


class _Idle(selectors.SelectSelector):
    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self._clock.now += max(1, round(timeout * SECOND))
        return []


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(_Idle(clock))
        self._simulated = clock
        self._clock_resolution = 1e-12

    def time(self) -> float:
        return (self._simulated.now - _START) / SECOND

    def at(self, instant: int, callback: Callable[[], None]) -> None:
        """Call back at an instant, and not a rounding before it."""

        def due() -> None:
            if self._simulated.now < instant:
                self.at(instant, callback)
            else:
                callback()

        self.call_later(max(0, instant - self._simulated.now) / SECOND, due)


class _Alarm:
    """As the worker's, on the simulated clock."""

    def __init__(self, loop: _SimulatedLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._is_closed = False

    def set(self, at: int) -> None:
        self._loop.at(at, self._fire)

    def close(self) -> None:
        self._is_closed = True

    def _fire(self) -> None:
        if not self._is_closed:
            self._callback()


class _Queue:
    """A server that answers in order, each request after its service time. Its connection takes no time."""

    def __init__(self, clock: SimulatedClock, services: list[int]) -> None:
        self._clock = clock
        self._services = iter(services)
        self._busy_until = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(self, request: Any, done: Done) -> _Queue:
        done.sent()
        self._busy_until = max(self._busy_until, self._clock.now) + next(self._services)
        self._clock.loop.at(self._busy_until, lambda: done.ended(OK, ""))
        return self

    def cancel(self) -> None:
        raise AssertionError("nothing is given up")


def measured(arrivals: list[int], services: list[int], *, warmup_ns: int, window_ns: int) -> Run:
    clock = SimulatedClock()

    async def run() -> Run:
        generator = Generator(
            _Queue(clock, services),
            [PreparedKind(Kind(model="m"), ["request"], lambda number, parameters: None, None)],
            repeat(0),
            start=_START,
            warmup_ns=warmup_ns,
            window_ns=window_ns,
            timeout_ns=10_000 * SECOND,
        )
        await generator.run_open_loop([np.array(arrivals, np.int64)])
        return Run(
            target="simulated",
            kinds=("m",),
            rate=1.0,
            in_flight=None,
            seconds=generator.measured_seconds(),
            started_at="",
            outcomes=generator.recorder.outcomes(),
            generators=(),
            errors=generator.recorder.errors,
            warmup_seconds=warmup_ns / SECOND,
            carried=generator.recorder.carried(),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator_module, "now_ns", clock.now_ns)
        patch.setattr(generator_module, "Alarm", _Alarm)
        try:
            return clock.loop.run_until_complete(run())
        finally:
            clock.loop.close()


def test_the_p99_is_that_of_the_calculation() -> None:
    arrivals = [instant for block in poisson(200, 5, 3) for instant in block.tolist()]
    services = service_times_ns(3, 4 * MILLISECOND, len(arrivals))
    run = measured(arrivals, services, warmup_ns=0, window_ns=5 * SECOND)
    expected = sojourn_times(arrivals, services)
    assert (run.outcomes.intended_ns.tolist(), run.errors) == (arrivals, {})
    assert np.abs(run.outcomes.ended_ns - run.outcomes.intended_ns - expected).max() <= 10, "ns of rounding"
    estimate = summarize(run).total.latency.percentile(99)
    assert estimate is not None
    assert estimate.value == pytest.approx(percentile(expected, 99), abs=10)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 400), st.floats(0.2, 1.5))
def test_every_answer_is_counted_once_in_the_rate(seed: int, warmup_ms: int, load: float) -> None:
    """Answers in the window by the calculation, of requests of the warm-up too; those after it are left out."""
    window, warmup = 400 * MILLISECOND, warmup_ms * MILLISECOND
    arrivals = [
        instant for block in poisson(250 * load, (window + warmup) / SECOND, seed) for instant in block.tolist()
    ]
    services = service_times_ns(seed, 4 * MILLISECOND, len(arrivals))
    run = measured(arrivals, services, warmup_ns=warmup, window_ns=window)
    ended = np.array(arrivals) + sojourn_times(arrivals, services) - warmup
    inside = int(np.count_nonzero((ended >= 0) & (ended <= window)))
    counted = np.concatenate([run.outcomes.ended_ns, run.carried.ended_ns])
    assert abs(int(np.count_nonzero(counted <= window)) - inside) <= 1, "one may be at the edge"
    assert len(run.outcomes) == sum(warmup <= instant < warmup + window for instant in arrivals)
