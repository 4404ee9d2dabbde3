"""Streams of events: the first token, errors, and ends, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.bench.results.outcomes import FAILED, OK, REJECTED
from isochrone.bench.sending.events import EventStream

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"Once"}}]}\n\n'
COMPLETION = b'data: {"choices":[{"index":0,"text":"Once"}]}\n\n'
DONE = b"data: [DONE]\n\n"
BUSY = b'data: {"error":{"message":"full","code":503}}\n\n'
WRONG = b'data: {"error":{"message":"broken","code":"internal"}}\n\n'


def read(data: bytes, cuts: list[int], *, is_openai: bool) -> tuple[EventStream, int | None]:
    """The stream after all bytes, and how many of them there were when the first token was seen."""
    stream, first, fed = EventStream(is_openai=is_openai), None, 0
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in pairwise(edges):
        fed = end
        if stream.feed(data[begin:end]):
            assert first is None, "the first token is told once"
            first = fed
    return stream, first


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_the_first_token_is_the_first_event_with_text(cuts: list[int]) -> None:
    stream, first = read(ROLE + TEXT + TEXT + DONE, cuts, is_openai=True)
    assert first is not None
    assert first >= len(ROLE) + len(TEXT) - 1
    assert stream.ending() == (OK, "")
    assert stream.is_done


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_completions_and_other_events(cuts: list[int]) -> None:
    assert read(COMPLETION + DONE, cuts, is_openai=True)[0].ending() == (OK, "")
    stream, first = read(b'data: {"text_output":"a"}\n\n', cuts, is_openai=False)
    assert first is not None
    assert stream.ending() == (OK, ""), "generate_stream does not announce its end"


@pytest.mark.parametrize(
    ("data", "outcome", "error"),
    [
        (ROLE + TEXT, FAILED, "without [DONE]"),
        (b"", FAILED, "without an event"),
        (BUSY, REJECTED, "full"),
        (ROLE + TEXT + WRONG + DONE, FAILED, "broken"),
        (b"data: {]\n\n", FAILED, "no JSON"),
        (b'data: {"error":"plain"}\n\n', FAILED, "plain"),
    ],
)
def test_errors_in_a_stream(data: bytes, outcome: int, error: str) -> None:
    stream = EventStream(is_openai=True)
    stream.feed(data)
    found, text = stream.ending()
    assert found == outcome
    assert error in text


def test_an_answer_without_tokens_is_no_failure() -> None:
    stream = EventStream(is_openai=True)
    assert not stream.feed(ROLE + DONE)
    assert stream.ending() == (OK, "")
