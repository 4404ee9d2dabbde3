"""What the gateway reads of requests for text: model, stream, priority, and how prompts begin."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument, IsochroneError, PayloadTooLarge
from isochrone.gateway.traffic.parameters import NONE, Parameters
from isochrone.gateway.traffic.prompts import GenerateFields, TokenTimes, generate_fields, openai_fields

MS = 1_000_000


def test_a_chat() -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"messages": messages, "model": "m@2", "stream": True, "priority": 3, "n": 2}).encode()
    fields = openai_fields(body)
    assert fields == ("m@2", True, 3, json.dumps(messages).encode(), None)


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2]])
def test_a_completion(prompt: object) -> None:
    fields = openai_fields(json.dumps({"model": "m", "prompt": prompt, "stream": False}).encode())
    assert fields == ("m", False, 0, json.dumps(prompt).encode(), None)


@pytest.mark.parametrize("body", [b'{"model": 3, "stream": "x", "priority": "high"}', b"{}", b'{"model": null}'])
def test_what_is_wrong_is_for_the_worker(body: bytes) -> None:
    assert openai_fields(body) == ("", False, 0, b"", None)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"model": "\xff"}', b"[" * 100_000])
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="failed to parse"):
        openai_fields(body)


def test_what_is_too_large() -> None:
    with pytest.raises(PayloadTooLarge):
        openai_fields(b" " * (17 << 20))


def test_a_long_prompt_is_cut() -> None:
    body = json.dumps({"model": "m", "prompt": "x" * 100_000}).encode()
    assert len(openai_fields(body).prompt) == 64 * 1024


def generate_prompt(body: bytes) -> bytes:
    return generate_fields(body, True).prompt


def test_generate() -> None:
    assert generate_prompt(b'{"text_input": "hello", "id": "1"}') == b'"hello"'
    assert generate_prompt(b'{"messages": "[]", "stream": true}') == b'"[]"'
    assert generate_prompt(b'{"IN": [1]}') == b""
    assert generate_prompt(b"{") == b""
    assert generate_prompt(b'{"text_input": "%b"}' % (b"x" * (300 << 10))) == b""
    assert generate_fields(b'{"text_input": "hello"}', False) == GenerateFields()


@pytest.mark.parametrize("reads_prompt", [True, False])
@pytest.mark.parametrize("size", [1, 10_000, 300_000])
def test_deadlines_of_tokens_of_generate(reads_prompt: bool, size: int) -> None:
    prompt = {"text_input": "x" * size}
    first, between = {"time_to_first_token_ms": 200}, {"inter_token_ms": "12.5"}
    for body in (
        {**prompt, **first, **between},
        {**first, **prompt, **between},
        {**prompt, "parameters": {**first, **between, "priority": 2}},
        {**first, **prompt, "parameters": {"priority": 2, **between}},
    ):
        fields = generate_fields(json.dumps(body).encode(), reads_prompt)
        assert fields.tokens == TokenTimes(200 * MS, 12_500_000)
        assert fields.parameters == (Parameters(priority=2) if "parameters" in body else NONE)
        assert bool(fields.prompt) == (reads_prompt and size < 256 * 1024)
    assert generate_fields(json.dumps({**prompt, **first}).encode(), reads_prompt).tokens == TokenTimes(200 * MS, 0)
    # One of the prompt's text, and one of an inner object, are not the request's.
    for text in (', "inter_token_ms": 5}', '"inter_token_ms": 5'):
        body = {"text_input": "x" * size + text, "other": {"inter_token_ms": 7}}
        assert generate_fields(json.dumps(body).encode(), reads_prompt).tokens is None


@pytest.mark.parametrize("reads_prompt", [True, False])
@pytest.mark.parametrize("size", [1, 10_000, 300_000])
def test_parameters_beside_the_prompt_of_generate(reads_prompt: bool, size: int) -> None:
    """To workers, each member that names no input is a parameter."""
    prompt = {"text_input": "x" * size}
    some, others = {"priority": 1, "timeout": 3_000}, {"sequence_id": 7, "sequence_start": True}
    for body in (
        {**prompt, **some, **others},
        {**some, **others, **prompt},
        {**some, **prompt, "inter_token_ms": 5, **others},
        {**prompt, **some, "parameters": others},
        {**some, **prompt, "parameters": {"inter_token_ms": 5, **others}},
    ):
        fields = generate_fields(json.dumps(body).encode(), reads_prompt)
        assert fields.parameters == Parameters(b"7", 3 * MS, 1, True)
    # Those of the prompt's text and of an inner object are not the request's, and wrong ones are for the worker.
    for wrong in (
        {"text_input": "x" * size + ', "priority": 1}', "other": {"priority": 1}},
        {**prompt, "priority": "high", "timeout": -1, "sequence_id": [7], "sequence_start": {}},
    ):
        assert generate_fields(json.dumps(wrong).encode(), reads_prompt).parameters == NONE


def test_deadlines_of_tokens_of_a_call() -> None:
    body: dict[str, Any] = {"model": "m", "prompt": "x", "inter_token_ms": 12.5}
    assert openai_fields(json.dumps(body).encode()).tokens == TokenTimes(0, 12_500_000)
    body["time_to_first_token_ms"] = 200
    assert openai_fields(json.dumps(body).encode()).tokens == TokenTimes(200 * MS, 12_500_000)


@pytest.mark.parametrize("value", [None, True, 0, -1, "soon", "nan", "1e400", 1e10, 10**400, [5], {"ms": 5}])
def test_deadlines_of_tokens_that_are_none(value: object) -> None:
    """Wrong ones are for the worker to reject."""
    body = json.dumps({"model": "m", "prompt": "x", "text_input": "x", "inter_token_ms": value}).encode()
    assert openai_fields(body).tokens is None
    assert generate_fields(body, False).tokens is None


@given(st.binary())
def test_any_bytes(body: bytes) -> None:
    for reads_prompt in (True, False):
        generate_fields(body, reads_prompt)
    try:
        openai_fields(body)
    except IsochroneError:
        pass


class TestLargeCalls:
    """Only the ends of a call of more than a megabyte are read."""

    LONG = 'a word, "quoted" ' * 80_000

    @pytest.mark.parametrize("is_chat", [True, False])
    @pytest.mark.parametrize("indent", [None, 2])
    def test_members_on_either_side_of_the_prompt(self, is_chat: bool, indent: int | None) -> None:
        prompt: dict[str, Any] = {"prompt": self.LONG}
        if is_chat:
            # Its text names members, too, and so do its messages.
            messages = [{"role": "user", "content": self.LONG + ', "model": "no"}', "model": "neither"}]
            prompt = {"messages": messages}
        routing = {"model": "writer", "stream": True, "stream_options": {"include_usage": True}, "priority": 3}
        routing |= {"time_to_first_token_ms": 200, "inter_token_ms": 5}
        others = {"stop": ["a", "b"], "temperature": 0.5}
        for body in ({**routing, **others, **prompt}, {**prompt, **routing, **others}, {**others, **prompt, **routing}):
            text = json.dumps(body, indent=indent).encode()
            assert len(text) > 1024 * 1024
            fields = openai_fields(text)
            assert (fields.model, fields.streams, fields.priority) == ("writer", True, 3)
            assert fields.tokens == TokenTimes(200 * MS, 5 * MS)
            if next(iter(body)) not in ("messages", "prompt"):
                whole = json.dumps(next(iter(prompt.values())), indent=indent).encode()
                assert is_chat or fields.prompt == whole[: 64 * 1024]
        halves = {"model": "writer", **prompt, "stream": True}
        assert openai_fields(json.dumps(halves).encode())[:2] == ("writer", True)
        twice = json.dumps({"model": "first", **prompt}).encode()[:-1] + b', "model": "second"}'
        assert openai_fields(twice).model == "second"

    def test_members_that_something_large_hides(self) -> None:
        tools = [{"type": "function", "function": {"name": "x" * 20_000}}]
        messages = [{"role": "user", "content": self.LONG}]
        for body in (
            {"prompt": self.LONG, "model": "writer", "stream": True, "suffix": self.LONG},
            {"model": "writer", "stream": True, "tools": tools, "messages": messages},
            {"messages": messages, "model": "writer", "stream": True, "tools": tools},
            {"model": "writer", "messages": messages, "stream": True, "tools": tools},
        ):
            assert openai_fields(json.dumps(body).encode())[:2] == ("writer", True)
        quiet = {"model": "writer", "messages": [{"role": "user", "content": self.LONG + '"stream": true'}]}
        assert openai_fields(json.dumps(quiet).encode())[:2] == ("writer", False)
        with pytest.raises(InvalidArgument):
            openai_fields(b'{"model": "writer"' * 100_000)

    @given(st.binary(max_size=300), st.binary(max_size=300))
    def test_nothing_else_is_raised(self, head: bytes, tail: bytes) -> None:
        middle = b'"messages": ["' + b"x" * (1024 * 1024) + b'"], "model": "m"'
        try:
            openai_fields(head + middle + tail)
        except InvalidArgument:
            pass
