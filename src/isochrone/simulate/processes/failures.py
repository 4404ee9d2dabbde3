"""Failures of workers (stop, stall, slowdown, errors), and the delay until gateways detect them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from isochrone.clock import MILLISECOND, SECOND
from isochrone.settings.ranges import Amount, Count, PositiveAmount
from isochrone.settings.sections import Section
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.gateways import Gateway
from isochrone.simulate.processes.worker import Worker


class Failure(Section):
    """One failure of one or more workers."""

    #: stop: the process dies; stall: it hangs, as under SIGSTOP; slow: its speed changes; errors: it fails at once.
    kind: Literal["stop", "stall", "slow", "errors"]
    #: Seconds into the run.
    at: Amount
    #: Numbers of the workers, from 0, in the order of the scenario's groups.
    workers: Annotated[list[Count], Field(min_length=1)]
    #: Duration; None: until the end of the run.
    seconds: PositiveAmount | None = None
    #: slow: speed relative to the worker's normal one.
    factor: PositiveAmount = 0.2


def schedule(
    failures: Sequence[Failure],
    engine: Engine,
    workers: Sequence[Worker],
    gateways: Sequence[Gateway],
    detection_ms: float,
) -> None:
    """Schedule all failures. Active health checks detect a stop or a stall after ``detection_ms``."""
    detection = int(detection_ms * MILLISECOND)

    def detect(now: int, found: tuple[Worker, bool]) -> None:
        for gateway in gateways:
            gateway.health(now, *found)

    def begin(now: int, case: tuple[Failure, Worker]) -> None:
        failure, worker = case
        match failure.kind:
            case "stop":
                worker.stop(now)
            case "stall":
                worker.stall(now)
            case "slow":
                worker.slow(now, failure.factor)
            case "errors":
                worker.err(now)
        if failure.kind in ("stop", "stall"):
            engine.at(now + detection, detect, (worker, False))

    def end(now: int, case: tuple[Failure, Worker]) -> None:
        failure, worker = case
        worker.recover(now)
        if failure.kind in ("stop", "stall"):
            engine.at(now + detection, detect, (worker, True))

    for failure in failures:
        begins = engine.now + int(failure.at * SECOND)
        for number in failure.workers:
            engine.at(begins, begin, (failure, workers[number]))
            if failure.seconds is not None:
                engine.at(begins + int(failure.seconds * SECOND), end, (failure, workers[number]))
