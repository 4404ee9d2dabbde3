"""Predictions of first tokens: behind sequences that wait for rows, with margins, and without any."""

from __future__ import annotations

import pytest

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import DeadlineExceeded
from isochrone.worker.backends.generative import Chosen, GenerationLimits
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad, refusal
from isochrone.worker.generation.scheduling.scheduler import StepScheduler
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.step_times import StepCosts, StepTimes

LIMITS = GenerationLimits(context_tokens=1000, block_tokens=4, blocks=10_000, rows=4, prefill_tokens=64)
#: A step takes 1,000 ns, whatever it computes, and estimates are a twentieth above it.
COSTS = StepCosts(fixed=1000.0).without_margins()
STEP = 1050


def first_token_at(waiting: int) -> int:
    prompts = tuple(((1, True, number, number), 0) for number in range(waiting))
    load = EngineLoad(
        LIMITS,
        COSTS,
        running=4,
        decoding=4,
        running_priorities=(1,) * 4,
        to_end=(10, 20, 30, 40),
        waiting=waiting,
        prompts=prompts,
    )
    return load.first_token_at(Candidate(8, 1, arrived=0, first_deadline=10**9), 0)


@pytest.mark.parametrize(("waiting", "tokens"), [(0, 10), (1, 20), (3, 40), (4, 50), (7, 80), (8, 90), (40, 410)])
def test_rows_are_taken_as_often_as_it_takes(waiting: int, tokens: int) -> None:
    """The row of the first to end is free after 10 tokens; behind more than four, rows are taken twice and more."""
    assert first_token_at(waiting) == (tokens + 1) * STEP


def test_margins_are_of_the_cautious_prediction_alone() -> None:
    costs = StepCosts(fixed=1000.0, decoding=3, prompting=2, waiting=1.5, delivery=70)
    load = EngineLoad(LIMITS, costs, running=4, decoding=4, running_priorities=(1,) * 4, to_end=(10, 20, 30, 40))
    candidate = Candidate(8, 1, arrived=0, first_deadline=10**9)
    assert load.expected_first_token(candidate, 5) == 5 + 10 * 1000 + 1000
    assert load.first_token_at(candidate, 5) == 5 + 15 * 1000 + 2 * 1000 + 70
    assert load.inter_token_ns(candidate) == 2 * 1000 + 70


class Spied(StepTimes):
    """Fixed costs; keeps the waits that it is told."""

    def __init__(self, costs: StepCosts) -> None:
        super().__init__(LIMITS)
        self.costs = costs
        self.waits: list[tuple[int, int]] = []

    def observe(self, rows: int, context: int, prefill: int, ns: int) -> None: ...

    def observe_wait(self, predicted_ns: int, ns: int) -> None:
        self.waits.append((predicted_ns, ns))


def sequence(first_ms: float, inter_ms: float = 0, *, priority: int = 1) -> TokenSequence:
    parameters = GenerationParameters(
        max_tokens=50,
        temperature=0,
        first_token_ns=round(first_ms * MILLISECOND),
        inter_token_ns=round(inter_ms * MILLISECOND),
    )
    return TokenSequence([1, 2, 3], parameters, priority=priority)


def test_paused_streams_keep_no_margins_alive() -> None:
    scheduler = StepScheduler(LIMITS)
    scheduler.times = Spied(StepCosts(fixed=10.0 * MILLISECOND, delivery=100.0 * MILLISECOND))
    paused = sequence(0)
    scheduler.admit(paused, 0)
    scheduler.schedule(0)
    with pytest.raises(DeadlineExceeded):
        scheduler.admit(sequence(0, 25), 0)
    scheduler.pause(paused)
    assert not scheduler.schedule(0).rows
    scheduler.admit(sequence(0, 25), 0)
    load = StepScheduler(LIMITS).load()
    assert refusal(load, Candidate(3, 1, 0, NEVER, 25 * MILLISECOND), 0, 1) is None


def test_waits_are_observed_but_for_those_that_were_overtaken() -> None:
    scheduler = StepScheduler(LIMITS)
    times = scheduler.times = Spied(StepCosts(fixed=1.0 * MILLISECOND))
    late, patient, urgent = sequence(2), sequence(900), sequence(500)
    scheduler.admit(patient, 0)
    scheduler.admit(urgent, 0)
    now = 3 * MILLISECOND
    step = scheduler.schedule(now)
    scheduler.completed(step, [Chosen(1, 0.0) for _ in step.rows], now, MILLISECOND)
    # The one that was overtaken says nothing.
    assert [predicted for predicted, _ in times.waits if predicted] == [MILLISECOND]
    assert times.waits[0][1] == now
    # Further tokens are no first ones, and one that waits in vain counts.
    step = scheduler.schedule(now)
    scheduler.completed(step, [Chosen(1, 0.0) for _ in step.rows], now, MILLISECOND)
    assert len(times.waits) == 2
    scheduler.admit(late, 0)
    assert scheduler.remove_late(now) == [late]
    assert times.waits[2][1] == now
