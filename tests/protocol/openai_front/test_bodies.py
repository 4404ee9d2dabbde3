"""Bodies of chat completions and completions: what is read, what is ignored, what is rejected by name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_strategies import json_values

from isochrone.protocol.openai.answers import InvalidParameter
from isochrone.protocol.openai.chat_body import read_chat
from isochrone.protocol.openai.completion_body import read_completion

HI = [{"role": "user", "content": "hi"}]


def chat(**options: Any) -> Any:
    return read_chat({"model": "m", "messages": HI, **options})


def completion(**options: Any) -> Any:
    return read_completion({"model": "m", "prompt": "hi", **options})


def test_the_least() -> None:
    call = chat()
    assert (call.model, call.is_chat, call.choices, call.streams) == ("m", True, 1, False)
    assert json.loads(call.prompts[0]) == HI
    assert (call.sampling, call.parameters, call.logprobs) == ({}, {}, None)
    assert completion().prompts == ("hi",)


def test_everything() -> None:
    call = chat(
        max_completion_tokens=7,
        temperature=1.5,
        top_p=1,
        top_k=-1,
        seed=1 << 62,
        stop=["a", "b"],
        n=3,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        logprobs=True,
        top_logprobs=2,
        priority=1,
        time_to_first_token_ms=100,
        inter_token_ms=5,
        ignore_eos=True,
    )
    assert call.sampling == {
        "max_tokens": 7,
        "temperature": 1.5,
        "top_p": 1,
        "top_k": -1,
        "seed": 1 << 62,
        "stop": ["a", "b"],
        "ignore_eos": True,
    }
    assert (call.choices, call.streams, call.includes_usage, call.logprobs) == (3, True, True, 2)
    assert call.parameters == {"priority": 1, "time_to_first_token_ms": 100.0, "inter_token_ms": 5.0}


@pytest.mark.parametrize(
    "options",
    [
        {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "flex", "prediction": {}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "functions": None},
        {"response_format": {"type": "text"}, "modalities": ["text"], "audio": None, "logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "reasoning_effort": None},
        {"n": None, "stop": None, "seed": None, "max_tokens": None, "stream": None, "logprobs": None},
        {"stop": [], "max_tokens": None, "stream_options": None},
    ],
)
def test_what_asks_for_nothing_is_ignored(options: dict[str, Any]) -> None:
    assert chat(**options) == chat()


@pytest.mark.parametrize(
    ("options", "parameter", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": ""}, "model", "invalid_value"),
        ({"messages": None}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": [3]}, "messages[0]", "invalid_value"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [*HI, {"role": "user"}]}, "messages[1].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x", "name": 3}]}, "messages[0].name", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "unsupported_parameter"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[0]",
            "unsupported_parameter",
        ),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"temperature": float("nan")}, "temperature", "invalid_value"),
        ({"top_p": 1.1}, "top_p", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 1 << 31}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 1 << 31}, "max_completion_tokens", "invalid_value"),
        ({"top_k": 1 << 31}, "top_k", "invalid_value"),
        ({"stop": "a" * 1025}, "stop", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"seed": 1 << 63}, "seed", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": 3}, "stop", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"stream": True, "stream_options": []}, "stream_options", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": 2}, "logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"priority": -1}, "priority", "invalid_value"),
        ({"inter_token_ms": 0}, "inter_token_ms", "invalid_value"),
        ({"tools": [{}]}, "tools", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "unsupported_parameter"),
        ({"presence_penalty": 1}, "presence_penalty", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        ({"prompt": "x"}, "prompt", "unknown_parameter"),
    ],
)
def test_what_is_rejected_in_a_chat(options: dict[str, Any], parameter: str, code: str | None) -> None:
    with pytest.raises(InvalidParameter) as caught:
        chat(**options)
    assert (caught.value.parameter, caught.value.error_code) == (parameter, code)
    assert parameter in caught.value.message


@pytest.mark.parametrize(
    ("options", "parameter", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [1, 2]}, "prompt", "unsupported_parameter"),
        ({"prompt": [[1, 2], [3]]}, "prompt", "unsupported_parameter"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 129}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 65, "n": 2}, "n", "invalid_value"),
        ({"echo": True, "logprobs": 1}, "echo", "unsupported_parameter"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"messages": HI}, "messages", "unknown_parameter"),
        ({"max_completion_tokens": 3}, "max_completion_tokens", "unknown_parameter"),
    ],
)
def test_what_is_rejected_in_a_completion(options: dict[str, Any], parameter: str, code: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        completion(**options)
    assert (caught.value.parameter, caught.value.error_code) == (parameter, code)


def test_roles_and_parts() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "eve"},
        {"role": "assistant", "content": None, "refusal": None},
    ]
    assert json.loads(chat(messages=messages).prompts[0]) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab", "name": "eve"},
        {"role": "assistant", "content": ""},
    ]


@given(
    st.dictionaries(st.sampled_from(["model", "messages", "prompt", "n", "stop", "stream", "logprobs"]), json_values)
)
def test_any_values(body: dict[str, Any]) -> None:
    """Nothing but the error that names a parameter."""
    for read in (read_chat, read_completion):
        with contextlib.suppress(InvalidParameter):
            read(body)
