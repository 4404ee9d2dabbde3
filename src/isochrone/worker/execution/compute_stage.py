"""The stage of a loop turn in which models run inline, one after the other (``wire.turn.TurnStage``).

Decoding, a run of the model and the answer each need other code and data. Done request by request, each finds the
caches filled by the others: a perceptron of 15 µs took 24 µs between two requests, and 21 µs in a row. So the requests
of one turn are all decoded first, then run, then answered; those of one model in a row, or as a batch. A request
outside a turn, such as one whose large body was received on its own, has its stage in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from isochrone.clock import MICROSECOND, now_ns

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest

#: After this time answers are sent and sockets get their turn, before further requests run.
STAGE_NS = 1000 * MICROSECOND


class StagedRunner(Protocol):
    """What the stage needs of a runner."""

    def compute(self, requests: list[InferRequest], until: int) -> tuple[int, Any]:
        """Run requests, the first at least, until that instant; how many, and what ``finish`` needs. Never raises."""
        ...

    def finish(self, requests: list[InferRequest], results: Any) -> None:
        """Answer requests that ``compute`` has run. Never raises."""
        ...


class ComputeStage:
    """The stage of one process."""

    __slots__ = ("_open", "_planned", "_staged", "expected_ns")

    def __init__(self) -> None:
        self._staged: dict[StagedRunner, list[InferRequest]] = {}
        #: The time that the requests of the stage are expected to need.
        self.expected_ns = 0
        #: ``end`` will be called in this turn of the loop.
        self._open = False
        self._planned = False

    def begin(self) -> None:
        self._open = True

    def add(self, runner: StagedRunner, request: InferRequest, expected_ns: int) -> None:
        """Run a request in this stage, or in the next one."""
        requests = self._staged.get(runner)
        if requests is None:
            self._staged[runner] = [request]
        else:
            requests.append(request)
        self.expected_ns += expected_ns
        if not self._open:
            self._plan()

    def end(self) -> None:
        if self._staged:
            limit = now_ns() + STAGE_NS
            # Again: an answer may lead to the next run, a step of an ensemble; or not all fit into one batch.
            while self._staged and self._run(limit):
                pass
        self._open = False
        if self._staged:
            self._plan()

    def _run(self, limit: int) -> bool:
        """Run what is staged, or as much as there is time for; whether time is left."""
        staged, self._staged = self._staged, {}
        self.expected_ns = 0
        done: list[tuple[StagedRunner, list[InferRequest], Any]] = []
        has_time = True
        for runner, requests in staged.items():
            if not has_time:
                self._staged[runner] = requests
                continue
            count, results = runner.compute(requests, limit)
            if count < len(requests):
                self._staged[runner] = requests[count:]
                del requests[count:]
            done.append((runner, requests, results))
            has_time = now_ns() < limit
        for runner, requests, results in done:
            runner.finish(requests, results)
        return has_time

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._run_planned)

    def _run_planned(self) -> None:
        self._planned = False
        self._open = True
        self.end()
