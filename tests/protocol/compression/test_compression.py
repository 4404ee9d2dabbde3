"""gzip and deflate: round trips, the limit against bombs, and refusals of what does not decompress."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import Cancelled, MalformedRequest, PayloadTooLarge, Unsupported
from isochrone.protocol.compression.codec import (
    EXPANDED_BYTES,
    EXPANSION,
    INLINE_BYTES,
    MIN_COMPRESSED,
    Inflation,
    StartInflation,
    choose,
    compress,
    compresses_well,
    decompress,
)


@given(parts=st.lists(st.binary(max_size=200), max_size=5), encoding=st.sampled_from([b"gzip", b"deflate"]))
def test_round_trip(parts: list[bytes], encoding: bytes) -> None:
    assert decompress(encoding, b"".join(compress(encoding, parts)), 10_000) == b"".join(parts)


@pytest.mark.parametrize("encoding", [b"gzip", b"x-gzip", b" GZIP "])
def test_names_of_gzip(encoding: bytes) -> None:
    assert decompress(encoding, gzip.compress(b"tensor"), 100) == b"tensor"


def test_deflate_with_and_without_its_wrapper() -> None:
    raw = zlib.compressobj(wbits=-15)
    assert decompress(b"deflate", raw.compress(b"tensor") + raw.flush(), 100) == b"tensor"
    assert decompress(b"deflate", zlib.compress(b"tensor"), 100) == b"tensor"


def test_identity() -> None:
    assert decompress(b"identity", memoryview(b"tensor"), 1) == b"tensor"
    assert decompress(b"", b"tensor", 1) == b"tensor"


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_a_bomb_is_refused_by_the_limits_name(encoding: bytes) -> None:
    bomb = b"".join(compress(encoding, [bytes(1_000_000)]))
    assert len(bomb) < 10_000
    assert len(decompress(encoding, bomb, 1_000_000)) == 1_000_000
    with pytest.raises(PayloadTooLarge, match=r"max_body_bytes \(999999\)"):
        decompress(encoding, bomb, 999_999)


def test_refuses_what_is_cut_off_garbled_or_followed() -> None:
    whole = gzip.compress(b"tensor" * 100)
    for body, words in (
        (whole[:-4], "ends early"),
        (b"", "ends early"),
        (b"not gzip at all", "does not decompress"),
        (whole + b"more", "4 bytes follow"),
    ):
        with pytest.raises(MalformedRequest, match=words):
            decompress(b"gzip", body, 10_000)
    with pytest.raises(MalformedRequest):
        decompress(b"deflate", b"\xff\xff\xff", 100)


def test_refuses_other_encodings_by_name() -> None:
    with pytest.raises(Unsupported, match="'br'"):
        decompress(b"br", b"", 1)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, None),
        (b"", None),
        (b"br", None),
        (b"gzip", b"gzip"),
        (b"br, deflate, gzip", b"deflate"),
        (b"GZIP;q=0.5", b"gzip"),
        (b"gzip;q=0, deflate", b"deflate"),
        (b"gzip; q=0.000", None),
    ],
)
def test_choice(accept: bytes | None, chosen: bytes | None) -> None:
    assert choose(accept) == chosen


# What may be done on the event loop.


@given(
    size=st.sampled_from([0, 1, 1000, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 300_000, 3 * 256 * 1024]),
    seed=st.integers(0, 255),
    encoding=st.sampled_from([b"gzip", b"deflate"]),
    room=st.sampled_from([0, 5]),
)
def test_a_small_body_is_given_at_once_and_any_body_in_the_end(
    size: int, seed: int, encoding: bytes, room: int
) -> None:
    body = bytes([seed]) * size
    packed = b"".join(compress(encoding, [body]))
    inflation = Inflation(encoding, packed, 1 << 20, room)
    at_once = inflation.begin()
    assert (at_once is not None) == (size <= INLINE_BYTES)
    for given_body in (at_once, inflation.finish()):
        assert given_body is None or given_body == bytes(room) + body


@pytest.mark.parametrize("kind", ["whole", "start"])
def test_a_small_body_needs_one_decoder(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder costs several times as much as a small body."""
    made = []
    make = zlib.decompressobj

    def counted(window: int) -> object:
        made.append(window)
        return make(window)

    body = gzip.compress(b"tensor")
    monkeypatch.setattr(zlib, "decompressobj", counted)
    inflation = Inflation(b"gzip", body, 100) if kind == "whole" else _start(body, 100)
    assert inflation.begin() == b"tensor"
    assert len(made) == 1


def test_a_body_that_is_large_before_it_is_opened_is_not_begun() -> None:
    noise = random.Random(1).randbytes(70_000)
    inflation = Inflation(b"gzip", gzip.compress(noise), 1 << 20)
    assert inflation.begin() is None
    assert inflation.finish() == noise


def test_what_follows_a_large_body_is_counted() -> None:
    packed = gzip.compress(random.Random(1).randbytes(200_000))
    with pytest.raises(MalformedRequest, match="100000 bytes follow the gzip body"):
        decompress(b"gzip", packed + bytes(100_000), 1 << 20)
    with pytest.raises(MalformedRequest, match="ends early"):
        decompress(b"gzip", packed[:-100_000], 1 << 20)


def test_a_body_may_not_grow_a_hundredfold_once_it_is_large() -> None:
    bomb = gzip.compress(bytes(EXPANDED_BYTES + 1), 9)
    assert len(bomb) * EXPANSION < EXPANDED_BYTES
    with pytest.raises(PayloadTooLarge, match=f"of {len(bomb)} bytes expands to more than {EXPANDED_BYTES} bytes"):
        decompress(b"gzip", bomb, 1 << 30)
    assert len(decompress(b"gzip", gzip.compress(bytes(EXPANDED_BYTES), 9), 1 << 30)) == EXPANDED_BYTES


def test_nobody_waits_for_what_is_abandoned() -> None:
    inflation = Inflation(b"gzip", gzip.compress(bytes(1_000_000)), 1 << 20)
    inflation.abandoned = True
    with pytest.raises(Cancelled):
        inflation.finish()


def test_json_is_worth_compressing_and_noise_is_not() -> None:
    json = b'{"outputs":[' + b"0.5,1.25," * MIN_COMPRESSED
    noise = random.Random(1).randbytes(MIN_COMPRESSED)
    assert compresses_well([json])
    assert not compresses_well([noise])
    # The JSON part of an answer with binary tensors says nothing of them.
    assert not compresses_well([json[:200], noise])


@pytest.mark.parametrize("wrapper", [zlib.MAX_WBITS, -zlib.MAX_WBITS])
@pytest.mark.parametrize("most", [1, 1000, 300_000, 1 << 20])
def test_a_body_may_be_inflated_in_parts_of_any_size(most: int, wrapper: int) -> None:
    content = random.Random(3).randbytes(700) * 1000 if most > 1 else b"abc" * 50
    encoder = zlib.compressobj(1, zlib.DEFLATED, wrapper)
    inflation = Inflation(b"deflate", encoder.compress(content) + encoder.flush(), 1 << 26, room=5)
    parts, allowed = 0, most
    while (whole := inflation.resume(allowed)) is None:
        parts, allowed = parts + 1, allowed + most
    assert whole[5:] == content
    assert len(content) // most <= parts + 1 <= len(content) // most + 2


def _start(body: bytes, wanted: int, encoding: bytes = b"gzip") -> StartInflation:
    return StartInflation(encoding, body, 1 << 30, wanted)


@pytest.mark.parametrize("wrapper", [zlib.MAX_WBITS, -zlib.MAX_WBITS, 16 + zlib.MAX_WBITS])
@pytest.mark.parametrize("behind", [0, 1_000_000])
def test_the_start_of_a_body_is_given_at_once_whatever_stands_behind_it(wrapper: int, behind: int) -> None:
    numbers = random.Random(1)
    text = numbers.randbytes(20_000)
    encoder = zlib.compressobj(1, zlib.DEFLATED, wrapper)
    body = encoder.compress(text + numbers.randbytes(behind)) + encoder.flush()
    encoding = b"gzip" if wrapper > zlib.MAX_WBITS else b"deflate"
    for wanted in (0, 1, 20_000):
        found = _start(body, wanted, encoding).begin()
        assert found is not None
        assert found[:wanted] == text[:wanted]


@pytest.mark.parametrize("most", [1000, 70_000, 1 << 30])
def test_a_large_start_is_given_in_parts_of_any_size(most: int) -> None:
    numbers = random.Random(1)
    text = numbers.randbytes(300_000)
    body = gzip.compress(text + numbers.randbytes(300_000), 1)
    start = _start(body, len(text))
    assert start.begin() is None
    given = most
    while (found := start.resume(given)) is None:
        given += most
    assert found == text
    # All of it, where it has less than is wanted.
    assert _start(body, 10_000_000).finish() == gzip.decompress(body)


def test_a_start_is_all_that_a_bomb_gives() -> None:
    bomb = gzip.compress(bytes(64 << 20), 1)
    start = _start(bomb, 1 << 20)
    assert start.begin() is None
    assert start.finish() == bytes(1 << 20)
