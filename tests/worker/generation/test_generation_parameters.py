"""Parameters of requests: what is accepted, what is rejected and how, and the drawing of tokens."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND
from isochrone.errors import InvalidArgument
from isochrone.worker.generation.requests.sampling import Draws, GenerationParameters, read_parameters, uniform


def test_defaults_are_those_of_vllm() -> None:
    assert read_parameters({}) == GenerationParameters(max_tokens=16, temperature=1.0, top_p=1.0, top_k=0)


def test_every_parameter() -> None:
    read = read_parameters(
        {
            "max_tokens": 5,
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 40,
            "stop": "x",
            "seed": 3,
            "ignore_eos": True,
            "min_tokens": 2,
            "time_to_first_token_ms": 250,
            "inter_token_ms": 2.5,
            "triton_forwarded": "anything",
        }
    )
    times = (250 * MILLISECOND, 2_500_000)
    assert read == GenerationParameters(5, 0.0, 0.5, 40, ("x",), 3, True, 2, *times)


def test_json_with_the_strings_of_tritons_clients() -> None:
    text = json.dumps(
        {"temperature": "0.1", "top_p": "0.95", "max_tokens": "100", "top_k": -1, "stop": ["a", "b", "a"]}
    )
    read = read_parameters({"max_tokens": 7}, text.encode())
    assert read == GenerationParameters(max_tokens=7, temperature=0.1, top_p=0.95, top_k=0, stop=("a", "b"))


def test_defaults_of_the_model() -> None:
    defaults = GenerationParameters(max_tokens=200, temperature=0.5)
    assert read_parameters({"temperature": 1}, None, defaults) == GenerationParameters(200, 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_tokens", value) for value in (0, -1, 1.5, True, "many", math.nan, "9" * 40, [1])),
        *(("temperature", value) for value in (-0.1, 2.1, math.nan, math.inf, True, "hot", [1], "nan")),
        *(("top_p", value) for value in (0, 1.1, -1, math.nan, False, "")),
        *(("top_k", value) for value in (-2, 1.5, True, "x")),
        *(("stop", value) for value in (5, True, [""], [1], ["x"] * 17, "", {"a": 1}, ["x" * 2000])),
        *(("seed", value) for value in (1.5, True, "x", 1 << 64)),
        *(("ignore_eos", value) for value in (1, 0, "yes", [True])),
        *(("min_tokens", value) for value in (-1, True, 17)),
        *(("time_to_first_token_ms", value) for value in (0, -1, math.nan, True, "soon")),
        *(("inter_token_ms", value) for value in (0, -1, math.inf, True)),
        *(("n", value) for value in (2, 0, True)),
        ("presence_penalty", 0.5),
        ("repetition_penalty", 1.2),
        ("logprobs", 5),
    ],
)
def test_wrong_values_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"parameter '{name}': expected .*, given "):
        read_parameters({name: value})
    with pytest.raises(InvalidArgument, match=f"parameter '{name}'"):
        read_parameters({}, json.dumps({name: value}).encode())


def test_unknown_names() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'temperature'"):
        read_parameters({"temprature": 1})
    with pytest.raises(InvalidArgument, match=r"expected one of max_tokens, .*, given 'guided_json'"):
        read_parameters({}, b'{"guided_json": {}}')
    for text in (b"", b"5", b"[]", b"{", b"[" * 100_000):
        with pytest.raises(InvalidArgument, match="sampling_parameters: expected a JSON object"):
            read_parameters({}, text)


@given(st.dictionaries(st.sampled_from(["max_tokens", "temperature", "stop", "seed", "n"]), st.from_type(object)))
def test_nothing_else_is_raised(parameters: dict[str, Any]) -> None:
    try:
        read_parameters(parameters)
    except InvalidArgument:
        pass


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(0, 1 << 20))
def test_uniform_is_in_its_range_and_the_same_again(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0
    assert uniform(seed, position) == uniform(seed, position)


def test_uniform_is_uniform_over_positions_and_over_seeds() -> None:
    for draws in ([uniform(1, position) for position in range(4000)], [uniform(seed, 7) for seed in range(4000)]):
        assert len(set(draws)) == 4000
        counts = [sum(tenth / 10 <= draw < (tenth + 1) / 10 for draw in draws) for tenth in range(10)]
        assert all(320 < count < 480 for count in counts)
    # Neighbouring seeds do not give each other's numbers one position later.
    assert not {uniform(1, position) for position in range(500)} & {uniform(2, position) for position in range(500)}


@given(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.lists(st.integers(0, 300) | st.integers(0, 1 << 20), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.7]),
)
def test_draws_are_the_same_in_any_order(seed: int, positions: list[int], temperature: float) -> None:
    parameters = GenerationParameters(temperature=temperature, top_k=3, top_p=0.5, seed=seed)
    draws = Draws(parameters)
    for first in positions:
        for position in range(first, first + 70, 23):
            assert draws.at(position) == parameters.sampling(position)


def test_without_a_seed_a_random_one() -> None:
    parameters = read_parameters({})
    assert parameters.seeded().seed != parameters.seeded().seed
    assert read_parameters({"seed": 0}).seeded().seed == 0
