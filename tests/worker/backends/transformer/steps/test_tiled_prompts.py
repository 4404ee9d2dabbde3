"""Prompts in padded buckets, as on a GPU, but with torch's attention over the tiles: they choose what prompts computed
one by one choose. The kernel itself is compared on a GPU (``tests/gpu``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiled_steps import steps_of

from generation_models import VOCABULARY, SampleModel
from isochrone.errors import InvalidArgument
from isochrone.worker.backends.generative import Chosen, GenerationLimits, Row, Sampling
from isochrone.worker.backends.transformer.steps.steps import Steps

BLOCK, ROWS, PREFILL = 4, 5, 48
LIMITS = GenerationLimits(context_tokens=96, block_tokens=BLOCK, blocks=128, rows=ROWS, prefill_tokens=PREFILL)


@pytest.fixture(scope="module", params=["llama3", "qwen3", "gpt2"])
def both(request: pytest.FixtureRequest, sample_model: SampleModel) -> Iterator[tuple[Steps, Steps]]:
    """Steps that compute prompts one by one, and steps that pad them and have captured their parts."""
    directory = sample_model(request.param)
    steps = [steps_of(directory, LIMITS), steps_of(directory, LIMITS, is_tiled=True)]
    steps[1].warm()
    yield steps[0], steps[1]
    for each in steps:
        each.close()


def step(steps: Steps, rows: list[Row]) -> list[Chosen | None]:
    steps.launch(rows)
    return steps.collect()


def same(first: list[Chosen | None], second: list[Chosen | None]) -> None:
    assert [chosen and chosen.token for chosen in first] == [chosen and chosen.token for chosen in second]
    logarithms = [[chosen.log_probability for chosen in each if chosen is not None] for each in (first, second)]
    assert logarithms[0] == pytest.approx(logarithms[1], abs=1e-4)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=ROWS), seed=st.integers(0, 2**16))
def test_padded_prompts_choose_what_prompts_one_by_one_choose(
    both: tuple[Steps, Steps], lengths: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    free = list(range(LIMITS.blocks))
    chance.shuffle(free)
    sequences = [chance.choices(range(VOCABULARY), k=length) for length in lengths]
    blocks = [[free.pop() for _ in range(-(-length // BLOCK))] for length in lengths]
    done = [0] * len(lengths)
    while done != lengths:
        rows, budget = [], PREFILL
        for number in chance.sample(range(len(lengths)), len(lengths)):
            left = lengths[number] - done[number]
            count = min(left, budget, chance.randint(1, 60))
            if count:
                budget -= count
                tokens = sequences[number][done[number] : done[number] + count]
                sampling = chance.choice([Sampling(0.0), Sampling(0.9, 0, 1.0, 0.5), Sampling(0.9, 9, 0.8, 0.5)])
                rows.append(Row(tokens, done[number], blocks[number], sampling if count == left else None))
                done[number] += count
        same(step(both[0], rows), step(both[1], rows))


def test_a_chunked_prompt_gives_what_the_whole_gives(both: tuple[Steps, Steps]) -> None:
    tokens = random.Random(2).choices(range(VOCABULARY), k=41)
    greedy = Sampling(0.0)
    whole = step(both[1], [Row(tokens, 0, list(range(11)), greedy)])
    for start, end in ((0, 17), (17, 19), (19, 38)):
        assert step(both[1], [Row(tokens[start:end], start, list(range(20, 31)), None)]) == [None]
    same(step(both[1], [Row(tokens[38:], 38, list(range(20, 31)), greedy)]), whole)


def test_a_wrong_step_does_not_harm_the_next(both: tuple[Steps, Steps]) -> None:
    tokens = random.Random(4).choices(range(VOCABULARY), k=9)
    for steps in both:
        step(steps, [Row(tokens[:6], 0, [0, 127, 1], None)])
    with pytest.raises(InvalidArgument, match="block: expected 0 to 127"):
        step(both[1], [Row([1, 2], 0, [129], None)])
    rows = [Row(tokens[6:], 6, [0, 127, 1], Sampling(0.0))]
    same(step(both[0], rows), step(both[1], rows))


def test_filling_up_leaves_blocks_alone(both: tuple[Steps, Steps]) -> None:
    tokens = random.Random(5).choices(range(VOCABULARY), k=9)
    for steps in both:
        step(steps, [Row(tokens[:6], 0, [0, 127, 1], None)])
    tiled = both[1]._tiled
    assert tiled is not None
    with torch.inference_mode():
        for bucket in tiled.buckets:
            tiled.fill(bucket)
            tiled.compute(bucket)
    rows = [Row(tokens[6:], 6, [0, 127, 1], Sampling(0.0))]
    same(step(both[0], rows), step(both[1], rows))
