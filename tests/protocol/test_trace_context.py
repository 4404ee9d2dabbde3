"""The trace context in a message head: what is forwarded, and what cannot be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.protocol.trace_context import trace_context_of
from isochrone.wire.exchange import Head

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def context_of(*headers: tuple[bytes, bytes]) -> object:
    return trace_context_of(Head(b"POST", b"/", headers))


def test_nothing_without_a_context() -> None:
    assert context_of() is None
    assert context_of((b"accept", b"*/*"), (b"x-traceparent", PARENT)) is None


def test_values_travel_as_they_are_and_parts_are_one_list() -> None:
    found = context_of((b"tracestate", b"a=1"), (b"traceparent", PARENT), (b"tracestate", b"b=2, c=3"))
    assert found == {"traceparent": PARENT.decode(), "tracestate": "a=1,b=2, c=3"}
    # Not ours to understand.
    assert context_of((b"traceparent", b"nonsense"), (b"baggage", b"user=7")) == {
        "traceparent": "nonsense",
        "baggage": "user=7",
    }


@given(value=st.binary(max_size=30))
def test_only_what_both_transports_carry_travels(value: bytes) -> None:
    found = context_of((b"baggage", value))
    carried = bool(value) and all(0x20 <= byte < 0x7F for byte in value) and value.strip() == value
    assert found == ({"baggage": value.decode("latin-1")} if carried else None)
