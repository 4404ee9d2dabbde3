"""What the gateway reads of requests for text: model, stream, priority, and how prompts begin."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument, IsochroneError, PayloadTooLarge
from isochrone.gateway.traffic.prompts import generate_prompt, openai_fields


def test_a_chat() -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"messages": messages, "model": "m@2", "stream": True, "priority": 3, "n": 2}).encode()
    fields = openai_fields(body)
    assert fields == ("m@2", True, 3, json.dumps(messages).encode())


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2]])
def test_a_completion(prompt: object) -> None:
    fields = openai_fields(json.dumps({"model": "m", "prompt": prompt, "stream": False}).encode())
    assert fields == ("m", False, 0, json.dumps(prompt).encode())


@pytest.mark.parametrize("body", [b'{"model": 3, "stream": "x", "priority": "high"}', b"{}", b'{"model": null}'])
def test_what_is_wrong_is_for_the_worker(body: bytes) -> None:
    assert openai_fields(body) == ("", False, 0, b"")


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


def test_generate() -> None:
    assert generate_prompt(b'{"text_input": "hello", "id": "1"}') == b'"hello"'
    assert generate_prompt(b'{"messages": "[]", "stream": true}') == b'"[]"'
    assert generate_prompt(b'{"IN": [1]}') == b""
    assert generate_prompt(b"{") == b""
    assert generate_prompt(b'{"text_input": "%b"}' % (b"x" * (300 << 10))) == b""


@given(st.binary())
def test_any_bytes(body: bytes) -> None:
    generate_prompt(body)
    try:
        openai_fields(body)
    except IsochroneError:
        pass
