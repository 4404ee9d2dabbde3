"""The prediction of a first token behind sequences that wait for rows."""

from __future__ import annotations

import pytest

from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad
from isochrone.worker.generation.scheduling.step_times import StepCosts

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
