"""What a gateway reads in the JSON part of a request, plain or compressed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from isochrone.errors import InvalidArgument
from isochrone.gateway.traffic.parameters import (
    ENDS,
    NONE,
    READ_WHOLE,
    Parameters,
    both_ends,
    may_contain,
    read,
    read_bounded,
)

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
        ({"sequence_id": 3, "sequence_start": True}, Parameters(b"3", starts_sequence=True)),
        ({"sequence_id": 3, "sequence_start": False}, Parameters(b"3")),
        ({"sequence_id": 3, "sequence_start": 1}, Parameters(b"3")),
        ({"timeout": -1, "priority": True}, NONE),
        ({"timeout": 10**15, "priority": -1}, NONE),
        (None, NONE),
    ],
)
def test_read(parameters: dict[str, Any] | None, found: Parameters) -> None:
    assert read(request(0, parameters)) == found


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_not_finite_hide_nothing(number: str) -> None:
    text = b'{"inputs": [{"data": [%s]}], "parameters": %s}' % (number.encode(), json.dumps(SPOKEN).encode())
    assert read(text) == read_bounded(text, len(text)) == FOUND


@pytest.mark.parametrize("text", [b"NaN", b"{NaN", b'[{"parameters": NaN}]', b'{"parameters": {"timeout": NaN}}'])
def test_json_without_sense_has_no_parameters(text: bytes) -> None:
    assert read(text) == NONE


@pytest.mark.parametrize(
    "parameters", [rb'{"sequence_id": "\ud800"}', rb'{"priority": 1, "a": "\ud800"}', rb'{"\ud800": 1}']
)
def test_text_without_utf8_beside_a_number_that_is_not_finite_is_for_the_worker_to_reject(parameters: bytes) -> None:
    text = b'{"inputs": [{"data": [NaN]}], "parameters": %b}' % parameters
    assert read(text) == read_bounded(text, len(text)) == NONE


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"parameters": 3}'])
def test_text_that_does_not_parse_has_no_parameters(text: bytes) -> None:
    assert read(text) == NONE


def test_both_ends_of_a_large_part_are_searched() -> None:
    text = request(100_000, SPOKEN)
    assert may_contain(both_ends(text + b"binary", len(text)))
    assert len(both_ends(text, len(text))) == 8192
    assert both_ends(text, 100) == text[:100]
    assert both_ends(text, 5000) == text[:5000]


class Text(bytes):
    """Counts the bytes that are taken of it."""

    taken = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.taken += len(part)
        return part


def large(before: bytes, after: bytes, size: int = 1_000_000) -> Text:
    """A JSON part with a tensor of ``size`` bytes between two pieces of text."""
    return Text(before + b'"inputs": [{"name": "X", "data": [' + b"0," * (size // 2) + b"0]}]" + after)


def bounded(text: bytes) -> Parameters:
    return read_bounded(text, len(text))


@pytest.mark.parametrize("size", [1000, 100_000, READ_WHOLE, 2 * READ_WHOLE])
def test_parameters_behind_tensors_of_any_size(size: int) -> None:
    text = request(size, SPOKEN)
    assert read_bounded(bytearray(text) + b"binary", len(text)) == FOUND
    assert bounded(request(size, None)) == NONE


VALUE = json.dumps(SPOKEN).encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"{", b', "parameters": %b}' % VALUE),
        (b" { ", b' ,\n "parameters" : %b } \n' % VALUE),
        (b"{", b',"parameters":%b,"outputs":[{"name":"Y","parameters":{"priority":9}}]}' % VALUE),
        (b"{", b',"outputs":[{"name":"Y","parameters":{"timeout":9}}],"parameters":%b}' % VALUE),
        (b'{"parameters":{"timeout":9},', b',"parameters":%b}' % VALUE),
        (b'{"parameters":%b,' % VALUE, b"}"),
        (b'{"parameters":%b,' % VALUE, b',"outputs":[{"name":"Y","parameters":{"timeout":9}}]}'),
        ('{"id":"ü\\"}{","parameters":'.encode() + VALUE + b",", b"}"),
        (b'{"parameters":{"timeout":9},"parameters":%b,' % VALUE, b"}"),
        (b'{"other":[NaN,{"parameters":{"timeout":9}}],"parameters":%b,' % VALUE, b"}"),
        (b"{", b',"parameters":%b,"other":[NaN,-Infinity]}' % VALUE),
    ],
)
def test_parameters_at_either_end_of_a_large_part_are_found_without_reading_it(before: bytes, after: bytes) -> None:
    text = large(before, after)
    assert bounded(text) == FOUND
    assert text.taken == 2 * ENDS


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"{", b',"outputs":[{"name":"Y","parameters":%b}]}' % VALUE),
        (b"{", b',"other":{"parameters":%b}}' % VALUE),
        (b"{", rb',"other":"\"parameters\":{\"timeout\":5}}"}'),
        (b'{"other":{"parameters":%b},' % VALUE, b"}"),
        (b'{"other":[{"parameters":%b},' % VALUE, b"]}"),
        (b'{"name":"timeout",', b',"name":"sequence_id"}'),
        (b'{"parameters":3,"name":"timeout",', b"}"),
        (b'{"parameters":null,"name":"timeout",', b',"parameters":null}'),
        (b"[" * 100_000 + b'"timeout"', b'"timeout"' + b"]" * 100_000),
        (b'{"parameters":{"timeout":5,"more":"' + bytes(2 * ENDS) + b'"},', b"}"),
    ],
)
def test_parameters_of_inner_objects_are_not_those_of_the_request(before: bytes, after: bytes) -> None:
    text = large(before, after)
    assert bounded(text) == NONE
    assert text.taken == 2 * ENDS


LONG = b'"more":"' + b"x" * 2 * ENDS + b'"'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"parameters":{"sequence_id":7,%b},' % LONG, b"}"),
        (b"{", b',"parameters":{%b,"sequence_id":7}}' % LONG),
        (b"{", b',"parameters":{%b,"sequence_id":7,"timeout":5},"id":"a"}' % LONG),
    ],
)
def test_a_sequence_that_cannot_be_read_is_rejected(before: bytes, after: bytes) -> None:
    """Without it the request would go to any worker."""
    with pytest.raises(InvalidArgument, match="send the tensors as binary data"):
        bounded(large(before, after))


def test_objects_among_the_parameters_are_skipped() -> None:
    assert read(b'{"parameters":{"more":[{},[{"timeout":9}]],"timeout":5}}') == Parameters(timeout_ns=5000)
    assert read(b'{"parameters":{"sequence_id":{"a":1}}}') == NONE
