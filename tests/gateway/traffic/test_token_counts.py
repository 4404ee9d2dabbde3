"""Tokens of answers that pass through: the same count wherever pieces end, and usage that no text can forge."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.traffic.token_counts import PassedEvents, PassedMessages, PassedTokens, estimate, usage_in


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def counted(counts: PassedTokens, data: list[bytes]) -> int:
    assert sum(counts.count(memoryview(piece)) for piece in data) == counts.total
    return counts.total


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=9), max_size=9), st.lists(st.integers(0, 999)))
def test_events_count_once_wherever_pieces_end(texts: list[str], cuts: list[int]) -> None:
    stream = b"".join(b"data: %s\n\n" % text.encode() for text in texts)
    assert counted(PassedEvents(), pieces(stream, cuts)) == len(texts)


@given(st.lists(st.binary(max_size=300), max_size=9), st.lists(st.integers(0, 3000)))
def test_messages_count_once_wherever_pieces_end(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages)
    assert counted(PassedMessages(), pieces(stream, cuts)) == len(messages)


@given(st.text(), st.integers(1, 10**8))
def test_an_answers_text_forges_no_usage(text: str, tokens: int) -> None:
    text += json.dumps({"usage": {"total_tokens": 1}})
    answer = {"usage": {"total_tokens": tokens}, "choices": [{"text": text, "more": json.dumps(text)}]}
    assert usage_in(json.dumps(answer).encode()) == tokens
    assert usage_in(json.dumps({"text": text}).encode()) == 0


def test_usage_in_a_stream() -> None:
    counts = PassedEvents()
    counts.count(b'data: {"choices": []}\n\n')
    counts.count(b'data: {"usage": {"prompt_tokens": 5, "total_tokens": 12}}\n\ndata: [DONE]\n\n')
    assert (counts.total, counts.usage) == (3, 12)


def test_an_estimate_is_never_nothing_for_something() -> None:
    assert [estimate(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
