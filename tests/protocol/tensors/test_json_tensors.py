"""Tensors as JSON numbers and strings: what goes in comes out, and nothing is rounded, wrapped or guessed."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import tritonclient.http as http_client
from hypothesis import given
from hypothesis import strategies as st
from tensor_strategies import INTEGERS, arrays, byte_arrays, fuzz, json_values, outcome, round_trip, same, wild_shapes

from isochrone.errors import Internal, InvalidArgument, IsochroneError
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.protocol.tensors.json_values import from_json, to_json

IN_JSON = [name for name in NUMPY_BY_NAME if name not in ("BF16", "BYTES")]
FLOATS = ["FP16", "FP32", "FP64"]


@pytest.mark.parametrize("name", IN_JSON)
@round_trip
@given(data=st.data())
def test_round_trip_through_real_json(name, data):
    array = data.draw(arrays(name, finite=True))
    flat = msgspec.json.decode(msgspec.json.encode(to_json(array, name)))
    assert same(from_json("x", name, array.shape, flat), array)


@pytest.mark.parametrize("name", IN_JSON)
@round_trip
@given(data=st.data())
def test_nested_data_is_the_same_as_flat(name, data):
    array = data.draw(arrays(name, finite=True).filter(lambda a: a.ndim > 0))
    assert same(from_json("x", name, array.shape, array.tolist()), array)


@round_trip
@given(byte_arrays(st.text(max_size=8).map(str.encode)))
def test_text_round_trip(array):
    assert same(from_json("x", "BYTES", array.shape, to_json(array, "BYTES")), array)


@pytest.mark.parametrize("name", [*IN_JSON, "BYTES"])
@round_trip
@given(data=st.data())
def test_the_stock_clients_json_is_read_as_its_array(name, data):
    texts = byte_arrays(st.text(max_size=8).map(str.encode))
    array = data.draw(texts if name == "BYTES" else arrays(name, finite=True))
    tensor = http_client.InferInput("x", list(array.shape), name).set_data_from_numpy(array, binary_data=False)
    assert same(from_json("x", name, array.shape, tensor._get_tensor()["data"]), array)


def test_dimensions_of_one_may_be_left_out_or_added():
    for data in ([1, 2, 3], [[1, 2, 3]], [[1], [2], [3]]):
        for shape in ([3], [1, 3], [3, 1]):
            assert from_json("x", "INT32", shape, data).shape == tuple(shape)
    assert from_json("x", "INT32", [], [7]).shape == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1, 2], [3, 4], [5, 6]], r"nested as \[3,2\], expected \[2, 3\]"),
        ([[1, 2, 3], [4, 5]], "ragged at depth 1"),
        ([[1, 2, 3], 4, 5, 6], "ragged at depth 1"),
        ([1, [2], 3, 4, 5, 6], r"element 1 is \[2\], expected an integer"),
        ([1, 2, 3, 4, 5], r"expected 6 elements for shape \[2, 3\], given 5"),
        ([1, 2, 3, 4, 5, 6, 7], "given 7"),
        ([], "given 0"),
        (6, "expected a list as data, given 6"),
        ({"a": 1}, "expected a list as data, given an object of 1 keys"),
        ("123456", "expected a list as data, given '123456'"),
        (None, "expected a list as data, given None"),
    ],
)
def test_data_of_the_wrong_form(data, message):
    with pytest.raises(InvalidArgument, match=f"input 'x': .*{message}"):
        from_json("x", "INT32", [2, 3], data)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_reach_the_limits_and_not_beyond(name):
    limits = np.iinfo(NUMPY_BY_NAME[name])
    edge = [int(limits.min), int(limits.max)]
    assert from_json("x", name, [2], edge).tolist() == edge
    for value in (edge[0] - 1, edge[1] + 1, 10**30, -(10**30)):
        with pytest.raises(InvalidArgument, match=f"input 'x': element 1 is {value}, outside {name}'s range"):
            from_json("x", name, [2], [0, value])


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [1.0, True, None, "1", float("nan")])
def test_only_integers_are_integers(name, value):
    with pytest.raises(InvalidArgument, match=f"input 'x': element 1 is {value!r}, expected an integer for {name}"):
        from_json("x", name, [2], [0, value])


@pytest.mark.parametrize("value", [1, 0, None, "true", 1.0])
def test_only_booleans_are_booleans(value):
    with pytest.raises(InvalidArgument, match=f"element 1 is {value!r}, expected true or false"):
        from_json("x", "BOOL", [2], [True, value])


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [True, None, "1.0"])
def test_only_numbers_are_numbers(name, value):
    with pytest.raises(InvalidArgument, match=f"element 1 is {value!r}, expected a number for {name}"):
        from_json("x", name, [2], [0, value])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FP16", 65520.0), ("FP16", 70000), ("FP32", 1e39), ("FP32", -(10**39)), ("FP64", 10**309),
        pytest.param("FP64", 10**5000, id="5000 digits"),
    ],
)  # fmt: skip
def test_floats_never_become_infinite(name, value):
    with pytest.raises(InvalidArgument, match=f"input 'x': element 1 is .*outside {name}'s range"):
        from_json("x", name, [2], [0, value])


def test_the_largest_floats_fit():
    assert from_json("x", "FP16", [1], [65504]).tolist() == [65504.0]
    assert from_json("x", "FP64", [1], [1.7976931348623157e308]).tolist() == [1.7976931348623157e308]
    assert from_json("x", "FP64", [2], [1, 2.5]).tolist() == [1.0, 2.5]


@pytest.mark.parametrize("value", [1, None, True, b"x"])
def test_only_strings_are_bytes(value):
    with pytest.raises(InvalidArgument, match=r"element 1 is .*, expected a string for BYTES"):
        from_json("x", "BYTES", [2], ["a", value])


def test_text_without_utf8_is_refused():
    with pytest.raises(InvalidArgument, match=r"input 'x': string .* no UTF-8 form"):
        from_json("x", "BYTES", [1], ["\ud800"])


def test_bf16_has_no_json_form():
    with pytest.raises(InvalidArgument, match="input 'x': BF16 has no JSON form"):
        from_json("x", "BF16", [1], [1.0])
    with pytest.raises(InvalidArgument, match="BF16 output has no JSON form, ask for binary_data"):
        to_json(np.zeros(1, NUMPY_BY_NAME["BF16"]), "BF16")


def test_bytes_that_are_no_text_ask_for_binary():
    with pytest.raises(InvalidArgument, match="not valid UTF-8, ask for binary_data"):
        to_json(np.array([b"ok", b"\xff"], object), "BYTES")


@pytest.mark.parametrize("name", FLOATS)
def test_what_json_lacks_is_written_and_read_as_triton_does(name):
    array = np.array([1.5, np.nan, np.inf, -np.inf], NUMPY_BY_NAME[name])
    sent = msgspec.json.encode(to_json(array, name))
    assert sent == b"[1.5,NaN,Infinity,-Infinity]"
    assert np.array_equal(from_json("x", name, [4], json.loads(sent)), array, equal_nan=True)


def test_an_answer_is_flat_in_row_major_order():
    assert to_json(np.arange(6).reshape(2, 3).T, "INT64") == [0, 3, 1, 4, 2, 5]


def test_an_output_of_another_type_is_our_fault():
    with pytest.raises(Internal):
        to_json(np.zeros(1), "FP32")
    with pytest.raises(Internal):
        to_json(np.array([3], object), "BYTES")


@fuzz
@given(st.sampled_from([*NUMPY_BY_NAME, "FP8"]), wild_shapes, json_values)
def test_malformed_data_raises_only_our_errors(datatype, shape, data):
    array = outcome(from_json, "x", datatype, shape, data)
    if isinstance(array, IsochroneError):
        assert array.http_status == 400
        assert len(str(array)) < 2000
    else:
        assert list(array.shape) == shape


@fuzz
@given(st.sampled_from(IN_JSON), st.lists(st.lists(json_values, max_size=3), max_size=3))
def test_malformed_lists_raise_only_our_errors(datatype, data):
    array = outcome(from_json, "x", datatype, [len(data), 1], data)
    assert array.http_status == 400 if isinstance(array, IsochroneError) else array.size == len(data)


def test_deep_nesting_neither_recurses_nor_grows():
    data: list = [1]
    for _ in range(100_000):
        data = [data]
    assert from_json("x", "INT8", [1], data).tolist() == [1]
    while data and isinstance(data[0], list):  # taken apart by hand: freeing it would recurse
        data = data[0]
