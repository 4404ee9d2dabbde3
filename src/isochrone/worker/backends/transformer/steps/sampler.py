"""Chooses the next token of each row from its logits, on the device, without waiting for it.

What a row gets depends on nothing of the other rows: the choice is made in the order of the vocabulary in every case,
although rows that limit their tokens (top-k, top-p) need a sort and others do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isochrone.worker.backends.generative import Sampling

#: How much of the work a step's rows need: the most probable token; all tokens; some of the tokens.
GREEDY, PLAIN, LIMITED = "greedy", "plain", "limited"
KINDS = (GREEDY, PLAIN, LIMITED)


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """The values of ``Sampling`` by row: float32, but ``top_k`` int32."""

    temperature: Any
    top_k: Any
    top_p: Any
    uniform: Any


def kind_of(sampling: Sequence[Sampling | None]) -> str:
    """The least work that is right for all rows."""
    kind = GREEDY
    for each in sampling:
        if each is None or each.temperature <= 0:
            continue
        if each.top_k > 0 or each.top_p < 1:
            return LIMITED
        kind = PLAIN
    return kind


def choose(logits: Any, sampling: SamplingTensors, kind: str) -> Any:
    """Float64 [2, rows]: the tokens, and the logarithms of their probabilities by the unmodified ``logits``.

    One tensor, so that one copy brings both to the host; float64 holds every token number exactly.
    """
    tokens = logits.argmax(-1)
    if kind != GREEDY:
        tokens = torch.where(sampling.temperature > 0, _sampled(logits, sampling, kind), tokens)
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return torch.stack((tokens.double(), (chosen - logits.logsumexp(-1)).double()))


def _sampled(logits: Any, sampling: SamplingTensors, kind: str) -> Any:
    temperature = torch.where(sampling.temperature > 0, sampling.temperature, 1.0).unsqueeze(-1)
    # Relative to the largest: a small temperature must not overflow.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    if kind == LIMITED:
        scaled = scaled.masked_fill(~_kept(scaled, sampling), float("-inf"))
    # Sums of many small numbers: float32 would lose the last of them.
    cumulated = scaled.double().softmax(-1).cumsum(-1)
    total = cumulated[:, -1:]
    # Below the total, whatever is rounded: a token is found, and one with a probability above 0.
    target = torch.minimum(sampling.uniform.double().unsqueeze(-1) * total, torch.nextafter(total, total - 1))
    # Logits that are not numbers have no place; an index outside of them would end the process on a GPU.
    return torch.searchsorted(cumulated, target, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)


def _kept(scaled: Any, sampling: SamplingTensors) -> Any:
    """Which tokens top-k and then top-p leave. Of equal ones the first of the vocabulary come first."""
    ordered, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(scaled.shape[-1], device=scaled.device)
    top_k = sampling.top_k.unsqueeze(-1)
    outside = (ranks >= top_k) & (top_k > 0)
    probabilities = ordered.double().masked_fill(outside, float("-inf")).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    top_p = sampling.top_p.double().unsqueeze(-1)
    # The most probable token always stays, also where top_p is 0.
    kept = ~outside & ((before < top_p) | (top_p >= 1) | (ranks == 0))
    return torch.zeros_like(kept).scatter_(-1, tokens, kept)
