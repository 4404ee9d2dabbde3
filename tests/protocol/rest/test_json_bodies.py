"""Bodies as Triton reads them: numbers that JSON lacks, and keys that are given twice."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from isochrone.errors import InvalidArgument, MalformedRequest
from isochrone.protocol.rest.json_bodies import read_json, reject_repeated_keys
from isochrone.protocol.tensors.json_values import number


def read(body: bytes) -> object:
    return read_json(body, msgspec.json.decode, object)


@pytest.mark.parametrize("body", [b'{"a": [1, 2.5, "NaN"]}', bytearray(b"[]"), memoryview(b"7")])
def test_ordinary_bodies(body: bytes) -> None:
    assert read(body) == json.loads(bytes(body))


def test_numbers_that_json_lacks() -> None:
    value = read(b'{"a": [NaN, Infinity, -Infinity, 1]}')
    assert isinstance(value, dict)
    assert math.isnan(value["a"][0])
    assert value["a"][1:] == [math.inf, -math.inf, 1]


def test_of_a_declared_type() -> None:
    class Body(msgspec.Struct):
        data: list[float]
        id: str = ""

    decode = msgspec.json.Decoder(Body).decode
    assert read_json(b'{"data": [Infinity], "id": "x"}', decode, Body) == Body([math.inf], "x")
    with pytest.raises(MalformedRequest, match="Expected `str`"):
        read_json(b'{"data": [NaN], "id": 5}', decode, Body)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[nan]", b"[Inf]", b'"\\ud800"', b"\xff", b"[1e400]", b"[NaN,", b"[NaN, 1e400]"),
        *(b'["\\ud800", NaN]', b"[NaN" * 1, b"[" * 100_000 + b"NaN", b'{"\\udc00": NaN}', b"\xffNaN"),
    ],
)
def test_whatever_is_wrong_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedRequest, match="failed to parse the request JSON"):
        read(body)


@pytest.mark.parametrize("value", [0.0, 1.5, -2.0, 1e300])
def test_ordinary_numbers_are_left_alone(value: float) -> None:
    assert number(value) == value


def test_keys_that_are_given_twice() -> None:
    reject_repeated_keys(b'{"a": {"b": 1}, "b": [{"a": NaN}]}')
    for body in (b'{"a": 1, "a": 2}', b'{"x": {"a": 1, "b": 2, "a": 1}}', b'[{"a": 1, "\\u0061": 1}]'):
        with pytest.raises(InvalidArgument, match="'a' already exists in request"):
            reject_repeated_keys(body)
