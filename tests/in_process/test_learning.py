"""Outputs that are learned from calls: sizes, types, free sizes, and models from which nothing can be learned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from isochrone.errors import ConfigError, ModelFailed
from isochrone.in_process.learning import learn_outputs
from isochrone.in_process.tensor_types import parse_types


def learned(infer: Any, inputs: dict[str, str], example: Any = None, batched: bool = False) -> dict[str, str]:
    found = learn_outputs(infer, parse_types(inputs, "here", "inputs"), example, batched, "here")
    return {name: str(type_) for name, type_ in found.items()}


def test_sizes_are_those_of_the_call() -> None:
    calls = []

    def infer(inputs: Any) -> Any:
        calls.append(inputs["x"].shape)
        return {"y": inputs["x"].sum(axis=-1), "n": [1, 2]}

    assert learned(infer, {"x": "FP32[3,4]"}) == {"y": "FP32[3]", "n": "INT64[2]"}
    assert calls == [(3, 4)]


def test_sizes_that_follow_a_free_size_are_free() -> None:
    calls = []

    def infer(inputs: Any) -> Any:
        calls.append(inputs["x"].shape)
        return {"same": inputs["x"], "fixed": np.zeros(1, np.float32), "longer": np.append(inputs["x"], inputs["x"], 0)}

    assert learned(infer, {"x": "FP32[-1,2]"}) == {"same": "FP32[-1,2]", "fixed": "FP32[1]", "longer": "FP32[-1,2]"}
    assert calls == [(1, 2), (2, 2)]


def test_the_example_is_used_and_grown() -> None:
    given = []

    def infer(inputs: Any) -> Any:
        given.append(inputs["x"].tolist())
        return {"y": inputs["x"]}

    assert learned(infer, {"x": "FP32[-1]"}, {"x": np.float32([5, 6])}) == {"y": "FP32[-1]"}
    assert given == [[5, 6], [5, 6, 6]]


def test_a_batched_model_is_called_with_one_row() -> None:
    calls = []

    def infer(inputs: Any) -> Any:
        calls.append(inputs["x"].shape)
        return {"y": inputs["x"] * 2}

    assert learned(infer, {"x": "FP32[3]"}, batched=True) == {"y": "FP32[3]"}
    assert calls == [(1, 3)]
    with pytest.raises(ConfigError, match=r"output 'y': expected a first axis of 1.*given shape \[3\]"):
        learned(lambda inputs: {"y": inputs["x"][0]}, {"x": "FP32[3]"}, batched=True)


def test_a_generator_is_asked_for_one_response_and_closed() -> None:
    ended = []

    def infer(inputs: Any) -> Iterator[Any]:
        try:
            while True:
                yield {"y": inputs["x"]}
        finally:
            ended.append(True)

    assert learned(infer, {"x": "INT32[1]"}) == {"y": "INT32[1]"}
    assert ended == [True]


def test_an_async_generator_is_asked_on_a_loop_of_its_own() -> None:
    ended = []

    async def infer(inputs: Any) -> AsyncIterator[Any]:
        try:
            yield {"y": inputs["x"]}
            yield {"y": inputs["x"]}
        finally:
            ended.append(True)

    assert learned(infer, {"x": "INT32[1]"}) == {"y": "INT32[1]"}
    assert ended == [True]


async def _fails(inputs: Any) -> AsyncIterator[Any]:
    raise ValueError("no")
    yield


def _writes(inputs: Any) -> Any:
    inputs["x"] *= 2
    return {"y": inputs["x"]}


def _yields_nothing(inputs: Any) -> Iterator[Any]:
    yield from ()


@pytest.mark.parametrize(
    ("infer", "kind", "words"),
    [
        (lambda inputs: None, ConfigError, "expected a dict of output name to array, given None"),
        (lambda inputs: inputs["x"], ConfigError, "given a ndarray"),
        (lambda inputs: {}, ConfigError, "expected a dict"),
        (lambda inputs: {"y": np.zeros(1, np.complex64)}, ConfigError, "output 'y': expected an array of a datatype"),
        (lambda inputs: 1 / 0, ModelFailed, "with x FP32[2], raised ZeroDivisionError"),
        (_writes, ModelFailed, "read-only (inputs are read-only; a model that changes one needs a copy"),
        (_fails, ModelFailed, "raised ValueError: no"),
        (_yields_nothing, ConfigError, "expected at least one response"),
    ],
)
def test_a_model_from_which_nothing_can_be_learned(infer: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        learned(infer, {"x": "FP32[2]"})
    assert words in str(caught.value)


def test_an_output_whose_rank_depends_on_a_size_must_be_stated() -> None:
    def infer(inputs: Any) -> Any:
        return {"y": np.zeros((1,) * len(inputs["x"]), np.float32)}

    with pytest.raises(ConfigError, match=r"one datatype and rank.*FP32\[1\] and, with larger inputs, FP32\[1,1\]"):
        learned(infer, {"x": "FP32[-1]"})
