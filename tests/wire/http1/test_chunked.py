"""The chunked coding: any split gives the same body, and nothing that two readers could read differently passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.wire.http1.chunked import ChunkedDecoder, ChunkedError


def encode(chunks: list[bytes], trailer: bytes = b"") -> bytes:
    parts = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks if chunk]
    return b"".join([*parts, b"0\r\n", trailer, b"\r\n"])


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=60), max_size=8),
    cuts=st.lists(st.integers(0, 600), max_size=12),
    trailer=st.sampled_from([b"", b"x-sum: 1\r\n", b"a: b\r\nc: d\r\n"]),
    follow=st.binary(max_size=20),
)
def test_any_split_gives_the_same_body_and_end(
    chunks: list[bytes], cuts: list[int], trailer: bytes, follow: bytes
) -> None:
    message = encode(chunks, trailer)
    data = message + follow
    decoder = ChunkedDecoder()
    body = bytearray()
    start, consumed = 0, 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        piece = data[start:cut]
        if not decoder.done:
            consumed += decoder.feed(piece)
            body += decoder.take()
        start = cut
    assert decoder.done
    assert bytes(body) == b"".join(chunks)
    assert consumed == len(message)
    assert decoder.total == len(body)


def test_starts_where_it_is_told_to() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(b"head3\r\nabc\r\n0\r\n\r\nnext", 4) == 4 + 13
    assert decoder.take() == b"abc"


@pytest.mark.parametrize(
    "data",
    [
        b"+3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3_0\r\nabc",
        b"-1\r\n",
        b"\r\nabc",
        b" 3\r\nabc\r\n",
        b"g\r\n",
        b"3\nabc\r\n",
        b"3\r\nabc\n",
        b"3\r\nabcd\r\n",
        b"3;a\rb\r\nabc\r\n",
        b"3\r\r\nabc\r\n",
        b"f" * 16 + b"\r\n",
        b"3;" + b"x" * 300,
        b"0\r\n" + b"a: " + b"x" * 20_000,
        b"0\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
    ],
)
def test_refuses(data: bytes) -> None:
    with pytest.raises(ChunkedError):
        ChunkedDecoder().feed(data)


def test_extensions_and_upper_case_are_taken() -> None:
    decoder = ChunkedDecoder()
    decoder.feed(b"A;name=value\r\n0123456789\r\n0;last\r\n\r\n")
    assert decoder.done
    assert decoder.take() == b"0123456789"


@pytest.mark.parametrize("line", [b"5;a=\0", b"5;\x7f", b"5;a\x01b", b"5 \x0b"])
def test_control_characters_beside_a_size_are_rejected(line: bytes) -> None:
    with pytest.raises(ChunkedError):
        ChunkedDecoder().feed(line + b"\r\nhello\r\n0\r\n\r\n", 0)
