"""Prompts that wait to become tokens: in the order of priorities and deadlines, counted, and gone when cancelled."""

from __future__ import annotations

import asyncio

import pytest
from toy_model import FixedTimes, GatedTokenizer, ToyModel
from toy_runner import Bench, run, until

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, InvalidArgument
from isochrone.worker.generation.prompts import PromptThread
from isochrone.worker.generation.scheduling.step_times import StepCosts


def waiting(prompts: PromptThread) -> int:
    return len(prompts._sizes)


def gated() -> tuple[Bench, GatedTokenizer]:
    model, tokenizer = ToyModel(), GatedTokenizer()
    model.tokenizer = tokenizer
    return Bench(model), tokenizer


def test_order_cancellation_and_count() -> None:
    async def scenario() -> None:
        bench, tokenizer = gated()
        prompts = bench.runner._prompts
        first = bench.send("first")
        await until(lambda: tokenizer.begun == ["first"])
        late = bench.send("without a deadline")
        soon = bench.send("with a deadline", seconds=5)
        gone = bench.send("cancelled")
        urgent = bench.send("urgent", priority=0)
        low = bench.send("a low priority", priority=2, seconds=1)
        assert waiting(prompts) == 5
        now = now_ns()
        before = prompts.expected_ns(0, 1, now)
        # What has a lower priority comes later.
        assert prompts.expected_ns(0, 2, now) - before > 0
        gone.cancelled = True
        bench.runner.check_stuck(now_ns())
        assert waiting(prompts) == 4
        assert prompts.expected_ns(0, 1, now) < before
        tokenizer.open()
        await until(lambda: all(request.is_over for request in (first, late, soon, urgent)))
        await until(lambda: low.is_over)
        order = ["first", "with a deadline", "urgent", "without a deadline", "a low priority"]
        # Without a stated priority, all have the same, and the earlier deadline comes first.
        assert sorted(tokenizer.begun) == sorted(order)
        assert tokenizer.begun.index("with a deadline") < tokenizer.begun.index("without a deadline")
        assert tokenizer.begun[-1] == "a low priority"
        await until(lambda: not bench.blocks_in_use and not waiting(prompts))
        assert bench.in_flight == 0
        bench.close()

    run(scenario)


def test_the_time_to_tokenise_counts_at_admission() -> None:
    async def scenario() -> None:
        bench, tokenizer = gated()
        prompts = bench.runner._prompts
        bench.send("first")
        await until(lambda: tokenizer.begun == ["first"])
        # As if it had been seen that a character takes 10 ms.
        prompts._took, prompts._characters = 10e6, 1.0
        now = now_ns()
        assert bench.runner.estimated_wait(now) >= prompts.expected_ns(1, 1, now) > 0
        bench.send("x" * 40, max_tokens=1)
        with pytest.raises(DeadlineExceeded, match="the first token would come"):
            bench.send("y", max_tokens=1, time_to_first_token_ms=300)
        after = bench.send("y", max_tokens=1, time_to_first_token_ms=60_000)
        tokenizer.open()
        await until(lambda: after.is_over)
        assert after.answers[-1] == "finished"
        # It is known better now.
        assert prompts._took / prompts._characters < 10e6
        bench.close()

    run(scenario)


def test_a_prompt_whose_deadline_has_passed_is_not_tokenised() -> None:
    async def scenario() -> None:
        bench, tokenizer = gated()
        first = bench.send("first")
        await until(lambda: tokenizer.begun == ["first"])
        # The worker looks about ten times a second; and the thread looks when the turn has come.
        seen = bench.send("seen", time_to_first_token_ms=60_000)
        bench.runner.check_stuck(now_ns() + 61 * SECOND)
        assert isinstance(seen.answers[-1], DeadlineExceeded)
        assert seen.answers[-1].unprocessed
        passed = bench.send("passed", time_to_first_token_ms=200)
        await asyncio.sleep(0.3)
        tokenizer.open()
        await until(lambda: first.is_over and passed.is_over)
        assert "before its prompt was tokenised" in str(passed.answers[-1])
        assert tokenizer.begun == ["first"]
        assert bench.runner.snapshot().refusals == {"deadline_exceeded": 2}
        assert bench.in_flight == 0
        bench.close()

    run(scenario)


def test_a_prompt_that_takes_longer_than_expected_is_expected_to_go_on() -> None:
    async def scenario() -> None:
        bench, tokenizer = gated()
        prompts = bench.runner._prompts
        bench.send("first")
        await until(lambda: tokenizer.begun == ["first"])
        prompts._took, prompts._characters = 1e6, 1.0
        began = prompts._running_since
        assert prompts.expected_ns(0, 1, began + 2 * MILLISECOND) == 3 * MILLISECOND
        assert prompts.expected_ns(0, 1, began + SECOND) == SECOND
        tokenizer.open()
        bench.close()

    run(scenario)


def test_requests_with_a_deadline_are_admitted_before_those_that_wait_without() -> None:
    async def scenario() -> None:
        bench, tokenizer = gated()
        engine = bench.engines[0]
        engine.scheduler.times = FixedTimes(engine.scheduler.limits, StepCosts(prefill=MILLISECOND))
        engine.wake()
        await until(lambda: engine.load.costs.prefill == MILLISECOND)
        waiting_for_ever = [bench.send("x" * 200, max_tokens=1) for _ in range(20)]
        # Theirs are four seconds of prompts.
        soon = bench.send("y" * 20, max_tokens=1, time_to_first_token_ms=3000)
        tokenizer.open()
        await until(lambda: all(request.is_over for request in (*waiting_for_ever, soon)))
        assert soon.answers[-1] == "finished"
        bench.close()

    run(scenario)


def test_closing_waits_for_nothing_that_was_cancelled() -> None:
    async def scenario() -> None:
        bench, tokenizer = gated()
        requests = [bench.send(f"{number}") for number in range(4)]
        await until(lambda: tokenizer.begun == ["0"])
        bench.runner.fail_all()
        assert waiting(bench.runner._prompts) == 0
        assert all(request.is_over for request in requests)
        tokenizer.open()
        bench.close()
        assert tokenizer.begun == ["0"]

    run(scenario)


def test_white_space_counts_like_any_other_character() -> None:
    async def scenario() -> None:
        bench = Bench()
        with pytest.raises(InvalidArgument, match="the prompt has 40000 characters: expected fewer than 32768"):
            bench.send(" " * 40_000)
        bench.close()

    run(scenario)
