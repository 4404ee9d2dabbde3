"""Steps over the paged cache give what one pass over the whole sequence gives, however tokens are cut into chunks,
whatever rows are beside them, and wherever their blocks are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generation_models import CONFIGS, VOCABULARY, SampleModel, context_for, reference_logits
from isochrone.errors import InvalidArgument
from isochrone.worker.backends.generative import Chosen, GenerativeExecutable, Row, Sampling
from isochrone.worker.backends.transformer.backend import load

GREEDY = Sampling(temperature=0.0)
BLOCK = 4
PARAMETERS = {"block_tokens": str(BLOCK), "max_rows": "5", "prefill_tokens": "24", "kv_cache_tokens": "512"}


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def loaded(request: pytest.FixtureRequest, sample_model: SampleModel) -> Iterator[tuple[Path, GenerativeExecutable]]:
    directory = sample_model(request.param)
    executable = load(context_for(directory, "instance_group { kind: KIND_CPU }", **PARAMETERS))
    yield directory, executable
    executable.close()


def tokens_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def step(executable: GenerativeExecutable, rows: list[Row]) -> list[Chosen | None]:
    executable.launch(rows)
    return executable.collect()


def check(chosen: Chosen | None, logits: np.ndarray) -> None:
    """The most probable token, with its probability."""
    assert chosen is not None
    log_probabilities = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert log_probabilities.max() == pytest.approx(log_probabilities[chosen.token], abs=1e-4)
    assert chosen.log_probability == pytest.approx(log_probabilities[chosen.token], abs=1e-4)


def test_a_prompt_and_its_answer(loaded: tuple[Path, GenerativeExecutable]) -> None:
    directory, executable = loaded
    tokens = tokens_of(13, 1)
    blocks = [7, 3, 100, 0, 9, 1]
    (first,) = step(executable, [Row(tokens, 0, blocks, GREEDY)])
    check(first, reference_logits(directory, tokens)[-1])
    for _ in range(6):
        assert first is not None
        tokens.append(first.token)
        (first,) = step(executable, [Row(tokens[-1:], len(tokens) - 1, blocks, GREEDY)])
        check(first, reference_logits(directory, tokens)[-1])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 2**16))
def test_chunks_mates_and_blocks_make_no_difference(
    loaded: tuple[Path, GenerativeExecutable], lengths: list[int], seed: int
) -> None:
    directory, executable = loaded
    shuffle = random.Random(seed)
    free = list(range(executable.limits.blocks))
    shuffle.shuffle(free)
    sequences = [tokens_of(length, own) for own, length in enumerate(lengths, seed)]
    blocks = [[free.pop() for _ in range(-(-length // BLOCK))] for length in lengths]
    done = [0] * len(lengths)
    while any(count < length for count, length in zip(done, lengths, strict=True)):
        rows, members, budget = [], [], executable.limits.prefill_tokens
        for number in shuffle.sample(range(len(lengths)), len(lengths)):
            left = lengths[number] - done[number]
            count = shuffle.randint(0, min(left, budget, 11))
            if count == 0:
                continue
            budget -= count
            part = sequences[number][done[number] : done[number] + count]
            rows.append(Row(part, done[number], blocks[number], GREEDY if count == left else None))
            members.append(number)
        if not rows:
            continue
        for number, row, chosen in zip(members, rows, step(executable, rows), strict=True):
            done[number] += len(row.tokens)
            if row.sampling is None:
                assert chosen is None
            else:
                check(chosen, reference_logits(directory, sequences[number])[-1])


def test_a_sampled_row_does_not_depend_on_its_mates(loaded: tuple[Path, GenerativeExecutable]) -> None:
    _, executable = loaded
    plain = Sampling(temperature=1.3, uniform=0.61)
    alone = step(executable, [Row([5], 0, [3], plain)])[0]
    for mate in (GREEDY, Sampling(0.7, 5, 0.9, 0.2), Sampling(1.0, 0, 0.5, 0.9)):
        rows = [Row([9], 0, [8], mate), Row([5], 0, [3], plain), Row([7, 8, 9], 0, [2], mate)]
        together = step(executable, rows)[1]
        assert alone is not None
        assert together is not None
        assert together.token == alone.token


def test_warm_steps_leave_blocks_alone(loaded: tuple[Path, GenerativeExecutable]) -> None:
    directory, executable = loaded
    tokens = tokens_of(9, 4)
    step(executable, [Row(tokens[:8], 0, [0, 127, 1], None)])
    executable.warm_steps()
    (chosen,) = step(executable, [Row(tokens[8:], 8, [0, 127, 1], GREEDY)])
    check(chosen, reference_logits(directory, tokens)[-1])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows of a step: expected 1 to 5, given 0"),
        ([Row([1], 0, [1], GREEDY)] * 6, "rows of a step: expected 1 to 5, given 6"),
        ([Row([VOCABULARY], 0, [1], GREEDY)], "token: expected 0 to 319, given 320"),
        ([Row([-1], 0, [1], GREEDY)], "token: expected 0 to 319, given -1"),
        ([Row([], 0, [1], GREEDY)], "row of a step: expected tokens, given none"),
        ([Row([1], -1, [1], GREEDY)], "expected positions from 0 to 95, given -1 to -1"),
        ([Row([1, 1], 0, [-1], GREEDY)], r"block: expected 0 to 127, given \[-1\]"),
        ([Row([1], 4, [1], GREEDY)], "blocks of a sequence: expected at least 2, given 1"),
        (
            [Row([1], 96, list(range(30)), GREEDY)],
            "tokens of a sequence: expected positions from 0 to 95, given 96 to 96",
        ),
        ([Row([1] * 25, 0, list(range(30)), GREEDY)], "tokens of prompts: expected at most 24, given 25"),
        ([Row([1], 0, [129], GREEDY)], r"block: expected 0 to 127, given \[129\]"),
    ],
)
def test_wrong_rows_fail_the_step_and_not_the_next(sample_model: SampleModel, rows: list[Row], message: str) -> None:
    executable = load(context_for(sample_model("llama"), "instance_group { kind: KIND_CPU }", **PARAMETERS))
    executable.launch(rows)
    with pytest.raises(InvalidArgument, match=message):
        executable.collect()
    assert step(executable, [Row([1], 0, [1], GREEDY)])[0] is not None
    executable.close()
