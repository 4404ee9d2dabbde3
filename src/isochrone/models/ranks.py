"""How many processes, its ranks, one instance of a torch model has: ``tensor_parallel`` × ``pipeline_parallel``."""

from __future__ import annotations

from typing import Any

TENSOR_KEY, PIPELINE_KEY = "tensor_parallel", "pipeline_parallel"
#: As a completed configuration has it. Models of other backends may have parameters of these names.
_BACKEND = "pytorch"


def has_ranks(config: Any) -> bool:
    """Whether a configuration speaks of ranks: then the model is a ``model.py`` with its weights."""
    return any(_given(config, key) for key in (TENSOR_KEY, PIPELINE_KEY))


def rank_count(config: Any) -> int:
    """The ranks of one instance, by a completed configuration; 1 if a number is invalid, which the backend rejects."""
    if config.backend != _BACKEND:
        return 1
    numbers = [_given(config, key) or "1" for key in (TENSOR_KEY, PIPELINE_KEY)]
    if not all(number.isdecimal() for number in numbers):
        return 1
    return max(1, int(numbers[0]) * int(numbers[1]))


def _given(config: Any, key: str) -> str:
    for name in (key, key.upper()):
        if name in config.parameters:
            return str(config.parameters[name].string_value).strip()
    return ""
