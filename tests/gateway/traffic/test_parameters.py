"""What a gateway reads in the JSON part of a request, plain or compressed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from isochrone.gateway.traffic.parameters import NONE, Parameters, both_ends, may_speak, read, read_opened

SPOKEN = {"sequence_id": 7, "timeout": 5000, "priority": 2}
FOUND = Parameters(b"7", 5_000_000, 2)


def request(size: int, parameters: dict[str, Any] | None) -> bytes:
    """A JSON part with a tensor of about so many bytes that hardly compresses, and parameters behind it."""
    numbers = random.Random(1)
    data = [numbers.randrange(10**8) for _ in range(size // 10)]
    return json.dumps({"inputs": [{"name": "X", "data": data}], "parameters": parameters or {}}).encode()


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        (SPOKEN, FOUND),
        ({"sequence_id": "a"}, Parameters(b"a")),
        ({"timeout": -1, "priority": True}, NONE),
        ({"timeout": 10**15, "priority": -1}, NONE),
        (None, NONE),
    ],
)
def test_read(parameters: dict[str, Any] | None, found: Parameters) -> None:
    assert read(request(0, parameters)) == found


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"parameters": 3}'])
def test_what_does_not_parse_says_nothing(text: bytes) -> None:
    assert read(text) == NONE


def test_both_ends_of_a_large_part_are_searched() -> None:
    text = request(100_000, SPOKEN)
    assert may_speak(both_ends(text + b"binary", len(text)))
    assert len(both_ends(text, len(text))) == 8192
    assert both_ends(text, 100) == text[:100]
    assert both_ends(text, 5000) == text[:5000]


def test_of_a_compressed_part_both_ends_count_too() -> None:
    assert read_opened(bytearray(request(100_000, SPOKEN))) == FOUND
    assert read_opened(bytearray(request(100_000, None))) == NONE
