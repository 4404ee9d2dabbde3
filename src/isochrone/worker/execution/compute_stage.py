"""The stage of a loop turn in which models run inline, one after the other (``wire.turn.TurnStage``).

Decoding, a run of the model and the answer each need other code and data. Done request by request, each finds the
caches filled by the others: a perceptron of 15 µs took 24 µs between two requests, and 21 µs in a row. So the requests
of one turn are all decoded first, then run, then answered. A request outside a turn, such as one whose large body was
received on its own, has its stage in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from isochrone.clock import MICROSECOND, now_ns

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors

#: After this time answers are sent and sockets get their turn, before further requests run.
STAGE_NS = 1000 * MICROSECOND


class StagedRunner(Protocol):
    """What the stage needs of a runner."""

    def compute(self, request: InferRequest) -> Tensors | None:
        """Run the request; None: it needs no answer now. Never raises."""
        ...

    def finish(self, request: InferRequest, outputs: Tensors) -> None:
        """Answer the request. Never raises."""
        ...


class ComputeStage:
    """The stage of one process."""

    __slots__ = ("_open", "_planned", "_staged", "expected_ns")

    def __init__(self) -> None:
        self._staged: list[tuple[StagedRunner, InferRequest]] = []
        #: The time that the requests of the stage are expected to need.
        self.expected_ns = 0
        #: ``end`` will be called in this turn of the loop.
        self._open = False
        self._planned = False

    def begin(self) -> None:
        self._open = True

    def add(self, runner: StagedRunner, request: InferRequest, expected_ns: int) -> None:
        """Run a request in this stage, or in the next one."""
        self._staged.append((runner, request))
        self.expected_ns += expected_ns
        if not self._open:
            self._plan()

    def end(self) -> None:
        if self._staged:
            limit = now_ns() + STAGE_NS
            # An answer may lead to the next run: a step of an ensemble.
            while self._staged and self._run(limit):
                pass
        self._open = False
        if self._staged:
            self._plan()

    def _run(self, limit: int) -> bool:
        """Run what is staged, or as much as there is time for; whether time is left."""
        staged, self._staged = self._staged, []
        self.expected_ns = 0
        results: list[Tensors | None] = []
        has_time = True
        for runner, request in staged:
            results.append(runner.compute(request))
            if request.compute_end > limit:
                has_time = False
                self._staged = staged[len(results) :]
                break
        for (runner, request), outputs in zip(staged, results, strict=False):
            if outputs is not None:
                runner.finish(request, outputs)
        return has_time

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._run_planned)

    def _run_planned(self) -> None:
        self._planned = False
        self._open = True
        self.end()
