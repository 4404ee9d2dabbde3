"""The shell around sequence batching: runs that hang, and what is lost with them, on real threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from queued_requests import RecordedRequest
from runner_bench import run, until
from tritonclient.grpc import model_config_pb2

from isochrone.clock import SECOND, now_ns
from isochrone.errors import InvalidArgument, IsochroneError, ModelFailed, Unavailable
from isochrone.protocol.messages import Plan
from isochrone.worker.backends.interface import Executable
from isochrone.worker.execution.inline.compute_stage import ComputeStage
from isochrone.worker.execution.inline.watchdog import InlineWatchdog
from isochrone.worker.execution.instances.instance import Instance
from isochrone.worker.execution.runner_context import RunnerContext
from isochrone.worker.scheduling.batch_queue import QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve
from isochrone.worker.sequences.batcher import SequenceBatcher
from isochrone.worker.sequences.runner import SequenceRunner
from isochrone.worker.statistics import ModelStatistics

CONFIG = 'name: "m" max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 100000000 }'


class Adding(Executable):
    """Keeps a sum, as a model with state of its own does; a negative number waits for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.closed = threading.Event()
        self.sum = 0

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        value = int(inputs["X"].item())
        if value < 0:
            self.entered.set()
            self.gate.wait()
        self.sum += value
        return {"Y": np.full((1, 1), self.sum)}

    def close(self) -> None:
        self.closed.set()


class Bench:
    """A sequence runner whose instances the test made."""

    def __init__(self, *executables: Adding) -> None:
        self.in_flight = 0
        self.replacements: list[Adding | IsochroneError] = []
        batcher = SequenceBatcher(text_format.Parse(CONFIG, model_config_pb2.ModelConfig()), len(executables))
        context = RunnerContext(
            "m",
            QueueRules(),
            LatencyCurve(1),
            ModelStatistics("m", "1"),
            InlineWatchdog(),
            ComputeStage(),
            self.over,
            execution_timeout_ns=SECOND,
        )
        self.runner = SequenceRunner(context, batcher, batched=True)
        self.runner.start([self.instance(each, number) for number, each in enumerate(executables)], self.replace)

    def instance(self, executable: Adding, number: int) -> Instance:
        return Instance(executable, "m-1", 1, (), asyncio.get_running_loop(), lambda *_: None, number)

    def replace(self, number: int, made: Callable[[Instance | IsochroneError], None]) -> None:
        given = self.replacements.pop(0)
        made(given if isinstance(given, IsochroneError) else self.instance(given, number))

    def over(self) -> None:
        self.in_flight -= 1

    def send(self, sequence: int, value: int, flags: str = "") -> RecordedRequest:
        plan = Plan(
            "m",
            "",
            (("X", "INT64", (1, 1)),),
            None,
            sequence_id=sequence,
            sequence_start="s" in flags,
            sequence_end="e" in flags,
        )
        request = RecordedRequest(plan, {"X": np.full((1, 1), value, np.int64)}, now_ns())
        self.in_flight += 1
        try:
            self.runner.submit(request)
        except IsochroneError:
            self.in_flight -= 1
            raise
        return request

    async def answer(self, request: RecordedRequest) -> Any:
        await until(lambda: request.answers)
        assert len(request.answers) == 1
        return request.answers[0]

    def end(self) -> None:
        self.runner.release()
        self.runner.close()


def test_a_hung_run_is_given_up_with_the_sequences_of_its_instance() -> None:
    async def scenario() -> None:
        hung, fresh = Adding(), Adding()
        bench = Bench(hung)
        bench.replacements = [fresh]
        assert (await bench.answer(bench.send(1, 5, "s")))["Y"].item() == 5
        stuck, queued = bench.send(1, -1), bench.send(1, 6)
        waiting = bench.send(2, 7, "s")
        await until(hung.entered.is_set)
        bench.runner.check_stuck(now_ns())
        assert not stuck.answers
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        for request in (stuck, queued):
            error = await bench.answer(request)
            assert isinstance(error, ModelFailed)
            assert "execution_timeout_ms (1000)" in str(error)
            assert "its sequences have ended" in str(error)
        # Who waited for a slot lost nothing and has the successor's.
        assert (await bench.answer(waiting))["Y"].item() == 7
        with pytest.raises(InvalidArgument, match="START"):
            bench.send(1, 8)
        assert bench.in_flight == 0
        # The abandoned thread reports nothing when it ends, and frees its model.
        hung.gate.set()
        await until(hung.closed.is_set)
        await asyncio.sleep(0)
        assert len(stuck.answers) == 1
        assert (await bench.answer(bench.send(2, 1, "e")))["Y"].item() == 8
        assert (await bench.answer(bench.send(1, 2, "se")))["Y"].item() == 10
        bench.end()
        assert fresh.closed.is_set()

    run(scenario)


def test_the_sequences_of_other_instances_go_on() -> None:
    async def scenario() -> None:
        executables = Adding(), Adding()
        bench = Bench(*executables)
        bench.replacements = [ModelFailed("the file is gone")]
        stuck = bench.send(1, -1, "s")
        other = bench.send(2, 3, "s")
        assert (await bench.answer(other))["Y"].item() == 3
        await until(lambda: any(each.entered.is_set() for each in executables))
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        assert isinstance(await bench.answer(stuck), ModelFailed)
        assert (await bench.answer(bench.send(2, 4)))["Y"].item() == 7
        # The instance that was not replaced gets no sequence: a new sequence waits for the other instance.
        waiting = bench.send(3, 1, "s")
        assert bench.runner.pending == 1
        assert (await bench.answer(bench.send(2, 0, "e")))["Y"].item() == 7
        assert (await bench.answer(waiting))["Y"].item() == 8
        assert bench.in_flight == 0
        for each in executables:
            each.gate.set()
        bench.end()
        await until(lambda: all(each.closed.is_set() for each in executables))

    run(scenario)


def test_when_no_instance_is_left_everybody_is_refused() -> None:
    async def scenario() -> None:
        hung = Adding()
        bench = Bench(hung)
        bench.replacements = [ModelFailed("the file is gone")]
        stuck, waiting = bench.send(1, -1, "s"), bench.send(2, 1, "s")
        await until(hung.entered.is_set)
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        assert isinstance(await bench.answer(stuck), ModelFailed)
        assert "the file is gone" in str(await bench.answer(waiting))
        with pytest.raises(ModelFailed, match="the file is gone"):
            bench.send(3, 1, "s")
        assert (bench.in_flight, bench.runner.pending) == (0, 0)
        hung.gate.set()
        bench.end()

    run(scenario)


def test_unloading_does_not_wait_for_a_run_that_never_ends() -> None:
    async def scenario() -> None:
        hung = Adding()
        bench = Bench(hung)
        stuck, queued = bench.send(1, -1, "s"), bench.send(1, 2)
        await until(hung.entered.is_set)
        bench.runner.fail_all()
        bench.end()
        assert isinstance(await bench.answer(stuck), Unavailable)
        assert isinstance(await bench.answer(queued), Unavailable)
        with pytest.raises(Unavailable):
            bench.send(3, 1, "s")
        assert bench.in_flight == 0
        hung.gate.set()
        await until(hung.closed.is_set)

    run(scenario)
