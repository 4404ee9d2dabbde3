"""An engine whose step does not end: noticed, reported, and used again if the step ends after all."""

from __future__ import annotations

import threading

import pytest
from toy_model import LIMITS, ToyModel, answer_of
from toy_runner import Bench, run, until

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, ModelFailed, Unavailable
from isochrone.worker.generation.figures import UNKNOWN_WAIT_NS
from isochrone.worker.generation.hangs import CHECKS, HangWatch, step_limit
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.admission import EngineLoad
from isochrone.worker.generation.scheduling.step_times import StepCosts


@pytest.fixture(autouse=True, params=[False, True], ids=["one in flight", "two in flight"])
def launches_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Everything holds with one step in flight and with two."""
    monkeypatch.setattr(ToyModel, "ahead_by_default", request.param)
    return bool(request.param)


def test_one_step_that_several_checks_have_seen() -> None:
    watch, limit = HangWatch(), 10 * SECOND
    began, later = 7 * SECOND, 100 * SECOND
    # The process was stopped for long: the first checks after it prove nothing.
    assert not any(watch.hangs(began, later, limit) for _ in range(CHECKS - 1))
    assert watch.hangs(began, later, limit)
    assert not watch.hangs(began, began + limit - 1, limit)
    # Another step, and none.
    assert not watch.hangs(later, later + 1, limit)
    assert not any(watch.hangs(0, later, limit) for _ in range(2 * CHECKS))


def test_the_limit_follows_from_what_steps_take() -> None:
    assert step_limit(EngineLoad(LIMITS, StepCosts()), 0) == 10 * SECOND
    assert step_limit(EngineLoad(LIMITS, StepCosts(fixed=MILLISECOND)), 0) == 10 * SECOND
    slow = step_limit(EngineLoad(LIMITS, StepCosts(fixed=SECOND, prefill=SECOND)), 0)
    assert slow > 50 * (1 + LIMITS.prefill_tokens) * SECOND
    assert step_limit(EngineLoad(LIMITS, StepCosts(fixed=SECOND)), 3 * SECOND) == 3 * SECOND


def test_a_model_without_an_engine_that_answers_is_not_ready_until_the_step_ends() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        requests = [bench.send("first", max_tokens=4), bench.send("second", max_tokens=4)]
        await until(model.entered.is_set)
        began = bench.engines[0].step_began
        # Before anybody calls it hung, the wait grows with the time that the step has run.
        assert bench.runner.estimated_wait(began + 5 * SECOND) >= 5 * SECOND
        bench.check_stuck(9)
        assert bench.readiness == []
        bench.check_stuck(11)
        assert bench.readiness == [False]
        assert bench.runner.figures.hung_instances == 1
        assert bench.in_flight == 0
        for request in requests:
            assert isinstance(request.answers[0], ModelFailed)
            assert "a step of instance 'toy-1-0' does not end, after 1" in str(request.answers[0])
        with pytest.raises(Unavailable, match="no instance is left, since a step does not end: load the model again"):
            bench.send("third")
        assert bench.runner.estimated_wait(now_ns()) == UNKNOWN_WAIT_NS
        assert bench.runner.figures.least_wait(now_ns()) == UNKNOWN_WAIT_NS
        assert bench.runner.figures.estimated_inter_token(now_ns()) == 0
        assert bench.runner.pending == 0
        # The step ends after all.
        model.gate.release(10_000)
        await until(lambda: not bench.engines[0].step_began and not bench.blocks_in_use)
        bench.runner.check_stuck(now_ns())
        assert bench.readiness == [False, True]
        assert bench.runner.figures.hung_instances == 0
        again = bench.send("again", max_tokens=4)
        await until(lambda: again.is_over)
        assert again.text == answer_of("again", GenerationParameters(max_tokens=4, temperature=0))
        bench.close()

    run(scenario)


def test_a_step_that_takes_too_long_counts_at_admission() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        bench.send("first", max_tokens=4)
        await until(model.entered.is_set)
        # As if it had begun long ago.
        bench.engines[0].step_began -= 30 * SECOND
        with pytest.raises(DeadlineExceeded, match="the first token would come"):
            bench.send("second", seconds=10)
        bench.close()

    run(scenario)


def test_unloading_does_not_wait_for_a_step_that_hangs() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        bench.send("first", max_tokens=4)
        await until(model.entered.is_set)
        bench.check_stuck(11)
        bench.runner.fail_all()
        bench.runner.release()
        bench.runner.close()
        assert not model.closed.is_set()
        model.gate.release(10_000)
        await until(model.closed.is_set)

    run(scenario)
