"""Protobuf's variable-length integers: what protobuf's own library writes and reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.errors import MalformedRequest
from isochrone.protocol.varint import read_varint
from isochrone.varint import encode_varint


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_are_encoded_as_protobuf_encodes_them(value: int) -> None:
    parameter = service_pb2.InferParameter(uint64_param=value)
    assert parameter.SerializeToString() == b"\x28" + encode_varint(value)


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_reading_returns_the_number_and_the_position_behind_it(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert read_varint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@pytest.mark.parametrize(
    ("message", "reason"), [(b"", "cut short"), (b"\x80" * 9, "cut short"), (b"\xff" * 12, "longer than ten bytes")]
)
def test_malformed_numbers_are_rejected(message: bytes, reason: str) -> None:
    with pytest.raises(MalformedRequest, match=reason):
        read_varint(message, 0)
