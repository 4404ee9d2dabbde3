"""Tensors as raw bytes: every datatype there and back, against the stock client's own coding."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensor_strategies import FIXED_SIZE, arrays, byte_arrays, fuzz, outcome, round_trip, same, shapes, wild_shapes
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from isochrone.errors import Internal, InvalidArgument, IsochroneError
from isochrone.protocol.tensors.binary import (
    CONTENTS_FIELD,
    decode_bytes,
    encode_bytes,
    from_binary,
    from_contents,
    to_binary,
)
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME


@pytest.mark.parametrize("name", NUMPY_BY_NAME)
@round_trip
@given(data=st.data())
def test_binary_round_trip(name, data):
    array = data.draw(arrays(name))
    assert same(from_binary("x", name, array.shape, to_binary(array, name)), array)


@pytest.mark.parametrize("name", NUMPY_BY_NAME)
@round_trip
@given(data=st.data())
def test_the_stock_clients_bytes_are_read_as_its_array(name, data):
    array = data.draw(arrays(name))
    shape = list(array.shape)
    over_http = http_client.InferInput("x", shape, name).set_data_from_numpy(array)._get_binary_data()
    over_grpc = grpc_client.InferInput("x", shape, name).set_data_from_numpy(array)._get_content()
    assert over_grpc == over_http == bytes(to_binary(array, name))
    assert same(from_binary("x", name, shape, memoryview(over_http)), array)


@round_trip
@given(hnp.arrays(np.float32, shapes, elements=st.floats(width=32, allow_nan=False)))
def test_bf16_is_the_upper_half_of_fp32(array):
    """An oracle that shares nothing with ml_dtypes: IEEE 754 round-to-nearest-even, on the bits."""
    bits = array.reshape(-1).view(np.uint32).astype(np.uint64)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    read = from_binary("x", "BF16", array.shape, upper.tobytes())
    with np.errstate(over="ignore"):
        assert same(read, array.astype(ml_dtypes.bfloat16))


@round_trip
@given(byte_arrays())
def test_bytes_agree_with_the_stock_client(array):
    theirs = serialize_byte_tensor(array).item() if array.size else b""
    assert encode_bytes(array) == theirs
    assert decode_bytes(theirs, array.size, "input 'x'").tolist() == deserialize_bytes_tensor(theirs).tolist()


@round_trip
@given(byte_arrays(st.text(max_size=8) | st.binary(max_size=8)))
def test_text_is_sent_as_utf8(array):
    expected = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    assert decode_bytes(encode_bytes(array), array.size, "x").tolist() == expected


def test_every_kind_of_bytes_array_is_encoded():
    expected = struct.pack("<I2sI0sI3s", 2, b"ab", 0, b"", 3, b"cde")
    # struct aligns nothing with "<"
    for array in (
        np.array([b"ab", b"", b"cde"]),
        np.array(["ab", "", "cde"]),
        np.array([np.bytes_(b"ab"), "", b"cde"], object),
        np.array([[b"ab"], [b""], [b"cde"]], object),
    ):
        assert encode_bytes(array) == expected


@pytest.mark.parametrize("element", [None, 3, 2.5, bytearray(b"x")])
def test_other_elements_are_refused(element):
    with pytest.raises(InvalidArgument, match=r"BYTES element 1 is .* expected bytes or str"):
        encode_bytes(np.array([b"x", element], object))


def test_text_without_utf8_is_refused():
    with pytest.raises(InvalidArgument, match="no UTF-8 form"):
        encode_bytes(np.array(["\ud800"], object))


def wire(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", 1, "expected 1 BYTES elements, which take 4 bytes or more, given 0 bytes"),
        (wire(b"abcdefgh"), 2, "expected 2 BYTES elements, given 1 in 12 bytes"),
        (wire(b"a") + b"\1\0\0", 2, "element 1 is truncated: expected a length of 4 bytes, given 3 bytes"),
        (wire(b"a", b"bcd")[:-1], 2, "element 1 is truncated: expected 3 bytes, given 2"),
        (wire(b"abcdefgh")[:-1], 2, "element 0 is truncated: expected 8 bytes, given 7"),
        (b"\xff\xff\xff\xff", 1, "element 0 is truncated: expected 4294967295 bytes, given 0"),
        (wire(b"a", b"b"), 1, "expected 1 BYTES elements, given 5 further bytes after them"),
        (b"\0", 0, "expected 0 BYTES elements, given 1 further bytes"),
        (wire(b"a"), 2**40, "expected 1099511627776 BYTES elements"),
    ],
)
def test_malformed_bytes(data, count, message):
    with pytest.raises(InvalidArgument, match=f"input 'x': .*{message}"):
        decode_bytes(memoryview(data), count, "input 'x'")


@fuzz
@given(st.binary(max_size=64), st.integers(0, 20))
def test_random_bytes_decode_strictly_or_not_at_all(data, count):
    try:
        array = decode_bytes(data, count, "x")
    except InvalidArgument:
        return
    assert array.size == count
    assert encode_bytes(array) == data


def test_fixed_size_tensors_are_views_of_the_buffer():
    buffer = bytearray(struct.pack("<4f", 1, 2, 3, 4))
    array = from_binary("x", "FP32", [2, 2], memoryview(buffer))
    struct.pack_into("<f", buffer, 0, 9)
    assert array[0, 0] == 9


def test_contiguous_arrays_are_sent_without_a_copy():
    for dtype, name in ((np.float32, "FP32"), (ml_dtypes.bfloat16, "BF16"), (np.bool_, "BOOL")):
        array = np.zeros((2, 3), dtype)
        sent = to_binary(array, name)
        assert np.shares_memory(np.frombuffer(sent, np.uint8), array)
        assert len(sent) == array.nbytes


def test_other_arrays_are_sent_in_row_major_order():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert bytes(to_binary(array.T, "INT16")) == np.ascontiguousarray(array.T).tobytes()
    assert bytes(to_binary(array[:, ::2], "INT16")) == struct.pack("<4h", 0, 2, 3, 5)


def test_an_array_of_another_type_is_not_sent():
    with pytest.raises(Internal, match="float64 cannot be sent as FP32"):
        to_binary(np.zeros(3), "FP32")


@pytest.mark.parametrize("name", FIXED_SIZE)
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_wrong_size_is_told_in_tritons_words(name, difference):
    size = 6 * NUMPY_BY_NAME[name].itemsize
    message = f"input byte size mismatch for input 'x'. Expected {size}, got {size + difference}"
    with pytest.raises(InvalidArgument, match=message):
        from_binary("x", name, [2, 3], bytes(size + difference))


def test_any_byte_but_zero_is_true():
    array = from_binary("x", "BOOL", [2, 2], b"\x00\x01\x02\xff")
    assert array.view(np.uint8).tolist() == [[0, 1], [1, 1]]


@fuzz
@given(st.sampled_from([*NUMPY_BY_NAME, "FP8", ""]), wild_shapes, st.binary(max_size=32))
def test_malformed_binary_raises_only_our_errors(datatype, shape, data):
    array = outcome(from_binary, "x", datatype, shape, memoryview(data))
    assert array.http_status == 400 if isinstance(array, IsochroneError) else list(array.shape) == shape


def contents_of(name: str, array: np.ndarray) -> service_pb2.InferTensorContents:
    return service_pb2.InferTensorContents(**{CONTENTS_FIELD[name]: array.ravel().tolist()})


@pytest.mark.parametrize("name", CONTENTS_FIELD)
@round_trip
@given(data=st.data())
def test_contents_round_trip(name, data):
    array = data.draw(arrays(name))
    # Through the wire, as a server sees it; a NaN's payload may change on the way through a double.
    contents = service_pb2.InferTensorContents.FromString(contents_of(name, array).SerializeToString())
    read = from_contents("x", name, array.shape, contents)
    if array.dtype.kind == "f":
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert np.array_equal(read, array, equal_nan=True)
    else:
        assert same(read, array)


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_half_floats_have_no_contents(name):
    with pytest.raises(InvalidArgument, match=f"input 'x': {name} has no typed contents, send .*raw_input"):
        from_contents("x", name, [1], service_pb2.InferTensorContents(fp32_contents=[1]))


@pytest.mark.parametrize("name", CONTENTS_FIELD)
def test_the_wrong_field_is_told_with_the_right_one(name):
    wrong = "fp64_contents" if CONTENTS_FIELD[name] != "fp64_contents" else "fp32_contents"
    contents = service_pb2.InferTensorContents(**{wrong: [1.0]})
    with pytest.raises(InvalidArgument, match=f"{name} is carried by {CONTENTS_FIELD[name]}, given {wrong}"):
        from_contents("x", name, [1], contents)


def test_a_second_field_is_refused():
    contents = service_pb2.InferTensorContents(int_contents=[1], fp32_contents=[1])
    with pytest.raises(InvalidArgument, match="given fp32_contents"):
        from_contents("x", "INT32", [1], contents)


@pytest.mark.parametrize(
    ("name", "value"),
    [("INT8", 128), ("INT8", -129), ("INT16", 2**15), ("INT16", -(2**31)), ("UINT8", 256), ("UINT16", 2**32 - 1)],
)
def test_narrow_integers_are_range_checked(name, value):
    contents = service_pb2.InferTensorContents(**{CONTENTS_FIELD[name]: [0, value]})
    with pytest.raises(InvalidArgument, match=f"input 'x': element 1 is {value}, outside {name}'s range"):
        from_contents("x", name, [2], contents)


@pytest.mark.parametrize("given_count", [0, 5, 7])
@pytest.mark.parametrize("name", CONTENTS_FIELD)
def test_a_wrong_count_of_contents_is_told(name, given_count):
    array = np.full(given_count, b"" if name == "BYTES" else 0, NUMPY_BY_NAME[name])
    message = f"expected 6 elements in {CONTENTS_FIELD[name]} for shape \\[2, 3\\], given {given_count}"
    with pytest.raises(InvalidArgument, match=message):
        from_contents("x", name, [2, 3], contents_of(name, array))


@fuzz
@given(
    st.sampled_from([*NUMPY_BY_NAME, "FP8"]),
    wild_shapes,
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    st.lists(st.floats(width=32), max_size=4),
    st.lists(st.binary(max_size=4), max_size=4),
)
def test_malformed_contents_raise_only_our_errors(datatype, shape, ints, floats, strings):
    contents = service_pb2.InferTensorContents(int_contents=ints, fp32_contents=floats, bytes_contents=strings)
    array = outcome(from_contents, "x", datatype, shape, contents)
    assert array.http_status == 400 if isinstance(array, IsochroneError) else list(array.shape) == shape
