"""gzip and deflate: round trips, the limit against bombs, and refusals of what does not decompress."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import MalformedRequest, PayloadTooLarge, Unsupported
from isochrone.wire.compression import choose, compress, decompress


@given(parts=st.lists(st.binary(max_size=200), max_size=5), encoding=st.sampled_from([b"gzip", b"deflate"]))
def test_round_trip(parts: list[bytes], encoding: bytes) -> None:
    assert decompress(encoding, compress(encoding, [*parts]), 10_000) == b"".join(parts)


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
    bomb = compress(encoding, [bytes(1_000_000)])
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
