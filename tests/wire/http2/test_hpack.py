"""Header compression by itself: RFC 7541 appendix C, every refusal, the limits, what is remembered.

What needs another implementation to be checked against is in ``test_hpack_oracle``.
"""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isochrone.wire.http2 import hpack
from isochrone.wire.http2.hpack import (
    EMPTY_TABLE_UPDATE,
    Decoder,
    Encoder,
    HeaderListTooLarge,
    HpackError,
    decode_huffman,
    encode_integer,
    encode_literal,
)
from isochrone.wire.http2.hpack_tables import STATIC_TABLE, Header

FIRST_DYNAMIC = 62


def size_update(size: int) -> bytes:
    return encode_integer(size, 5, 0x20)


def indexed(index: int) -> bytes:
    return encode_integer(index, 7, 0x80)


def inserted(name: bytes, value: bytes) -> bytes:
    """A literal with incremental indexing and a new name, plain strings."""
    return b"\x40" + encode_integer(len(name), 7) + name + encode_integer(len(value), 7) + value


def dynamic_entries(decoder: Decoder) -> list[Header]:
    """The dynamic table as a peer can see it: by asking for index after index until one is refused."""
    entries: list[Header] = []
    while True:
        try:
            entries.extend(decoder.decode(indexed(FIRST_DYNAMIC + len(entries))))
        except HpackError:
            return entries


REQUESTS: list[list[Header]] = [
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")],
    [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
        (b"cache-control", b"no-cache"),
    ],
    [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ],
]
REQUEST_TABLES: list[list[Header]] = [
    [(b":authority", b"www.example.com")],
    [(b"cache-control", b"no-cache"), (b":authority", b"www.example.com")],
    [(b"custom-key", b"custom-value"), (b"cache-control", b"no-cache"), (b":authority", b"www.example.com")],
]
COOKIE = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
DATE_21 = (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT")
DATE_22 = (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT")
LOCATION = (b"location", b"https://www.example.com")
PRIVATE = (b"cache-control", b"private")
RESPONSES: list[list[Header]] = [
    [(b":status", b"302"), PRIVATE, DATE_21, LOCATION],
    [(b":status", b"307"), PRIVATE, DATE_21, LOCATION],
    [
        (b":status", b"200"),
        PRIVATE,
        DATE_22,
        LOCATION,
        (b"content-encoding", b"gzip"),
        (b"set-cookie", COOKIE),
    ],
]
RESPONSE_TABLES: list[list[Header]] = [
    [LOCATION, DATE_21, PRIVATE, (b":status", b"302")],
    [(b":status", b"307"), LOCATION, DATE_21, PRIVATE],
    [(b"set-cookie", COOKIE), (b"content-encoding", b"gzip"), DATE_22],
]
APPENDIX_C = {
    "C.3": (
        4096,
        [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ],
        REQUESTS,
        REQUEST_TABLES,
    ),
    "C.4": (
        4096,
        [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ],
        REQUESTS,
        REQUEST_TABLES,
    ),
    "C.5": (
        256,
        [
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768747470"
            "733a2f2f7777772e6578616d706c652e636f6d",
            "4803333037c1c0bf",
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b"
            "48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
        ],
        RESPONSES,
        RESPONSE_TABLES,
    ),
    "C.6": (
        256,
        [
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82"
            "ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5"
            "af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ],
        RESPONSES,
        RESPONSE_TABLES,
    ),
}


@pytest.mark.parametrize("section", APPENDIX_C)
def test_appendix_c_sequences(section: str) -> None:
    table_size, blocks, lists, tables = APPENDIX_C[section]
    decoder = Decoder(max_table_size=table_size)
    for block, headers, table in zip(blocks, lists, tables, strict=True):
        assert list(decoder.decode(bytes.fromhex(block))) == headers
        assert dynamic_entries(decoder) == table


@pytest.mark.parametrize(
    ("block", "header", "table"),
    [
        (
            "400a637573746f6d2d6b65790d637573746f6d2d686561646572",
            (b"custom-key", b"custom-header"),
            [(b"custom-key", b"custom-header")],
        ),
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path"), []),
        ("100870617373776f726406736563726574", (b"password", b"secret"), []),
        ("82", (b":method", b"GET"), []),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4"],
)
def test_appendix_c_representations(block: str, header: Header, table: list[Header]) -> None:
    decoder = Decoder()
    assert decoder.decode(bytes.fromhex(block)) == (header,)
    assert dynamic_entries(decoder) == table


@pytest.mark.parametrize(("value", "prefix_bits", "octets"), [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")])
def test_appendix_c_integers(value: int, prefix_bits: int, octets: str) -> None:
    assert encode_integer(value, prefix_bits) == bytes.fromhex(octets)


def test_empty_block_is_an_empty_list() -> None:
    assert Decoder().decode(b"") == ()


REFUSED = {
    "index 0": "80",
    "static table overrun": "be",
    "index far out of range": "ffffffff07",
    "name index out of range": "7e0161",
    "name index out of range, not indexed": "0f2f0161",
    "index ends early": "ff",
    "index continuation ends early": "ff80",
    "integer of six continuation octets": "3f808080808000",
    "literal without anything": "00",
    "literal ends after the name": "000161",
    "name ends early": "00056162",
    "value ends early": "000161056162",
    "value length ends early": "0001617f",
    "value length of 2 GiB": "0001617f80ffffff07",
    "size update ends early": "3f",
    "size update over the limit": "3fe21f",
    "size update after a field": "8220",
    "three size updates": "202020",
    "Huffman: 8 bits of padding": "00016182" + "1fff",
    "Huffman: a byte of padding alone": "00016181ff",
    "Huffman: zero padding": "0001618118",
    "Huffman: mixed padding": "000161811d",
    "Huffman: end of string": "00016184ffffffff",
    "Huffman: end of string inside": "00016185fffffffc1f",
    "Huffman: bad name": "0081180161",
}


@pytest.mark.parametrize("block", REFUSED.values(), ids=REFUSED)
def test_decoding_errors(block: str) -> None:
    with pytest.raises(HpackError):
        Decoder().decode(bytes.fromhex(block))


@pytest.mark.parametrize(
    ("block", "message"),
    [("ff81ffffff07", "integer 2147483648"), ("fffeffffff0f", "integer"), ("ff80ffffff07", "index outside")],
    ids=["2^31", "five octets full", "2^31 - 1 is an integer"],
)
def test_integers_end_at_31_bits(block: str, message: str) -> None:
    with pytest.raises(HpackError, match=message):
        Decoder().decode(bytes.fromhex(block))


def test_the_neighbours_of_the_refusals_are_accepted() -> None:
    assert Decoder().decode(size_update(4096) + b"\x82") == ((b":method", b"GET"),)
    assert Decoder().decode(size_update(0) + size_update(4096) + b"\x82") == ((b":method", b"GET"),)
    assert decode_huffman(b"\x1f") == b"a"  # 00011, then three ones
    assert decode_huffman(b"") == b""
    # Five continuation octets, four of which say nothing.
    assert Decoder().decode(bytes.fromhex("0f8080808000") + b"\x00") == ((STATIC_TABLE[14][0], b""),)


@given(st.integers(0, 2**31 - 1), st.integers(1, 8))
def test_integers_are_read_as_they_are_written(value: int, prefix_bits: int) -> None:
    octets = encode_integer(value, prefix_bits)
    limit = (1 << prefix_bits) - 1
    if value < limit:
        assert octets == bytes((value,))
    else:
        assert octets[0] == limit
        assert limit + sum((octet & 0x7F) << 7 * place for place, octet in enumerate(octets[1:])) == value
        assert [octet >= 0x80 for octet in octets[1:]] == [True] * (len(octets) - 2) + [False]


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = Decoder(max_table_size=64)
    decoder.decode(inserted(b"a", b"b"))
    assert dynamic_entries(decoder) == [(b"a", b"b")]
    assert decoder.decode(inserted(b"a", b"b" * 32)) == ((b"a", b"b" * 32),)
    assert dynamic_entries(decoder) == []


def test_entries_may_fill_the_table_exactly() -> None:
    decoder = Decoder(max_table_size=68)
    decoder.decode(inserted(b"a", b"b") + inserted(b"c", b"d"))
    assert dynamic_entries(decoder) == [(b"c", b"d"), (b"a", b"b")]
    decoder.decode(inserted(b"e", b"f" * 35))
    assert dynamic_entries(decoder) == [(b"e", b"f" * 35)]


def test_a_name_may_come_from_the_entry_its_insertion_evicts() -> None:
    decoder = Decoder(max_table_size=64)
    decoder.decode(inserted(b"name", b"x" * 28))
    assert decoder.decode(b"\x7e\x01y") == ((b"name", b"y"),)
    assert dynamic_entries(decoder) == [(b"name", b"y")]


def test_a_larger_table_starts_only_with_the_peers_update() -> None:
    decoder = Decoder(max_table_size=8192)
    for number in range(3):
        decoder.decode(inserted(b"n%d" % number, b"x" * 2000))
    assert len(dynamic_entries(decoder)) == 2
    decoder.decode(size_update(8192))
    decoder.decode(inserted(b"n3", b"x" * 2000))
    assert [name for name, _ in dynamic_entries(decoder)] == [b"n3", b"n2", b"n1"]


def test_a_lowered_limit_has_to_be_followed_at_once() -> None:
    decoder = Decoder()
    known = decoder.decode(b"\x82")
    decoder.set_max_allowed_table_size(100)
    with pytest.raises(HpackError, match="at most 100"):
        decoder.decode(b"\x82")  # remembered or not

    decoder = Decoder()
    decoder.set_max_allowed_table_size(100)
    assert decoder.decode(size_update(100) + b"\x82") == known
    assert decoder.decode(b"\x82") == known
    with pytest.raises(HpackError):
        decoder.decode(size_update(101))


def test_the_smallest_of_several_limits_has_to_be_signalled_first() -> None:
    decoder = Decoder()
    decoder.decode(inserted(b"a", b"b"))
    decoder.set_max_allowed_table_size(0)
    decoder.set_max_allowed_table_size(4096)
    assert decoder.decode(size_update(0) + size_update(4096)) == ()
    assert dynamic_entries(decoder) == []

    for later in (100, 4096):
        decoder = Decoder()
        decoder.set_max_allowed_table_size(0)
        decoder.set_max_allowed_table_size(later)
        with pytest.raises(HpackError, match="at most 0"):
            decoder.decode(size_update(later))


def test_a_limit_that_is_not_lowered_asks_for_nothing() -> None:
    decoder = Decoder()
    known = decoder.decode(b"\x82")
    decoder.set_max_allowed_table_size(8192)
    assert decoder.decode(b"\x82") is known
    assert decoder.decode(size_update(8192)) == ()


def test_a_list_over_the_limit_leaves_the_table_right() -> None:
    decoder = Decoder(max_header_list_size=100)
    block = inserted(b"a", b"x" * 30) + inserted(b"b", b"y" * 30) + inserted(b"c", b"z")
    with pytest.raises(HeaderListTooLarge, match="100"):
        decoder.decode(block)
    assert dynamic_entries(decoder) == [(b"c", b"z"), (b"b", b"y" * 30), (b"a", b"x" * 30)]


def test_too_many_headers_leave_the_table_right() -> None:
    decoder = Decoder(max_headers=3)
    assert len(decoder.decode(b"\x82" * 3)) == 3
    with pytest.raises(HeaderListTooLarge, match="4 headers"):
        decoder.decode(b"\x82" * 3 + inserted(b"a", b"b"))
    assert dynamic_entries(decoder) == [(b"a", b"b")]


def test_an_error_after_the_limit_is_still_an_error() -> None:
    with pytest.raises(HpackError):
        Decoder(max_headers=3).decode(b"\x82" * 10 + b"\x80")


def test_too_large_is_not_a_compression_error() -> None:
    assert not issubclass(HeaderListTooLarge, HpackError)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=200)), max_size=12),
    st.integers(-3, 3),
    st.sampled_from([0, 64, 4096]),
    st.booleans(),
)
@example([(b"a", b"x" * 200)], -1, 0, False)
@example([(b"a", b""), (b"b", b"")], -1, 64, True)
def test_the_limit_is_exact(headers: list[Header], slack: int, table_size: int, resized: bool) -> None:
    size = sum(len(name) + len(value) + 32 for name, value in headers)
    decoder = Decoder(max_table_size=table_size, max_header_list_size=max(0, size + slack))
    block = size_update(table_size) if resized else b""
    block += b"".join(inserted(name, value) for name, value in headers)
    if slack < 0 and size:
        with pytest.raises(HeaderListTooLarge):
            decoder.decode(block)
    else:
        assert list(decoder.decode(block)) == headers


@pytest.mark.parametrize("resized", [False, True])
def test_the_limit_counts_what_references_expand_to(resized: bool) -> None:
    for limit, accepted in ((3 * 1033, True), (3 * 1033 - 1, False)):
        decoder = Decoder(max_header_list_size=limit)
        decoder.decode((size_update(2000) if resized else b"") + inserted(b"a", b"x" * 1000))
        if accepted:
            assert len(decoder.decode(b"\xbe" * 3)) == 3
        else:
            with pytest.raises(HeaderListTooLarge):
                decoder.decode(b"\xbe" * 3)


def test_references_to_a_large_entry_cost_no_memory() -> None:
    decoder = Decoder(max_headers=1 << 20)
    decoder.decode(inserted(b"a", b"x" * 4000))
    bomb = b"\xbe" * 65536  # 264 MB of headers
    tracemalloc.start()
    try:
        with pytest.raises(HeaderListTooLarge):
            decoder.decode(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000
    assert dynamic_entries(decoder) == [(b"a", b"x" * 4000)]


def test_a_remembered_block_is_the_same_object() -> None:
    decoder = Decoder()
    decoder.decode(inserted(b"a", b"b"))
    block = b"\x82\xbe" + encode_literal(b"traceparent", b"00-1-2-01")
    first = decoder.decode(block)
    generation = decoder.generation
    assert decoder.decode(bytes(bytearray(block))) is first
    assert decoder.generation == generation


@pytest.mark.parametrize(
    "change",
    [inserted(b"c", b"d"), inserted(b"c", b"d" * 5000), size_update(0), size_update(64)],
    ids=["insertion", "oversized insertion", "size zero", "resize"],
)
def test_every_table_change_forgets(change: bytes) -> None:
    decoder = Decoder()
    decoder.decode(inserted(b"a", b"b"))
    before = decoder.decode(b"\x82\x86")
    generation = decoder.generation
    decoder.decode(change)
    assert decoder.generation > generation
    after = decoder.decode(b"\x82\x86")
    assert after == before
    assert after is not before


def test_a_remembered_index_never_outlives_its_entry() -> None:
    decoder = Decoder()
    decoder.decode(inserted(b"a", b"1"))
    assert decoder.decode(b"\xbe") == ((b"a", b"1"),)
    decoder.decode(inserted(b"b", b"2"))
    assert decoder.decode(b"\xbe") == ((b"b", b"2"),)
    decoder.decode(size_update(0))
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")


def test_blocks_that_change_the_table_are_done_again_each_time() -> None:
    decoder = Decoder()
    block = inserted(b"a", b"b")
    decoder.decode(block)
    decoder.decode(block)
    assert dynamic_entries(decoder) == [(b"a", b"b")] * 2


def test_a_change_forgets_even_if_its_block_is_over_the_limit() -> None:
    decoder = Decoder(max_headers=1)
    decoder.decode(inserted(b"a", b"1"))
    assert decoder.decode(b"\xbe") == ((b"a", b"1"),)
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(inserted(b"b", b"2") + b"\x82")
    assert decoder.decode(b"\xbe") == ((b"b", b"2"),)


def test_what_is_remembered_is_bounded() -> None:
    decoder = Decoder()
    long_block = encode_literal(b"a", b"x" * 256)
    assert decoder.decode(long_block) is not decoder.decode(long_block)
    longest = encode_literal(b"a", b"x" * 251)
    assert len(longest) == 256
    assert decoder.decode(longest) is decoder.decode(longest)

    blocks = [encode_literal(b"n", b"%d" % number) for number in range(511)]
    first = [decoder.decode(block) for block in blocks]
    assert all(decoder.decode(block) is known for block, known in zip(blocks, first, strict=True))
    decoder.decode(encode_literal(b"n", b"one more"))  # the 513th
    assert decoder.decode(blocks[0]) is not first[0]


def test_huffman_names_from_many_blocks_stay_right() -> None:
    """More names than are remembered, each seen twice: all strings of two 5-bit letters and a 6-bit one."""
    letters = "012aceiost"
    for _ in range(2):
        decoder = Decoder()
        for high in range(10):
            for low in range(10):
                for last in range(6):  # codes 010100 to 011001: space, %, -, ., /, 3
                    coded = (high << 11 | low << 6 | 0b010100 + last).to_bytes(2, "big")
                    name = letters[high] + letters[low] + " %-./3"[last]
                    block = b"\x00\x82" + coded + b"\x00"
                    assert decoder.decode(block) == ((name.encode(), b""),)
                    assert len(hpack._known_names) <= 512


def test_encoded_fields() -> None:
    encode = Encoder().encode
    assert encode([]) == b""
    assert encode([(b":method", b"POST"), (b":status", b"200")]) == b"\x83\x88"
    assert encode([(b":path", b"/x")]) == b"\x04\x02/x"
    assert encode([(b"content-type", b"application/grpc")]) == b"\x0f\x10\x10application/grpc"
    assert encode([(b"grpc-status", b"0")]) == b"\x00\x0bgrpc-status\x010"
    assert encode([(b"a", b"x" * 127)]) == b"\x00\x01a\x7f\x00" + b"x" * 127


@given(st.lists(st.one_of(st.sampled_from(STATIC_TABLE), st.tuples(st.binary(), st.binary())), max_size=20))
def test_what_is_encoded_touches_no_table_and_is_read_back(headers: list[Header]) -> None:
    block = Encoder().encode(iter(headers))
    decoder = Decoder()
    assert list(decoder.decode(block)) == headers
    assert list(decoder.decode(EMPTY_TABLE_UPDATE + block)) == headers
    assert decoder.generation == 1  # the size update alone
