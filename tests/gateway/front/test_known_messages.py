"""What a gateway remembers of gRPC messages has a limit, whatever layouts callers send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from offline import make_fleet

from isochrone.gateway.front import known_messages
from isochrone.gateway.front.known_messages import KnownMessages
from isochrone.protocol.grpc.routing_fields import Layout

SERVED = make_fleet().unknown

_layouts = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.binary(max_size=64)), max_size=64).map(tuple)
_message = st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 500), _layouts)


@given(st.lists(_message, max_size=60))
def test_the_last_layout_of_a_length_is_known(messages: list[tuple[bytes, int, Layout]]) -> None:
    known = KnownMessages()
    expected = {}
    for field, length, layout in messages:
        known.remember(field, SERVED, length, layout)
        expected[field, length] = layout
        assert known.model_of(field) is SERVED
    assert {key: known.layout(*key) for key in expected} == expected


def test_all_layouts_together_have_a_limit() -> None:
    known = KnownMessages()
    largest: Layout = tuple((number, number + 64, bytes(64)) for number in range(64))
    fits = known_messages._ROOM // known_messages._cost_of(largest)
    for length in range(3 * fits):
        known.remember(b"m", SERVED, length, largest)
        known.remember(b"m", SERVED, length, largest)
        assert known.layout(b"m", length) is largest
        assert sum(len(layouts) for _, layouts in known._models.values()) <= fits


def test_of_what_was_never_sent_nothing_is_known() -> None:
    known = KnownMessages()
    assert known.model_of(b"m") is None
    known.remember(b"m", SERVED, 10, ())
    assert [begin for begin, end, fixed in known.layout(b"m", 11) if bytes(20)[begin:end] != fixed] == [0]
