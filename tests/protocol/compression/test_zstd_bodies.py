"""zstd: round trips, limits against bombs and wide windows, what is cut off or garbled, and a server without it."""

from __future__ import annotations

import asyncio
import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from test_inflating import Answered, Echo

from isochrone.errors import Cancelled, MalformedRequest, PayloadTooLarge, UnsupportedEncoding
from isochrone.protocol.compression import codec, zstd
from isochrone.protocol.compression import inflating as inflating_module
from isochrone.protocol.compression.codec import EXPANDED_BYTES, EXPANSION, INLINE_BYTES, Inflation, StartInflation
from isochrone.protocol.compression.deflating import respond_compressed
from isochrone.protocol.rest.headers import inflating
from isochrone.wire.bodies.budget import MemoryBudget
from isochrone.wire.exchange import Head

ZSTD = Head(b"POST", b"/", ((b"content-encoding", b"zstd"),))
LIMIT = 1 << 26


def packed(content: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**{"level": 1, **options}).compress(content)  # type: ignore[arg-type]


def flushed(pieces: list[bytes]) -> bytes:
    """A frame that announces no size, with a block for each piece."""
    encoder = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
    made = b"".join(encoder.compress(each) + encoder.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for each in pieces)
    return made + encoder.flush()


def with_empty_blocks(count: int) -> bytes:
    """RFC 8878: a head without a size and with the smallest window, raw blocks of no bytes, and the last one."""
    return b"\x28\xb5\x2f\xfd\x00\x00" + bytes(3) * count + b"\x01\x00\x00"


@given(parts=st.lists(st.binary(max_size=200), max_size=5))
def test_round_trip(parts: list[bytes]) -> None:
    body = b"".join(codec.compress(b"zstd", parts))
    assert codec.decompress(b"zstd", body, 10_000) == b"".join(parts)
    assert zstandard.ZstdDecompressor().decompress(body) == b"".join(parts)


@given(
    size=st.sampled_from([0, 1, 1000, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 300_000, 3 * 256 * 1024]),
    seed=st.integers(0, 255),
    room=st.sampled_from([0, 5]),
    checksum=st.booleans(),
)
def test_a_small_body_is_given_at_once_and_any_body_in_the_end(size: int, seed: int, room: int, checksum: bool) -> None:
    body = bytes([seed]) * size
    inflation = Inflation(b"zstd", packed(body, write_checksum=checksum), 1 << 20, room)
    at_once = inflation.begin()
    assert (at_once is not None) == (size <= INLINE_BYTES)
    for given_body in (at_once, inflation.finish()):
        assert given_body is None or given_body == bytes(room) + body


@given(pieces=st.lists(st.binary(max_size=3000), max_size=8), most=st.integers(1, 20_000))
def test_a_body_of_unknown_size_in_parts_of_any_size(pieces: list[bytes], most: int) -> None:
    inflation = Inflation(b"zstd", flushed(pieces), 1 << 20)
    allowed = most
    while (whole := inflation.resume(allowed)) is None:
        allowed += most
    assert whole == b"".join(pieces)
    assert inflation.begin() == whole


@given(content=st.binary(max_size=2000), checksum=st.booleans(), data=st.data())
def test_what_is_cut_off_or_followed_is_refused(content: bytes, checksum: bool, data: st.DataObject) -> None:
    whole = packed(content, write_checksum=checksum)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRequest, match="ends early"):
        codec.decompress(b"zstd", whole[:cut], 10_000)
    with pytest.raises(MalformedRequest, match="4 bytes follow the zstd body"):
        codec.decompress(b"zstd", whole + b"more", 10_000)


@given(content=st.binary(max_size=500), noise=st.binary(max_size=60), position=st.integers(0, 500))
def test_garbled_bodies_end_in_one_error(content: bytes, noise: bytes, position: int) -> None:
    whole = bytearray(packed(content, write_checksum=True))
    whole[position : position + len(noise)] = noise
    for make in (
        lambda: Inflation(b"zstd", whole, 10_000).begin(),
        lambda: Inflation(b"zstd", whole, 10_000).finish(),
        lambda: StartInflation(b"zstd", whole, 10_000, 100).begin(),
    ):
        try:
            made = make()
        except (MalformedRequest, PayloadTooLarge):
            continue
        assert made is None or len(made) <= 10_000


def test_a_wrong_checksum_is_refused() -> None:
    whole = bytearray(packed(bytes(300_000), write_checksum=True))
    whole[-1] ^= 1
    with pytest.raises(MalformedRequest, match="does not decompress"):
        codec.decompress(b"zstd", whole, LIMIT)


def test_a_bomb_is_refused_by_the_limits_name() -> None:
    bomb = packed(bytes(1_000_000))
    assert len(bomb) < 100
    assert len(codec.decompress(b"zstd", bomb, 1_000_000)) == 1_000_000
    with pytest.raises(PayloadTooLarge, match=r"max_body_bytes \(999999\)"):
        codec.decompress(b"zstd", bomb, 999_999)
    with pytest.raises(PayloadTooLarge, match=r"max_body_bytes \(999999\)"):
        codec.decompress(b"zstd", flushed([bytes(1_000_000)]), 999_999)


def test_a_body_may_not_grow_a_hundredfold_once_it_is_large_unless_it_was_asked_for() -> None:
    bomb = packed(bytes(EXPANDED_BYTES + 1))
    assert len(bomb) * EXPANSION < EXPANDED_BYTES
    with pytest.raises(PayloadTooLarge, match=f"of {len(bomb)} bytes expands to more than {EXPANDED_BYTES} bytes"):
        codec.decompress(b"zstd", bomb, 1 << 30)
    assert len(Inflation(b"zstd", bomb, 1 << 30, expected=True).finish()) == EXPANDED_BYTES + 1


def test_a_wide_window_is_refused_before_anything_is_decompressed() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=24)
    encoder = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = encoder.compress(b"tensor" * 1000) + encoder.flush()
    with pytest.raises(PayloadTooLarge, match="needs a window of 16777216 bytes, and 8388608 are allowed"):
        Inflation(b"zstd", body, LIMIT)
    # The highest level that the error recommends fits.
    best = zstandard.ZstdCompressor(level=zstd.HIGHEST_LEVEL).compressobj()
    fits = best.compress(b"tensor" * 1000) + best.flush()
    assert codec.decompress(b"zstd", fits, LIMIT) == b"tensor" * 1000


def test_empty_blocks_are_limited() -> None:
    assert codec.decompress(b"zstd", with_empty_blocks(1000), LIMIT) == b""
    with pytest.raises(PayloadTooLarge, match="too many small blocks"):
        codec.decompress(b"zstd", with_empty_blocks(100_000), LIMIT)


def test_nobody_waits_for_what_is_abandoned() -> None:
    inflation = Inflation(b"zstd", packed(bytes(1_000_000)), 1 << 20)
    inflation.abandoned = True
    with pytest.raises(Cancelled):
        inflation.finish()


@pytest.mark.parametrize("behind", [0, 1_000_000])
def test_the_start_of_a_body_is_given_at_once_whatever_stands_behind_it(behind: int) -> None:
    numbers = random.Random(1)
    text = numbers.randbytes(20_000)
    body = packed(text + numbers.randbytes(behind))
    for wanted in (0, 1, 20_000):
        found = StartInflation(b"zstd", body, 1 << 30, wanted).begin()
        # The first block of a large body ends behind what is looked at on the event loop.
        start = bytes(found or StartInflation(b"zstd", body, 1 << 30, wanted).finish())
        assert start[:wanted] == text[:wanted]
    everything = StartInflation(b"zstd", body, 1 << 30, 10_000_000).finish()
    assert len(everything) == 20_000 + behind


def test_a_start_is_all_that_a_bomb_gives() -> None:
    start = StartInflation(b"zstd", packed(bytes(64 << 20)), 1 << 30, 1 << 20)
    assert start.begin() is None
    assert start.finish() == bytes(1 << 20)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [(b"zstd", b"zstd"), (b"gzip, deflate, zstd", b"gzip"), (b"zstd;q=0, gzip", b"gzip"), (b"br, zstd", b"zstd")],
)
def test_choice(accept: bytes, chosen: bytes) -> None:
    assert codec.choose(accept) == chosen


def test_a_server_without_the_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "zstandard", None)
    with pytest.raises(
        UnsupportedEncoding, match=r"needs the package zstandard \(pip install isochrone\[compression\]"
    ):
        Inflation(b"zstd", b"", LIMIT)
    exchange = Answered(b"anything")
    inflating(Echo(), ZSTD, LIMIT).handle(exchange)
    assert exchange.status == 415
    assert b"zstandard" in exchange.answer


def test_a_large_body_is_decompressed_beside_the_loop_and_its_window_counts() -> None:
    async def scenario() -> None:
        content = random.Random(1).randbytes(1000) * 5000
        body = packed(content, level=19)
        window = zstd.window_of(body)
        assert window > 1 << 20
        budget = MemoryBudget(1 << 40)
        exchange = Answered(body, budget)
        inflating(Echo(), ZSTD, LIMIT).handle(exchange)
        assert exchange.reserved == window + inflating_module._SLICE
        await asyncio.wait_for(exchange.wait(), 60)
        assert exchange.answer == content
        assert exchange.reserved == len(content)
        poor = Answered(body, MemoryBudget(inflating_module._SLICE + window - 1))
        inflating(Echo(), ZSTD, LIMIT).handle(poor)
        assert poor.status == 503
        assert poor.reserved == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [1000, 2000, 100_000])
def test_answers_are_compressed_where_that_makes_them_smaller(size: int) -> None:
    async def scenario() -> None:
        for content, shrinks in ((b"0.5," * (size // 4), size >= 1024), (random.Random(1).randbytes(size), False)):
            exchange = Answered()
            respond_compressed(exchange, b"zstd", (), [content], lambda: ((b"x", b"y"),))
            await asyncio.wait_for(exchange.wait(), 60)
            encoding = dict(exchange.headers).get(b"content-encoding")
            assert (encoding == b"zstd") == shrinks
            assert (codec.decompress(b"zstd", exchange.answer, LIMIT) if shrinks else exchange.answer) == content
            assert (b"x", b"y") in exchange.headers

    asyncio.run(scenario())


def test_what_a_receiver_would_refuse_as_a_bomb_is_sent_as_it_is() -> None:
    assert codec.may_expand([bytes(10)], EXPANDED_BYTES)
    assert not codec.may_expand([bytes(10)], EXPANDED_BYTES + 1)
    assert codec.may_expand([bytes(EXPANDED_BYTES // EXPANSION + 1)], EXPANDED_BYTES + 1)


def _frame(blocks: bytes) -> bytes:
    """Without a content size, with a window of 1 MiB."""
    return b"\x28\xb5\x2f\xfd\x00\x50" + blocks


def _raw(data: bytes, last: bool = False) -> bytes:
    return ((len(data) << 3) | last).to_bytes(3, "little") + data


@pytest.mark.parametrize(("blocks", "is_inline"), [(200, True), (400, False)])
def test_many_small_blocks_are_for_a_thread(blocks: int, is_inline: bool) -> None:
    body = _frame(_raw(b"x" * 48) * blocks + _raw(b"", last=True))
    inflation = Inflation(b"zstd", body, 1 << 20)
    begun = inflation.begin()
    assert (begun is not None) == is_inline
    assert bytes(begun if begun is not None else inflation.finish()) == b"x" * 48 * blocks
    start = StartInflation(b"zstd", body, 1 << 20, 48 * blocks)
    begun = start.begin()
    assert (begun is not None) == is_inline
    assert bytes(begun if begun is not None else start.finish()) == b"x" * 48 * blocks


def test_an_abandoned_body_is_not_looked_through() -> None:
    looks = []

    def is_abandoned() -> bool:
        looks.append(True)
        return len(looks) == 3

    body = _frame(_raw(b"x" * 300) * 20_000 + _raw(b"", last=True))
    with pytest.raises(Cancelled):
        zstd.ZstdDecoder(body, is_abandoned=is_abandoned)
