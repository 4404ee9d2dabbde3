"""Requests through a runner, its engine and a model that notices wrong blocks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from toy_model import ByteTokenizer, FixedTimes, GatedTokenizer, ToyModel, answer_of
from toy_runner import Answers, Bench, run, text_tensor, until

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    IsochroneError,
    ModelFailed,
    QueueFull,
    Unavailable,
)
from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.engine import GenerationEngine
from isochrone.worker.generation.jobs_under_way import MAX_BACKLOG
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.blocks import BlockTable
from isochrone.worker.generation.scheduling.scheduler import SchedulerRules
from isochrone.worker.generation.scheduling.step_times import StepCosts, StepTimes
from isochrone.worker.generation.settings import GenerationSettings


@pytest.fixture(autouse=True, params=[False, True], ids=["one in flight", "two in flight"])
def launches_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Everything holds with one step in flight and with two."""
    monkeypatch.setattr(ToyModel, "ahead_by_default", request.param)
    return bool(request.param)


def expected(prompt: str, max_tokens: int = 16, stop: tuple[str, ...] = (), end_every: int = 0) -> str:
    return answer_of(prompt, GenerationParameters(max_tokens=max_tokens, temperature=0, stop=stop), end_every)


def test_many_at_once_each_get_their_own_answer() -> None:
    async def scenario() -> None:
        bench = Bench(ToyModel(end_every=20))
        prompts = [f"request number {number}" for number in range(40)]
        requests = [bench.send(prompt, stream=bool(index % 2)) for index, prompt in enumerate(prompts)]
        await until(lambda: all(request.is_over for request in requests))
        for index, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
            answer = expected(prompt, end_every=20)
            # As in vLLM, an answer that is not streamed begins with the prompt.
            assert request.text == (answer if index % 2 else prompt + answer)
            assert request.answers[-1] == "finished"
            assert index % 2 or len(request.responses) == 1
        await until(lambda: not bench.blocks_in_use)
        assert bench.in_flight == 0
        snapshot = bench.runner.snapshot()
        assert snapshot.prompt_tokens == sum(len(prompt) for prompt in prompts)
        assert snapshot.first_token.count == 40
        assert snapshot.generated_tokens == 40 + snapshot.between_tokens.count
        assert bench.statistics.to_protobuf().inference_stats.success.count == 40
        bench.close()

    run(scenario)


def test_the_extra_outputs() -> None:
    async def scenario() -> None:
        bench = Bench()
        flags = {
            f"return_{name}": np.array([True])
            for name in ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
        }
        streamed = bench.send("abc", max_tokens=3, inputs=flags)
        whole = bench.send("abc", stream=False, max_tokens=3, inputs=flags)
        plain = bench.send("abc", max_tokens=3)
        named = bench.send("abc", max_tokens=3, stream=False, outputs=("finish_reason",))
        await until(lambda: all(request.is_over for request in (streamed, whole, plain, named)))
        reasons = [response["finish_reason"][0] for response in streamed.responses]
        assert reasons == [b"None", b"None", b"length"]
        assert [int(response["num_output_tokens"][0]) for response in streamed.responses] == [1, 1, 1]
        (response,) = whole.responses
        assert response["num_input_tokens"].tolist() == [3]
        assert response["num_output_tokens"].tolist() == [3]
        tokens = json.loads(response["logprobs"][0])
        assert [entry["decoded_token"] for each in tokens for entry in each.values()] == list(expected("abc", 3))
        total = sum(entry["logprob"] for each in tokens for entry in each.values())
        assert response["cumulative_logprob"][0] == pytest.approx(total)
        assert set(plain.responses[0]) == {"text_output"}
        assert set(named.responses[0]) == {"finish_reason"}
        bench.close()

    run(scenario)


def test_stop_strings_end_an_answer_and_free_its_blocks() -> None:
    async def scenario() -> None:
        bench = Bench()
        answer = expected("hello", 60)
        stop = answer[20:23]
        flags = {"return_finish_reason": np.array([True])}
        request = bench.send("hello", max_tokens=60, stop=[stop], inputs=flags)
        await until(lambda: request.is_over)
        assert request.text == answer[: answer.index(stop)]
        assert request.responses[-1]["finish_reason"][0] == b"stop"
        await until(lambda: not bench.blocks_in_use)
        bench.close()

    run(scenario)


def test_chats_and_bad_inputs() -> None:
    async def scenario() -> None:
        bench = Bench()

        def chat(messages: object) -> dict[str, object]:
            return {"messages": text_tensor(json.dumps(messages))}

        hello = chat([{"role": "user", "content": "hi"}])
        request = bench.send(None, stream=False, inputs=hello, max_tokens=16)
        await until(lambda: request.is_over)
        assert request.text == expected("<user>hi")
        # As OpenAI's, an answer that nobody limits fills the context.
        long = bench.send(None, stream=False, inputs=hello)
        await until(lambda: long.is_over)
        assert long.text.startswith(request.text)
        assert len(long.text) > 100
        for messages in ([], {}, ["x"], [{"content": "hi"}], [{"role": "user"}]):
            bad = bench.send(None, inputs=chat(messages))
            await until(lambda bad=bad: bad.is_over)  # type: ignore[misc]
            assert isinstance(bad.answers[0], InvalidArgument)
        empty = bench.send("")
        await until(lambda: empty.is_over)
        assert "no tokens" in str(empty.answers[0])
        long = bench.send("x" * 256)
        await until(lambda: long.is_over)
        assert "256 tokens: expected fewer than the model's context of 256" in str(long.answers[0])
        for send in (
            lambda: bench.send(None),
            lambda: bench.send("x", inputs=chat([])),
            lambda: bench.send("x", temperature=float("nan")),
            lambda: bench.send("x" * (256 * 128 + 1)),
            lambda: bench.send("x", inputs={"exclude_input_in_output": np.array([False])}),
        ):
            with pytest.raises(InvalidArgument):
                send()
        assert bench.in_flight == 0
        bench.close()

    run(scenario)


def test_a_cancelled_request_frees_its_blocks_before_the_next_step() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        first, second = bench.send("first", max_tokens=50), bench.send("second", max_tokens=50)
        await until(
            lambda: model.gate is not None and (model.gate.release(), len(first.answers) and len(second.answers))
        )
        # Permits that are left over would let steps pass unseen.
        while model.gate.acquire(blocking=False):
            pass
        first.cancelled = True
        seen = len(model.steps)
        model.gate.release(3)
        await until(lambda: first.is_over and len(model.steps) > seen + 1)
        assert first.answers[-1] == "dropped"
        assert all(len(rows) == 1 for rows in model.steps[seen + 1 :])
        engine = bench.engines[0]
        (left,) = engine.scheduler.running
        assert engine.scheduler.pool.in_use == len(left.table.blocks)
        model.gate.release(1000)
        await until(lambda: second.is_over)
        assert second.text == expected("second", 50)
        bench.close()

    run(scenario)


def test_a_step_that_fails_costs_its_own_sequences() -> None:
    async def scenario() -> None:
        bench = Bench()
        bad = bench.send("poison!")
        await until(lambda: bad.is_over)
        error = bad.answers[0]
        assert isinstance(error, ModelFailed)
        assert "a step of 1 sequences failed: RuntimeError: out of memory" in str(error)
        # Its frames would hold what the step had allocated.
        assert error.__traceback__ is None
        assert error.__cause__ is None
        good = bench.send("fine")
        await until(lambda: good.is_over)
        assert good.text == expected("fine")
        assert bench.blocks_in_use == 0
        bench.close()

    run(scenario)


def test_a_row_that_fails_costs_its_own_sequence() -> None:
    async def scenario() -> None:
        bench = Bench()
        # Its prompt takes two steps: blocks of the first are known by their content when the second fails.
        bad = "a prompt of twenty c?"
        requests = [bench.send("first"), bench.send(bad), bench.send("second", max_tokens=30), bench.send(bad[:18])]
        await until(lambda: all(request.is_over for request in requests))
        error = requests[1].answers[0]
        assert isinstance(error, ModelFailed)
        assert "not numbers; other sequences go on" in str(error)
        assert [requests[number].text for number in (0, 2, 3)] == [
            expected("first"),
            expected("second", 30),
            expected(bad[:18]),
        ]
        await until(lambda: not bench.blocks_in_use)
        assert bench.in_flight == 0
        again = bench.send(bad, max_tokens=1)
        await until(lambda: again.is_over)
        pool = bench.engines[0].scheduler.pool
        assert isinstance(again.answers[0], ModelFailed)
        # Nothing of it is found by others.
        assert BlockTable(pool).find_prefix([*bad.encode(), 0]) == []
        assert len(BlockTable(pool).find_prefix([*b"second", 0])) == 1
        bench.close()

    run(scenario)


class BadTokenizer(ByteTokenizer):
    """Fails where the answer has a certain letter."""

    def decode(self, tokens: Sequence[int]) -> str:
        text = super().decode(tokens)
        if "q" in text:
            raise KeyError("q")
        return text


def test_a_tokenizer_that_fails_costs_one_sequence() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.tokenizer = BadTokenizer()
        bench = Bench(model)
        requests = [bench.send(f"{number}", max_tokens=20) for number in range(8)]
        await until(lambda: all(request.is_over for request in requests))
        for number, request in enumerate(requests):
            answer = expected(f"{number}", 20)
            if "q" in answer:
                assert isinstance(request.answers[-1], ModelFailed)
                assert "the tokenizer failed: KeyError" in str(request.answers[-1])
            else:
                assert request.text == answer
        assert 0 < sum(request.answers[-1] == "finished" for request in requests) < 8
        await until(lambda: not bench.blocks_in_use)
        bench.close()

    run(scenario)


def test_a_model_that_fails_to_warm_up_is_freed() -> None:
    model = ToyModel()
    model.warm_steps = lambda: 1 / 0  # type: ignore[method-assign, return-value]
    engine = GenerationEngine(model, "toy-1-0", SchedulerRules())
    with pytest.raises(ZeroDivisionError):
        engine.warm()
    engine.close()
    assert model.closed.is_set()


def test_a_client_that_reads_nothing_pauses_and_then_ends() -> None:
    async def scenario() -> None:
        limits = GenerationLimits(context_tokens=4096, block_tokens=4, blocks=2048, rows=4, prefill_tokens=16)
        bench = Bench(ToyModel(limits), settings=GenerationSettings(stalled_ns=5 * SECOND))
        slow = bench.send("slow", max_tokens=600)
        slow.is_slow = True
        dead = bench.send("dead", max_tokens=600)
        dead.is_slow = True
        engine = bench.engines[0]
        await until(
            lambda: len(engine.scheduler.running) == 2 and all(each.is_paused for each in engine.scheduler.running)
        )
        # What was under way when it paused, beside what it had.
        assert min(each.generated for each in engine.scheduler.running) >= MAX_BACKLOG
        other = bench.send("other", max_tokens=5)
        await until(lambda: other.is_over)
        slow.read()
        await until(lambda: slow.is_over)
        assert slow.text == expected_of(limits, "slow", 600)
        now = now_ns()
        bench.runner.check_stuck(now)
        assert not dead.is_over
        bench.runner.check_stuck(now + 6 * SECOND)
        assert isinstance(dead.answers[-1], Cancelled)
        assert "stalled_stream_ms (5000)" in str(dead.answers[-1])
        await until(lambda: not bench.blocks_in_use)
        assert bench.in_flight == 0
        bench.close()

    run(scenario)


def expected_of(limits: GenerationLimits, prompt: str, max_tokens: int) -> str:
    return answer_of(prompt, GenerationParameters(max_tokens=max_tokens, temperature=0), limits=limits)


def test_predictions_for_one_more_request() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        runner, engine = bench.runner, bench.engines[0]
        engine.scheduler.times = FixedTimes(engine.scheduler.limits, StepCosts())
        engine.load = engine.scheduler.load(0)
        assert runner.figures.estimated_inter_token(now_ns()) == 0, "nothing is known"
        engine.scheduler.times.costs = StepCosts(fixed=10 * MILLISECOND, row=MILLISECOND, prefill=MILLISECOND)
        engine.load = engine.scheduler.load(0)
        runner.figures._sizes.mean_tokens = 12
        # A prompt of twelve tokens takes longer than one of a single token, and so does each row beside it.
        alone = runner.figures.estimated_inter_token(now_ns())
        assert runner.estimated_wait(now_ns()) - runner.figures.least_wait(now_ns()) > 10 * MILLISECOND
        requests = [bench.send("x", max_tokens=50) for _ in range(3)]
        assert runner.figures.estimated_inter_token(now_ns()) >= alone + 3 * MILLISECOND
        model.gate.release(1000)
        await until(lambda: all(request.is_over for request in requests))
        bench.close()

    run(scenario)


def test_refusals_on_the_loop() -> None:
    async def scenario() -> None:
        model, tokenizer = ToyModel(), GatedTokenizer()
        model.tokenizer = tokenizer
        bench = Bench(model, settings=GenerationSettings(SchedulerRules(max_waiting=2)))
        engine = bench.engines[0]
        engine.scheduler.times = FixedTimes(
            engine.scheduler.limits, StepCosts(fixed=10 * MILLISECOND).without_margins()
        )
        engine.wake()
        await until(lambda: engine.load.costs.fixed == 10 * MILLISECOND)
        with pytest.raises(DeadlineExceeded, match="model 'toy': the first token would come"):
            bench.send("x", time_to_first_token_ms=5)
        with pytest.raises(DeadlineExceeded, match="its own deadline between tokens"):
            bench.send("x", inter_token_ms=5)
        assert bench.runner.estimated_wait(now_ns()) == pytest.approx(10 * MILLISECOND, rel=0.1)
        assert bench.runner.figures.estimated_inter_token(now_ns()) == pytest.approx(10 * MILLISECOND, rel=0.1)
        requests = [bench.send("x", max_tokens=2) for _ in range(2)]
        with pytest.raises(QueueFull):
            bench.send("x")
        assert bench.runner.snapshot().refusals == {"deadline_exceeded": 2, "queue_full": 1}
        tokenizer.open()
        await until(lambda: all(request.is_over for request in requests))
        assert bench.in_flight == 0
        bench.close()

    run(scenario)


def test_a_deadline_that_passes_ends_the_answer() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        started = bench.send("a", max_tokens=100, seconds=30)
        model.gate.release(3)
        await until(lambda: len(started.answers) >= 2)
        scheduler = bench.engines[0].scheduler
        scheduler.running[0].deadline = now_ns() - SECOND
        scheduler._earliest_due = 0
        model.gate.release(1000)
        await until(lambda: started.is_over)
        assert isinstance(started.answers[-1], DeadlineExceeded)
        assert "after" in str(started.answers[-1])
        await until(lambda: not bench.blocks_in_use)
        bench.close()

    run(scenario)


def test_unloading_fails_what_is_left() -> None:
    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        requests = [bench.send(f"{number}", max_tokens=50) for number in range(12)]
        await until(model.entered.is_set)
        bench.close()
        assert all(isinstance(request.answers[-1], Unavailable) for request in requests)
        assert bench.in_flight == 0
        with pytest.raises(Unavailable):
            bench.send("x")

    run(scenario)


def test_an_engine_that_hangs_is_abandoned() -> None:
    async def scenario() -> None:
        hung, fine = ToyModel(), ToyModel()
        hung.gate = threading.Semaphore(0)
        bench = Bench(hung, fine, settings=GenerationSettings(execution_timeout_ns=SECOND))
        # Of equal engines, the one with fewer sequences gets a request.
        for engine in bench.engines:
            engine.scheduler.times = FixedTimes(engine.scheduler.limits, StepCosts(fixed=MILLISECOND))
            engine.load = engine.scheduler.load(0)
        requests = [bench.send(f"{number}", max_tokens=4) for number in range(4)]
        await until(lambda: sum(request.is_over for request in requests) >= 2 and hung.entered.is_set())
        bench.check_stuck(2)
        await until(lambda: all(request.is_over for request in requests))
        failed = [request for request in requests if isinstance(request.answers[-1], ModelFailed)]
        assert failed
        assert "a step of instance 'toy-1-0' does not end, after 2" in str(failed[0].answers[-1])
        assert bench.readiness == []
        assert bench.runner.figures.hung_instances == 1
        after = bench.send("after", max_tokens=4)
        await until(lambda: after.is_over)
        assert after.text == expected("after", 4)
        assert bench.in_flight == 0
        bench.runner.release()
        bench.runner.close()
        hung.gate.release(100)
        await until(hung.closed.is_set)

    run(scenario)


def test_a_seed_gives_the_same_answer_whatever_is_computed_beside_it() -> None:
    async def scenario() -> None:
        bench = Bench()
        alone = bench.send("prompt", temperature=1.0, seed=7, max_tokens=20)
        await until(lambda: alone.is_over)
        crowd = [bench.send(f"other {number}", temperature=1.0, max_tokens=20) for number in range(10)]
        again = bench.send("prompt", temperature=1.0, seed=7, max_tokens=20)
        unseeded = [bench.send("prompt", temperature=1.0, max_tokens=20) for _ in range(2)]
        await until(lambda: all(request.is_over for request in (*crowd, again, *unseeded)))
        assert alone.text == again.text
        assert len({alone.text, unseeded[0].text, unseeded[1].text}) == 3
        bench.close()

    run(scenario)


def test_a_cache_that_is_too_small_for_all() -> None:
    async def scenario() -> None:
        limits = GenerationLimits(context_tokens=64, block_tokens=4, blocks=18, rows=8, prefill_tokens=16)
        bench = Bench(ToyModel(limits))
        requests = [bench.send(f"request {number}", max_tokens=30) for number in range(8)]
        await until(lambda: all(request.is_over for request in requests))
        for number, request in enumerate(requests):
            assert request.text == expected_of(limits, f"request {number}", 30)
        assert bench.runner.snapshot().preemptions
        assert bench.blocks_in_use == 0
        bench.close()

    run(scenario)


class NotedTimes(StepTimes):
    """Notes how long steps took."""

    def __init__(self, limits: GenerationLimits) -> None:
        super().__init__(limits)
        self.measured: list[int] = []
        self.delivered: list[int] = []

    def observe_delivery(self, ns: int) -> None:
        self.delivered.append(ns)

    def observe(self, rows: int, context: int, prefill: int, ns: int) -> None:
        self.measured.append(ns)


def test_steps_wait_for_a_loop_that_is_behind() -> None:
    async def scenario() -> None:
        model = ToyModel()
        bench = Bench(model)
        times = bench.engines[0].scheduler.times = NotedTimes(model.limits)
        request = bench.send("hello", max_tokens=200)
        await until(lambda: request.responses)
        begun = len(model.steps)
        # The loop does something else: two calls of it may wait, and two steps may be in flight.
        time.sleep(0.3)  # noqa: ASYNC251
        assert len(model.steps) <= begun + 5
        await until(lambda: request.is_over)
        assert request.text == expected("hello", 200)
        # It counts as time between tokens.
        assert max(times.measured) >= 200 * MILLISECOND
        # So does the way of the tokens that waited for the loop; calls without tokens tell nothing.
        assert max(times.delivered) >= 200 * MILLISECOND
        assert min(times.delivered) > 0
        # The engine waits for a call that never ends: this thread, which would run it, waits for the engine.
        bench.send("again", max_tokens=200)
        time.sleep(0.3)  # noqa: ASYNC251
        bench.close()

    run(scenario)


@pytest.mark.parametrize("max_tokens", [1, 16])
def test_an_engine_that_fails_says_so(max_tokens: int) -> None:
    """Also to one whose last token was computed and not sent."""

    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        request = bench.send("hello", max_tokens=max_tokens)
        await until(model.entered.is_set)
        bench.engines[0].counts = None  # type: ignore[assignment]
        model.gate.release(1000)
        await until(lambda: bench.engines[0].lost)
        bench.runner.check_stuck(now_ns())
        await until(lambda: request.is_over)
        assert isinstance(request.answers[-1], ModelFailed)
        assert "its engine failed: AttributeError" in str(request.answers[-1])
        with pytest.raises(Unavailable, match="load the model again"):
            bench.send("more")
        assert bench.readiness == [False]
        assert (bench.in_flight, bench.blocks_in_use) == (0, 0)
        bench.close()

    run(scenario)


def test_jobs_and_sequences_that_were_cancelled_do_not_refer_to_each_other() -> None:
    """Only the garbage collector would free them, with their requests."""

    async def scenario() -> None:
        model = ToyModel()
        model.gate = threading.Semaphore(0)
        bench = Bench(model)
        request = bench.send("hello", max_tokens=50)
        await until(model.entered.is_set)
        (job,) = bench.runner._jobs
        assert job.sequence is not None
        request.cancelled = True
        model.gate.release(1000)
        await until(lambda: request.is_over and not bench.blocks_in_use)
        assert job.sequence is None
        bench.close()

    run(scenario)


def test_the_end_of_one_request_may_end_another() -> None:
    """As that of a choice ends the other choices of its call."""

    class Choice(Answers):
        other: Choice

        def fail(self, error: IsochroneError) -> None:
            super().fail(error)
            self.other.cancelled = True
            self.other.read()

    async def scenario() -> None:
        bench = Bench()
        choices = [bench.send("hello", max_tokens=100, kind=Choice) for _ in range(2)]
        for choice, other in zip(choices, reversed(choices), strict=True):
            choice.other, choice.is_slow = other, True
        await until(lambda: all(choice.waiting for choice in choices))
        bench.runner.check_stuck(now_ns() + 3600 * SECOND)
        assert all(isinstance(choice.answers[-1], Cancelled | str) for choice in choices)
        assert bench.in_flight == 0
        bench.close()

    run(scenario)


def test_the_least_wait_is_that_of_a_request_which_is_due_at_once() -> None:
    async def scenario() -> None:
        model, tokenizer = ToyModel(), GatedTokenizer()
        model.tokenizer = tokenizer
        bench = Bench(model)
        engine = bench.engines[0]
        engine.scheduler.times = FixedTimes(engine.scheduler.limits, StepCosts(prefill=MILLISECOND))
        engine.wake()
        await until(lambda: engine.load.costs.prefill == MILLISECOND)
        for _ in range(20):
            bench.send("x" * 200, max_tokens=1)
        await until(lambda: tokenizer.begun)
        now = now_ns()
        assert bench.runner.estimated_wait(now) > 900 * MILLISECOND
        assert bench.runner.figures.least_wait(now) < 100 * MILLISECOND
        tokenizer.open()
        bench.close()

    run(scenario)
