"""The trace context in a message head: what is forwarded, and what cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument
from isochrone.protocol.headers.request_fields import RequestFields, request_fields
from isochrone.wire.exchange import Head

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def context_of(*headers: tuple[bytes, bytes]) -> object:
    return request_fields(Head(b"POST", b"/", headers)).trace_context


def test_nothing_without_a_context() -> None:
    assert context_of() is None
    assert context_of((b"accept", b"*/*"), (b"x-traceparent", PARENT)) is None


def test_values_travel_as_they_are_and_parts_are_one_list() -> None:
    found = context_of((b"tracestate", b"a=1"), (b"traceparent", PARENT), (b"tracestate", b"b=2, c=3"))
    assert found == {"traceparent": PARENT.decode(), "tracestate": "a=1,b=2, c=3"}


@pytest.mark.parametrize("parent", [b"nonsense", PARENT + b"-more", PARENT.replace(b"00f067aa0ba902b7", b"0" * 16)])
def test_an_invalid_parent_is_left_out_with_its_state(parent: bytes) -> None:
    headers = ((b"traceparent", parent), (b"tracestate", b"a=1"), (b"baggage", b"user=7"))
    assert context_of(*headers) == {"baggage": "user=7"}


@given(value=st.binary(max_size=30))
def test_only_what_both_transports_carry_travels(value: bytes) -> None:
    found = context_of((b"baggage", value))
    carried = bool(value) and all(0x20 <= byte < 0x7F for byte in value) and value.strip() == value
    assert found == ({"baggage": value.decode("latin-1")} if carried else None)


def test_a_repeated_parent_is_left_out_with_its_state() -> None:
    parents = ((b"traceparent", PARENT), (b"traceparent", PARENT.replace(b"4", b"5")))
    assert context_of(*parents) is None
    assert context_of(*parents, (b"tracestate", b"a=1"), (b"baggage", b"user=7")) == {"baggage": "user=7"}


def test_all_fields_of_a_request_come_from_one_pass() -> None:
    headers = (
        (b"accept", b"*/*"),
        (b"x-isochrone-division", b" prefer core "),
        (b"traceparent", PARENT),
        (b"x-isochrone-stages", b"a=1,b=2"),
        (b"x-isochrone-division", b"edge"),
    )
    head = Head(b"POST", b"/", headers)
    expected = RequestFields(
        {"a": "1", "b": "2"}, {"traceparent": PARENT.decode()}, "prefer core", "4bf92f3577b34da6a3ce929d0e0e4736"
    )
    assert request_fields(head) == expected
    assert request_fields(head, with_stages=False) == expected._replace(stages=None)
    assert request_fields(Head(b"POST", b"/", ((b"x-isochrone-division", b""),))) == RequestFields(None, None, "")
    malformed = Head(b"POST", b"/", ((b"x-isochrone-stages", b"a"),))
    with pytest.raises(InvalidArgument):
        request_fields(malformed)
    assert request_fields(malformed, with_stages=False).stages is None
