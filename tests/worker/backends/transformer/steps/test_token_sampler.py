"""The sampler against a simple one in numpy, row by row; and what it must keep to whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isochrone.worker.backends.generative import Sampling
from isochrone.worker.backends.transformer.steps.sampler import (
    GREEDY,
    LIMITED,
    PLAIN,
    SamplingTensors,
    choose,
    kind_of,
)

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 1000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
)


def tensors(samplings: list[Sampling]) -> SamplingTensors:
    return SamplingTensors(
        torch.tensor([each.temperature for each in samplings], dtype=torch.float32),
        torch.tensor([each.top_k for each in samplings], dtype=torch.int32),
        torch.tensor([each.top_p for each in samplings], dtype=torch.float32),
        torch.tensor([each.uniform for each in samplings], dtype=torch.float32),
    )


def probabilities(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, float]:
    """Of every token, after the limits; and how near to a limit the nearest token is."""
    scaled = (logits.astype(np.float64) - logits.max()) / np.float32(sampling.temperature)
    order = sorted(range(len(logits)), key=lambda token: (-scaled[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    shares = np.exp(scaled[order])
    shares /= shares.sum()
    margin, kept, before = 1.0, [], 0.0
    for token, share in zip(order, shares, strict=True):
        margin = min(margin, abs(before - np.float32(sampling.top_p)))
        if kept and sampling.top_p < 1 and before >= np.float32(sampling.top_p):
            break
        kept.append(token)
        before += share
    result = np.zeros(len(logits))
    result[kept] = np.exp(scaled[kept])
    return result / result.sum(), 1.0 if sampling.top_p >= 1 else margin


@settings(max_examples=150, deadline=None)
@given(samplings=st.lists(SAMPLINGS, min_size=1, max_size=6), seed=st.integers(0, 2**16), size=st.integers(2, 60))
def test_rows_are_chosen_as_one_by_one_in_numpy(samplings: list[Sampling], seed: int, size: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, (len(samplings), size)).astype(np.float32)
    chosen = choose(torch.from_numpy(logits), tensors(samplings), kind_of(samplings)).numpy()
    for row, (sampling, token, log_probability) in enumerate(zip(samplings, *chosen, strict=True)):
        expected = logits[row] - logits[row].max()
        expected = expected - np.log(np.exp(expected).sum())
        assert log_probability == pytest.approx(expected[int(token)], abs=1e-4)
        if sampling.temperature == 0:
            assert token == logits[row].argmax()
            continue
        shares, margin = probabilities(logits[row], sampling)
        cumulated = shares.cumsum()
        # Within rounding of a border either side is right.
        assume(margin > 1e-5)
        low, high = cumulated[int(token)] - shares[int(token)], cumulated[int(token)]
        assert shares[int(token)] > 0
        assert low - 1e-5 <= sampling.uniform <= high + 1e-5


@settings(max_examples=60, deadline=None)
@given(samplings=st.lists(SAMPLINGS, min_size=2, max_size=6), seed=st.integers(0, 2**16))
def test_a_row_does_not_depend_on_the_others(samplings: list[Sampling], seed: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (len(samplings), 50)).astype(np.float32))
    together = choose(logits, tensors(samplings), kind_of(samplings))
    for row, sampling in enumerate(samplings):
        alone = choose(logits[row : row + 1], tensors([sampling]), kind_of([sampling]))
        assert alone[0, 0] == together[0, row]


@pytest.mark.parametrize("uniform", [0.0, 0.5, float(np.nextafter(np.float32(1), np.float32(0)))])
@pytest.mark.parametrize("kind", [PLAIN, LIMITED])
def test_a_token_without_probability_is_never_chosen(uniform: float, kind: str) -> None:
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, 500:503] = 1.0
    token = choose(logits, tensors([Sampling(1.0, 0, 1.0, uniform)]), kind)[0, 0]
    assert token in (500, 501, 502)


def test_a_tiny_temperature_is_greedy_and_not_an_overflow() -> None:
    logits = torch.tensor([[1e4, 3e4, 2e4]])
    assert choose(logits, tensors([Sampling(1e-30, 0, 1.0, 0.99)]), PLAIN)[:, 0].tolist() == [1, 0]


def test_uniforms_give_the_probabilities_back() -> None:
    count = 4000
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]])).repeat(count, 1)
    samplings = [Sampling(1.0, 0, 1.0, (number + 0.5) / count) for number in range(count)]
    tokens = choose(logits, tensors(samplings), PLAIN)[0].numpy().astype(int)
    assert np.bincount(tokens).tolist() == pytest.approx([400, 800, 1200, 1600], abs=1)


def test_the_kind_is_the_least_that_is_right() -> None:
    greedy, plain, limited = Sampling(0.0, 5, 0.5), Sampling(1.0), Sampling(1.0, 3)
    assert kind_of([greedy, None]) == GREEDY
    assert kind_of([greedy, plain]) == PLAIN
    assert kind_of([plain, limited, greedy]) == LIMITED
    assert kind_of([Sampling(1.0, 0, 0.9)]) == LIMITED
