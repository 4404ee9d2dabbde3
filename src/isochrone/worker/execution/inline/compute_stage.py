"""The stage of a loop turn in which models run inline, one after the other (``wire.turn.TurnStage``).

Decoding, a run of the model and the answer each need other code and data. Done request by request, each finds the
caches filled by the others: a perceptron of 15 µs took 24 µs between two requests, and 21 µs in a row. So the requests
of one turn are all decoded first, then run, then answered; those of one model in a row, or as a batch. A request
outside a turn, such as one whose large body was received on its own, has its stage in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from isochrone.clock import MICROSECOND, now_ns

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest

log = structlog.get_logger(__name__)

#: After this time answers are sent and sockets get their turn, before further requests run.
STAGE_NS = 1000 * MICROSECOND


class StagedRunner(Protocol):
    """What the stage needs of a runner."""

    def compute(self, requests: list[InferRequest], until: int) -> tuple[int, Any]:
        """Run requests, the first at least, until that instant: their number, and their results for ``finish``.

        Answers nobody: an answer may lead to further requests.
        """
        ...

    def finish(self, requests: list[InferRequest], results: Any) -> None:
        """Answer requests that ``compute`` has run."""
        ...

    def give_up(self, requests: list[InferRequest], error: Exception) -> None:
        """Answer requests whose ``compute`` raised."""
        ...


class ComputeStage:
    """The stage of one process."""

    __slots__ = ("_each_ns", "_limit_ns", "_open", "_planned", "_staged", "expected_ns", "flushes")

    def __init__(self, limit_ns: int = STAGE_NS) -> None:
        self._limit_ns = limit_ns
        self._staged: dict[StagedRunner, list[InferRequest]] = {}
        #: The time that all staged requests are expected to need, and one of each runner.
        self.expected_ns = 0
        self._each_ns: dict[StagedRunner, int] = {}
        #: ``end`` will be called in this turn of the loop.
        self._open = False
        #: A stage outside a turn is scheduled.
        self._planned = False
        #: Of every listener whose turns have this stage: writes the answers that are ready.
        self.flushes: list[Callable[[], None]] = []

    def begin(self) -> None:
        self._open = True

    def add(self, runner: StagedRunner, request: InferRequest, expected_ns: int) -> None:
        """Run a request in this stage, or in the next one."""
        requests = self._staged.get(runner)
        if requests is None:
            self._staged[runner] = [request]
        else:
            requests.append(request)
        self._each_ns[runner] = expected_ns
        self.expected_ns += expected_ns
        if not self._open:
            self._plan()

    def flush(self) -> None:
        """Write the answers that are ready, instead of in the next turn of the loop."""
        for flush in self.flushes:
            flush()

    def waiting(self, runner: StagedRunner) -> int:
        """Requests of a runner that wait for their stage."""
        requests = self._staged.get(runner)
        return len(requests) if requests is not None else 0

    def end(self) -> None:
        try:
            if self._staged:
                limit = now_ns() + self._limit_ns
                # Again: an answer may lead to the next run, a step of an ensemble; or not all fit into one batch.
                while self._staged and self._run(limit):
                    pass
        finally:
            self._open = False
            if self._staged:
                self._plan()

    def _run(self, limit: int) -> bool:
        """Run what is staged, or as much as there is time for; whether time is left."""
        staged, self._staged = self._staged, {}
        done: list[tuple[StagedRunner, list[InferRequest], Any]] = []
        unserved: dict[StagedRunner, list[InferRequest]] = {}
        cut_off: dict[StagedRunner, list[InferRequest]] = {}
        has_time = True
        for runner, requests in staged.items():
            if not has_time:
                unserved[runner] = requests
                continue
            try:
                count, results = runner.compute(requests, limit)
            except Exception as error:
                log.error("a compute stage failed unexpectedly", exc_info=error)
                runner.give_up(requests, error)
                continue
            if count < len(requests):
                cut_off[runner] = requests[count:]
                del requests[count:]
            done.append((runner, requests, results))
            has_time = now_ns() < limit
        # A runner that had its time goes behind those that had none.
        self._staged = {**unserved, **cut_off}
        each = self._each_ns
        self._each_ns = {runner: each[runner] for runner in self._staged}
        self.expected_ns = sum(len(requests) * each[runner] for runner, requests in self._staged.items())
        for runner, requests, results in done:
            try:
                runner.finish(requests, results)
            except Exception as error:
                log.error("answers of a compute stage failed unexpectedly", exc_info=error)
        return has_time

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._run_planned)

    def _run_planned(self) -> None:
        self._planned = False
        self._open = True
        self.end()
