"""Steps that are launched before the one before is collected: the answers are those of one step after the other."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest
from tiled_steps import steps_of

from generation_models import VOCABULARY, SampleModel
from isochrone.errors import Internal, ModelFailed
from isochrone.worker.backends.generative import Chosen, GenerationLimits, Row, Sampling
from isochrone.worker.backends.transformer.steps.steps import Steps
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.scheduler import StepScheduler
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.steps import Step

LIMITS = GenerationLimits(context_tokens=96, block_tokens=4, blocks=40, rows=5, prefill_tokens=24)
GREEDY = Sampling(temperature=0.0)


def answers(steps: Steps) -> list[list[int]]:
    """What sequences of all kinds get, in a cache that is too small for all."""
    chance, scheduler = random.Random(5), StepScheduler(LIMITS)
    sequences = []
    for number in range(14):
        parameters = GenerationParameters(
            max_tokens=chance.randrange(1, 40),
            temperature=chance.choice([0.0, 0.0, 0.9]),
            top_k=chance.choice([0, 9]),
            seed=number,
        )
        prompt = chance.choices(range(VOCABULARY), k=chance.randrange(1, 50))
        # Some tokens end an answer: what was launched behind them is dropped.
        ends = frozenset(chance.sample(range(VOCABULARY), VOCABULARY // 25))
        sequences.append(TokenSequence(prompt, parameters, priority=chance.randint(1, 2), end_tokens=ends))
    in_flight: deque[Step] = deque()
    left = sequences.copy()
    while left or in_flight or list(scheduler.sequences()):
        if left:
            scheduler.admit(left.pop(0), 0)
        step = scheduler.schedule(0)
        if step.rows:
            steps.launch(step.rows)
            in_flight.append(step)
        if in_flight and (len(in_flight) > steps.is_ahead or not step.rows):
            scheduler.completed(in_flight.popleft(), steps.collect(), 1, 1)
    assert scheduler.preemptions
    assert scheduler.pool.in_use == 0
    return [sequence.tokens[sequence.prompt_tokens :] for sequence in sequences]


@pytest.mark.parametrize("name", ["llama3", "gpt2"])
@pytest.mark.parametrize("is_tiled", [False, True])
def test_answers_are_the_same(sample_model: SampleModel, name: str, is_tiled: bool) -> None:
    found = []
    for ahead in (False, True):
        steps = steps_of(sample_model(name), LIMITS, is_tiled=is_tiled, ahead=ahead)
        steps.warm()
        found.append(answers(steps))
        steps.close()
    assert found[0] == found[1]
    assert len(set(map(len, found[0]))) > 3


@pytest.fixture
def ahead(sample_model: SampleModel) -> Steps:
    directory: Path = sample_model("llama3")
    return steps_of(directory, LIMITS, ahead=True)


def test_a_row_follows_a_prompt_and_a_row_that_decodes(ahead: Steps) -> None:
    first, second = Row([3, 4, 5], 0, [0, 1], GREEDY), Row([7], 0, [2, 3], GREEDY)
    ahead.launch([first, second])
    chosen = ahead.collect()
    assert all(isinstance(each, Chosen) for each in chosen)
    tokens = [each.token for each in chosen if isinstance(each, Chosen)]
    again = [Row([tokens[0]], 3, [0, 1], GREEDY), Row([tokens[1]], 1, [2, 3], GREEDY)]
    ahead.launch(again)
    expected = ahead.collect()
    ahead.launch([first, second])
    # In another order, beside a prompt whose result would overwrite theirs.
    following = [again[1]._replace(tokens=(0,), follows=1), again[0]._replace(tokens=(0,), follows=0)]
    ahead.launch([Row([9, 8, 7], 0, [5], GREEDY), *following])
    assert ahead.collect() == chosen
    found = ahead.collect()
    assert [found[2], found[1]] == expected
    ahead.close()


def test_a_step_that_fails_does_not_fail_the_one_behind_it(ahead: Steps) -> None:
    good = Row([3, 4, 5], 0, [0, 1], GREEDY)
    ahead.launch([good])
    expected = ahead.collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "_compute_prompts", lambda rows: 1 / 0)
        ahead.launch([good])
    ahead.launch([Row((0,), 3, [0, 1], GREEDY, follows=0), good._replace(blocks=[4, 5])])
    with pytest.raises(ModelFailed, match="division by zero"):
        ahead.collect()
    assert ahead.collect()[1:] == expected
    ahead.close()


def test_two_in_flight_at_most(ahead: Steps) -> None:
    row = Row([3, 4, 5], 0, [0, 1], GREEDY)
    ahead.launch([row])
    ahead.launch([row])
    with pytest.raises(Internal, match="before an earlier one was collected"):
        ahead.launch([row])
    assert ahead.collect() == ahead.collect()
    ahead.close()
