"""A device that fails for good while sequences generate: every stream gets an error, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_model import ToyModel
from toy_runner import Bench, run, until
from worker_thread import served, write_toy

from isochrone.clock import now_ns
from isochrone.devices import losses
from isochrone.errors import ModelFailed, Unavailable
from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.generation.figures import UNKNOWN_WAIT_NS
from isochrone.worker.generation.jobs_under_way import MAX_BACKLOG

REASON = "CUDA error: an illegal memory access was encountered"
#: Rows for two, and blocks for hardly more: others wait, and one is preempted.
LIMITS = GenerationLimits(context_tokens=1024, block_tokens=4, blocks=300, rows=2, prefill_tokens=16)


@pytest.fixture(autouse=True, params=[False, True], ids=["one in flight", "two in flight"])
def launches_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Everything holds with one step in flight and with two."""
    monkeypatch.setattr(ToyModel, "ahead_by_default", request.param)
    return bool(request.param)


@pytest.fixture(autouse=True)
def forget_losses() -> Iterator[None]:
    yield
    losses.forget()


def test_every_stream_gets_the_error() -> None:
    async def scenario() -> None:
        model = ToyModel(LIMITS)
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        scheduler = bench.engines[0].scheduler
        unread = bench.send("nobody reads it", max_tokens=900, priority=2)
        unread.is_slow = True
        model.gate.release(MAX_BACKLOG + 10)
        (job,) = bench.runner._jobs
        await until(lambda: job.is_paused)
        model.gate.release(5)
        await until(lambda: any(each.is_paused for each in scheduler.sequences()))
        lower = bench.send("a lower priority", max_tokens=500, priority=3)
        streams = [bench.send("a running one", max_tokens=500) for _ in range(3)]
        model.gate.release(20)
        await until(lambda: len(scheduler.running) >= 2 and len(scheduler.waiting) >= 2)
        model.failure = DeviceLost("torch", REASON)
        model.gate.release(10_000)
        requests = [lower, *streams]
        await until(lambda: all(request.is_over for request in requests))
        unread.read()
        await until(lambda: unread.is_over)
        for request in (unread, *requests):
            error = request.answers[-1]
            assert isinstance(error, ModelFailed)
            assert REASON in str(error)
            assert "the device is lost to this process: restart it" in str(error)
        await until(lambda: not bench.blocks_in_use)
        assert not list(scheduler.sequences())
        assert (bench.in_flight, scheduler.pool.free) == (0, LIMITS.blocks)
        # What comes later is refused before it costs anything.
        with pytest.raises(Unavailable, match="the device is lost to this process") as raised:
            bench.send("later")
        assert raised.value.unprocessed
        bench.runner.check_stuck(now_ns())
        assert bench.readiness == [False]
        assert bench.runner.estimated_wait(now_ns()) == UNKNOWN_WAIT_NS
        model.failure = None
        bench.close()

    run(scenario)


def test_the_worker_is_not_ready(tmp_path: Path) -> None:
    write_toy(tmp_path / "models", "toy")
    with served(tmp_path / "models") as toys:
        service, (engine,) = toys.worker.service, toys.runner("toy")._engines.serving
        assert service.is_live()
        # As the steps of a transformer do.
        losses.record("cuda:0", REASON)
        engine.executable.failure = DeviceLost("torch", REASON)
        status, text = toys.post("/v2/models/toy/generate", {"text_input": "hello"})
        assert status == 500
        assert "the device is lost to this process: restart it" in text
        status, text = toys.post("/v2/models/toy/generate", {"text_input": "hello"})
        assert status == 503
        assert not service.is_model_ready("toy", "")
        assert not service.is_ready()
        assert not service.is_live()
        assert not engine.scheduler.pool.in_use
