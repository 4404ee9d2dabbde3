"""Memoised heads of HTTP/2 are shared by connections where a block reads the same on each, and by no others."""

from __future__ import annotations

import hpack
import pytest
from h2_blocks import INDEXED, inserted, literal
from http2_frames import FIELDS, encode
from hypothesis import given
from hypothesis import strategies as st
from wire_fakes import FakeTransport, HoldingRoute, OneRoute, UnboundListener, echo

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head
from isochrone.wire.head_memo import MAX_MEMOISED_BYTES
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import DATA, HEADERS, PREFACE, frame, settings_frame
from isochrone.wire.http2.hpack import Decoder, HpackError, is_stateless
from isochrone.wire.http2.hpack_tables import STATIC_TABLE
from isochrone.wire.http2.server import Http2ServerConnection

_TOKEN = (b"authorization", b"Bearer " + b"t" * 900)


class Listening:
    """Connections of one listener, and the heads of the requests that they bring."""

    def __init__(self, limits: WireLimits | None = None) -> None:
        self.route = HoldingRoute(echo)
        self.application = OneRoute(self.route)
        self.listener = UnboundListener(self.application, limits)

    def connection(self, peer: tuple[str, ...] = (), *, greets: bool = True) -> Caller:
        return Caller(self, peer, greets=greets)


class Caller:
    def __init__(self, listening: Listening, peer: tuple[str, ...], *, greets: bool) -> None:
        self._listening = listening
        connection = Http2ServerConnection(listening.listener)
        connection.peer_identity = peer
        listening.listener.connections.add(connection)
        self._transport = FakeTransport(connection)
        self._transport.feed(PREFACE + (settings_frame({}) if greets else b""))
        self._stream = -1

    def call(self, block: bytes) -> Head:
        """The head of a request with this block."""
        self._stream += 2
        flags = frames.END_HEADERS
        self._transport.feed(frame(HEADERS, flags, self._stream, block) + frame(DATA, 1, self._stream, b"x"))
        return self._listening.route.exchanges[-1].head

    @property
    def closed(self) -> bool:
        return self._transport.is_closing()


@pytest.mark.parametrize("fields", [FIELDS, [*FIELDS, _TOKEN]], ids=["small", "with a long token"])
def test_a_head_that_came_twice_is_known_on_every_connection(fields: list[tuple[bytes, bytes]]) -> None:
    listening = Listening()
    block = encode(fields)
    first, second = listening.connection().call(block), listening.connection().call(block)
    assert first is not second
    third = listening.connection()
    assert [third.call(block) is second for _ in range(3)] == [True] * 3
    assert len(listening.application.heads) == 2


def test_the_same_bytes_mean_what_the_table_of_each_connection_says() -> None:
    listening = Listening()
    block = encode(FIELDS) + INDEXED
    callers = {value: listening.connection() for value in (b"one", b"two")}
    for value, caller in callers.items():
        caller.call(encode(FIELDS) + inserted(b"x-secret", value))
    for _ in range(4):
        for value, caller in callers.items():
            assert caller.call(block).get(b"x-secret") == value


def test_a_table_that_changes_forgets_what_used_it_and_nothing_else() -> None:
    caller = Listening().connection()
    stateless = encode([*FIELDS, _TOKEN])
    known = [caller.call(stateless) for _ in range(3)][-1]
    caller.call(encode(FIELDS) + inserted(b"x-secret", b"one"))
    assert [caller.call(encode(FIELDS) + INDEXED).get(b"x-secret") for _ in range(3)] == [b"one"] * 3
    caller.call(encode(FIELDS) + inserted(b"x-secret", b"two"))
    assert caller.call(encode(FIELDS) + INDEXED).get(b"x-secret") == b"two"
    assert caller.call(stateless) is known


def test_each_peer_has_heads_of_its_own() -> None:
    listening = Listening()
    block = encode([*FIELDS, _TOKEN])
    peers: list[tuple[str, ...]] = [(), ("spiffe://plant/a",), ("spiffe://plant/b",)]
    for _ in range(4):
        for peer in peers:
            assert listening.connection(peer).call(block).peer == peer
    assert len(listening.application.heads) == 2 * len(peers)


def test_a_client_that_sends_no_settings_finds_nothing() -> None:
    listening = Listening()
    block = encode(FIELDS)
    for _ in range(3):
        listening.connection().call(block)
    answered = len(listening.route.exchanges)
    stranger = listening.connection(greets=False)
    stranger.call(block)
    assert stranger.closed
    assert len(listening.route.exchanges) == answered


def test_a_head_over_the_limit_is_not_kept() -> None:
    listening = Listening()
    block = encode([*FIELDS, (b"x-long", b"v" * MAX_MEMOISED_BYTES)])
    caller = listening.connection()
    assert len({id(caller.call(block)) for _ in range(4)}) == 4


def test_heads_of_strangers_make_the_oldest_leave_and_not_all() -> None:
    listening = Listening(WireLimits(max_memoised_head_bytes=100_000))
    caller, stranger = listening.connection(), listening.connection()
    for number in range(30):
        for _ in range(2):
            stranger.call(encode([*FIELDS, (b"x-number", b"%d" % number)]))
    own = encode([*FIELDS, _TOKEN])
    known = [caller.call(own) for _ in range(3)][-1]
    for _ in range(2):
        stranger.call(encode([*FIELDS, (b"x-long", b"v" * 8000)]))
    assert listening.connection().call(own) is known


def test_thousands_of_tokens_stay_known() -> None:
    listening = Listening()
    callers = [listening.connection() for _ in range(2)]
    blocks = [encode([*FIELDS, (b"authorization", b"Bearer %d" % number)]) for number in range(3000)]
    for caller in callers:
        for block in blocks:
            caller.call(block)
    routed = len(listening.application.heads)
    for block in blocks:
        callers[0].call(block)
    assert len(listening.application.heads) == routed


_names = st.sampled_from([b":path", b"te", b"traceparent", b"x-a", b"authorization"])
_fields = st.one_of(st.sampled_from(STATIC_TABLE), st.tuples(_names, st.binary(max_size=200)))


@given(st.lists(st.lists(_fields, max_size=6), min_size=1, max_size=6), st.booleans())
def test_stateless_blocks_are_those_that_a_new_connection_reads_alike(
    lists: list[list[tuple[bytes, bytes]]], indexes: bool
) -> None:
    """Of blocks that another implementation wrote for one connection, with its table or without."""
    encoder = hpack.Encoder()
    own = Decoder()
    for fields in lists:
        if indexes:
            block = encoder.encode(fields)
        else:
            block = b"".join(literal(name, value) for name, value in fields)
        before = own.generation
        found = own.decode(block)
        fresh = Decoder()
        try:
            alike = fresh.decode(block) == found and fresh.generation == 0
        except HpackError:
            alike = False
        assert is_stateless(block) == (alike and own.generation == before)
