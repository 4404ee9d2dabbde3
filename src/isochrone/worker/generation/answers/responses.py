"""The tensors of a response: those of Triton's backend for vLLM.

Most responses of a stream have one token, and most of their tensors are like those of others: small ones are made once
and shared, read-only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.worker.backends.generative import Chosen
from isochrone.worker.generation.requests.requests import GenerationRequest

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors


@dataclass(slots=True)
class Piece:
    """A part of an answer: text, and the tokens that it came with."""

    text: str = ""
    chosen: list[Chosen] = field(default_factory=list)


def response(
    request: GenerationRequest,
    piece: Piece,
    prompt_tokens: int,
    cumulative: float,
    finish_reason: str | None,
    decode: Callable[[Sequence[int]], str],
    outputs: tuple[str, ...] | None,
) -> Tensors:
    """``cumulative``: the logarithm of the probability of all tokens so far; ``outputs``: what was asked for."""
    text = piece.text
    tensors: dict[str, Any] = {"text_output": _short_text(text) if len(text) <= _SHORT else _text(text)}
    extra = request.extra
    if extra:
        if "finish_reason" in extra:
            # Triton's vLLM backend writes Python's None while there is more to come.
            tensors["finish_reason"] = _short_text(str(finish_reason))
        if "cumulative_logprob" in extra:
            tensors["cumulative_logprob"] = np.array([cumulative], np.float32)
        if "logprobs" in extra:
            tensors["logprobs"] = _text(_log_probabilities(piece.chosen, decode))
        if "num_input_tokens" in extra:
            tensors["num_input_tokens"] = _count(prompt_tokens)
        if "num_output_tokens" in extra:
            tensors["num_output_tokens"] = _count(len(piece.chosen))
    if outputs is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if name in outputs}
    return tensors


def _log_probabilities(chosen: Sequence[Chosen], decode: Callable[[Sequence[int]], str]) -> str:
    """A list with an object per token, in vLLM's form. The rank is not known."""
    return json.dumps(
        [
            {
                str(each.token): {
                    "logprob": each.log_probability,
                    "rank": None,
                    "decoded_token": decode((each.token,)),
                }
            }
            for each in chosen
        ]
    )


#: Longer texts are rarely those of one token.
_SHORT = 24


def _text(text: str) -> Any:
    array = np.empty(1, np.object_)
    array[0] = text.encode("utf-8", "replace")
    return array


@lru_cache(maxsize=1 << 15)
def _short_text(text: str) -> Any:
    array = _text(text)
    array.setflags(write=False)
    return array


@lru_cache(maxsize=1 << 12)
def _count(number: int) -> Any:
    array = np.array([number], np.uint32)
    array.setflags(write=False)
    return array
