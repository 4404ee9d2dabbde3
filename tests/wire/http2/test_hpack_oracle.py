"""Header compression against the ``hpack`` package, both ways, on good, bad and long-lived connections.

Where our decoder is stricter than the package, on purpose:

- more than two table size updates at the start of a block (RFC 7541 section 4.2 knows at most two);
- of several lowered limits between two blocks, the first update has to go as low as the smallest (same
  section; the package only looks at the size in force at the end of the block).

And where it differs: a list over the size limit is no compression error here, since the block was decoded.
"""

from __future__ import annotations

import hpack
import pytest
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isochrone.wire.http2.hpack import Decoder, Encoder, HpackError, decode_huffman, encode_integer
from isochrone.wire.http2.hpack_tables import STATIC_TABLE, Header

UNLIMITED = 1 << 40

names = st.one_of(
    st.sampled_from([name for name, _ in STATIC_TABLE]),
    st.sampled_from([b"te", b"traceparent", b"grpc-timeout", b"x-a", b"x-b", b"trace-bin"]),
    st.binary(min_size=1, max_size=30),
)
values = st.one_of(
    st.sampled_from([b"", b"trailers", b"GET", b"200", b"application/grpc", b"1", b"2"]),
    st.text("0123456789abcdef-", max_size=60).map(str.encode),
    st.binary(max_size=300),
)
headers_lists = st.lists(st.one_of(st.sampled_from(STATIC_TABLE), st.tuples(names, values)), max_size=12)
# Small enough that eviction is common, in the middle, and the default.
table_sizes = st.sampled_from([0, 31, 64, 100, 200, 1000, 4096])


class Pair:
    """One connection read by both decoders, which have to agree block by block."""

    def __init__(self) -> None:
        self.ours = Decoder(max_header_list_size=UNLIMITED, max_headers=UNLIMITED)
        self.theirs = hpack.Decoder(max_header_list_size=UNLIMITED)

    def decode(self, block: bytes) -> list[Header] | None:
        """The headers, or None where both refuse."""
        expected: list[Header] | None
        try:
            expected = [(bytes(name), bytes(value)) for name, value in self.theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            expected = None
        try:
            given: list[Header] | None = list(self.ours.decode(block))
        except HpackError:
            given = None
        if leading_size_updates(block) > 2:
            assert given is None
            return None
        assert given == expected
        return given


def leading_size_updates(block: bytes) -> int:
    count = position = 0
    while position < len(block) and block[position] & 0xE0 == 0x20:
        count += 1
        if block[position] == 0x3F:
            position += 1
            while position < len(block) and block[position] >= 0x80:
                position += 1
        position += 1
    return count


def resize(encoder: hpack.Encoder, size: int) -> None:
    # Set to the size it has, the package's encoder forgets to send the updates that are still due.
    if size != encoder.header_table_size:
        encoder.header_table_size = size


def huffman_string(text: bytes) -> bytes:
    coded: bytes = hpack.Encoder().huffman_coder.encode(text)
    return encode_integer(len(coded), 7, 0x80) + coded


def test_static_tables_agree() -> None:
    assert tuple(HeaderTable.STATIC_TABLE) == STATIC_TABLE


@pytest.mark.parametrize("symbol", range(256))
def test_every_huffman_code_alone(symbol: int) -> None:
    length = REQUEST_CODES_LENGTH[symbol]
    padding = -length % 8
    coded = (REQUEST_CODES[symbol] << padding | (1 << padding) - 1).to_bytes((length + padding) // 8, "big")
    assert decode_huffman(coded) == bytes((symbol,))


@given(st.binary(max_size=200))
def test_huffman_strings_of_the_oracle(text: bytes) -> None:
    assert decode_huffman(hpack.Encoder().huffman_coder.encode(text)) == text


@given(headers_lists)
def test_our_blocks_read_by_the_oracle(headers: list[Header]) -> None:
    decoder = hpack.Decoder(max_header_list_size=UNLIMITED)
    block = Encoder().encode(headers)
    for _ in range(2):  # the same block again, on a connection with any table
        assert [tuple(header) for header in decoder.decode(block, raw=True)] == headers
    assert not decoder.header_table.dynamic_entries


@given(st.lists(st.tuples(headers_lists, st.booleans(), st.lists(table_sizes, max_size=2)), min_size=1, max_size=8))
def test_blocks_of_the_oracle_with_size_changes(
    calls: list[tuple[list[Header], bool, list[int]]],
) -> None:
    encoder = hpack.Encoder()
    decoder = Decoder(max_header_list_size=UNLIMITED)
    for headers, huffman, sizes in calls:
        for size in sizes:
            resize(encoder, size)
        assert list(decoder.decode(bytes(encoder.encode(headers, huffman=huffman)))) == headers


# What a hostile or broken peer sends: noise, and things that are nearly right.
short_integers = st.integers(0, 255).map(lambda value: bytes((value,)))
fields = st.one_of(
    st.integers(0, 140).map(lambda index: encode_integer(index, 7, 0x80)),
    st.integers(0, 5000).map(lambda size: encode_integer(size, 5, 0x20)),
    st.tuples(
        st.sampled_from([(6, 0x40), (4, 0x00), (4, 0x10)]),
        st.integers(1, 70),
        st.binary(max_size=40).map(huffman_string),
    ).map(lambda parts: encode_integer(parts[1], *parts[0]) + parts[2]),
    st.tuples(st.sampled_from([b"\x40", b"\x00", b"\x10"]), names.map(huffman_string), values.map(huffman_string)).map(
        b"".join
    ),
    st.tuples(st.sampled_from([b"\x40", b"\x00"]), st.binary(max_size=6), short_integers, st.binary(max_size=8)).map(
        lambda parts: parts[0] + bytes((len(parts[1]),)) + parts[1] + parts[2] + parts[3]
    ),
    st.binary(max_size=12).map(lambda coded: b"\x00\x01a" + bytes((0x80 | len(coded),)) + coded),
    st.lists(st.sampled_from([0x80, 0xFF, 0x7F, 0x81]), max_size=8).map(lambda tail: b"\xff" + bytes(tail)),
)
garbage = st.one_of(st.binary(max_size=60), st.lists(fields, max_size=6).map(b"".join))


@settings(max_examples=800, deadline=None)
@given(st.lists(garbage, min_size=1, max_size=4))
@example([b"\x20\x20\x20"])
@example([b"\x00\x01a\x84\xff\xff\xff\xff"])
def test_garbage_gets_the_verdict_of_the_oracle(blocks: list[bytes]) -> None:
    pair = Pair()
    for block in blocks:
        if pair.decode(block) is None:
            return


@settings(max_examples=300, deadline=None)
@given(st.data(), headers_lists)
def test_a_damaged_block_gets_the_verdict_of_the_oracle(data: st.DataObject, headers: list[Header]) -> None:
    block = bytearray(hpack.Encoder().encode([(b"a", b"b"), *headers]))
    place = data.draw(st.integers(0, len(block) - 1))
    block[place] ^= 1 << data.draw(st.integers(0, 7))
    Pair().decode(bytes(block[: data.draw(st.integers(place + 1, len(block)))]))


def test_stricter_than_the_oracle() -> None:
    three_updates = b"\x20\x20\x20\x82"
    assert hpack.Decoder().decode(three_updates, raw=True) == [(b":method", b"GET")]
    with pytest.raises(HpackError):
        Decoder().decode(three_updates)

    ours, theirs = Decoder(), hpack.Decoder()
    for limit in (0, 4096):
        ours.set_max_allowed_table_size(limit)
        theirs.max_allowed_table_size = limit
    assert theirs.decode(b"\x82", raw=True) == [(b":method", b"GET")]
    with pytest.raises(HpackError):
        ours.decode(b"\x82")


# One connection, many calls: repeating lists, fresh literals, resizes, and blocks sent again byte for byte, whose
# meaning may have changed since. The two decoders have to agree on every one of them.
common_lists: list[list[Header]] = [
    [(b":method", b"POST"), (b":path", b"/a"), (b"te", b"trailers"), (b"grpc-timeout", b"1S")],
    [(b":method", b"POST"), (b":path", b"/b"), (b"te", b"trailers"), (b"x-long", b"v" * 90)],
    [(b":method", b"GET"), (b":path", b"/")],
]
steps = st.one_of(
    st.tuples(st.just("common"), st.integers(0, len(common_lists) - 1)),
    st.tuples(st.just("common"), st.integers(0, len(common_lists) - 1)),
    st.tuples(st.just("fresh"), headers_lists),
    st.tuples(st.just("traced"), st.text("0123456789abcdef", min_size=1, max_size=55).map(str.encode)),
    st.tuples(st.just("again"), st.integers(0, 50)),
    st.tuples(st.just("again"), st.integers(0, 50)),
    st.tuples(st.just("resize"), table_sizes),
    st.tuples(st.just("limit"), st.sampled_from([0, 100, 1000, 4096, 8192])),
)


@settings(max_examples=250, deadline=None)
@given(st.lists(steps, min_size=10, max_size=60))
def test_a_long_connection_equals_the_oracle(script: list[tuple[str, object]]) -> None:
    pair = Pair()
    encoder = hpack.Encoder()
    limit = 4096
    sent: list[bytes] = []
    remembered: dict[bytes, tuple[int, tuple[Header, ...]]] = {}
    for kind, argument in script:
        match kind, argument:
            case "common", int(which):
                block = bytes(encoder.encode(common_lists[which]))
            case "fresh", list(headers):
                block = bytes(encoder.encode(headers))
            case "traced", bytes(value):
                block = bytes(encoder.encode(common_lists[0]))
                block += b"\x00" + huffman_string(b"traceparent") + huffman_string(value)
            case "again", int(which):
                if not sent:
                    continue
                block = sent[which % len(sent)]
            case "resize", int(size):
                if size <= limit and len(encoder.table_size_changes) < 2:
                    resize(encoder, size)
                continue
            case "limit", int(size):
                if len(encoder.table_size_changes) == 2:
                    continue
                limit = size
                pair.ours.set_max_allowed_table_size(limit)
                pair.theirs.max_allowed_table_size = limit
                resize(encoder, min(limit, encoder.header_table_size))
                # The block that has to carry the update comes at once, so that no later limit hides this one.
                block = bytes(encoder.encode([]))
            case _:
                raise AssertionError(f"unknown step {kind!r}")
        generation = pair.ours.generation
        decoded = pair.decode(block)
        if decoded is None:
            return
        sent.append(block)
        if pair.ours.generation == generation and len(block) <= 256:
            again = pair.ours.decode(block)
            assert again is pair.ours.decode(block)
            if block in remembered and remembered[block][0] == generation:
                assert again is remembered[block][1]
            remembered[block] = (generation, again)
