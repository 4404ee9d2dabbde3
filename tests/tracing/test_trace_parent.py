"""The header traceparent: what is written is read, and what the standard calls invalid is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.tracing.trace_parent import TraceParent, parse_trace_parent, says_sampled, write_trace_parent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read(trace_id: int, span_id: int, is_sampled: bool) -> None:
    text = write_trace_parent(trace_id, span_id, is_sampled)
    assert parse_trace_parent(text) == TraceParent(trace_id, span_id, is_sampled)
    assert says_sampled(text) is is_sampled


@given(st.integers(0, 255))
def test_only_the_last_bit_of_the_flags_counts(flags: int) -> None:
    text = f"00-{TRACE}-{SPAN}-{flags:02x}"
    parent = parse_trace_parent(text)
    assert parent is not None
    assert parent.is_sampled is says_sampled(text) is bool(flags & 1)


@pytest.mark.parametrize("text", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-the-future-brings"])
def test_later_versions_are_read_as_far_as_they_are_known(text: str) -> None:
    assert parse_trace_parent(text) == TraceParent(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_what_is_invalid_is_ignored(text: str) -> None:
    assert parse_trace_parent(text) is None


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse_trace_parent(text)
    says_sampled(text)
