"""Names, sizes and shapes of tensors, against the stock client and numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_strategies import fuzz, json_values, outcome, wild_shapes
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.datatypes import (
    MAX_ELEMENTS,
    NUMPY_BY_NAME,
    element_count,
    item_size,
    name_of,
    numpy_of,
    shown,
)


@pytest.mark.parametrize("name", NUMPY_BY_NAME)
def test_names_agree_with_the_stock_client(name):
    assert np.dtype(triton_to_np_dtype(name)) == numpy_of(name)
    assert np_to_triton_dtype(numpy_of(name)) == name
    assert name_of(numpy_of(name)) == name


def test_item_sizes():
    assert {name: item_size(name) for name in NUMPY_BY_NAME} == {
        "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4,
        "INT64": 8, "FP16": 2, "FP32": 4, "FP64": 8, "BF16": 2, "BYTES": 0,
    }  # fmt: skip


def test_fixed_width_text_is_bytes():
    assert name_of(np.dtype("S7")) == "BYTES"
    assert name_of(np.dtype("U7")) == "BYTES"


def test_an_unknown_datatype_is_named_with_the_known_ones():
    with pytest.raises(InvalidArgument, match=r"'FP8'.*BOOL, UINT8.*BYTES"):
        numpy_of("FP8")
    with pytest.raises(InvalidArgument, match=r"\['FP32'\]"):
        numpy_of(["FP32"])


@pytest.mark.parametrize("dtype", ["c8", ">f4", "M8[s]", ml_dtypes.float8_e4m3fn])
def test_a_numpy_type_without_a_datatype_is_refused(dtype):
    with pytest.raises(InvalidArgument, match="has no datatype"):
        name_of(np.dtype(dtype))


@pytest.mark.parametrize(
    ("shape", "count"),
    [((), 1), ((0,), 0), ((3, 0, 2), 0), ((2, 3, 4), 24), ((1 << 40,), 1 << 40), ((0, 1 << 40), 0)],
)
def test_counts(shape, count):
    assert element_count(shape, "input 'x'") == count


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1,), r"input 'x': shape \[-1\] has dimension -1"),
        ((2, -(2**63)), "dimension -9223372036854775808"),
        ((True,), "dimension True"),
        ((2.0,), r"dimension 2\.0"),
        (("2",), "dimension '2'"),
        ((None,), "dimension None"),
        ((1 << 20, 1 << 20, 2), f"more than {MAX_ELEMENTS} elements"),
        ((2**62, 4), "more than"),
        ((0, 1 << 40, 1 << 40), "more than"),
        pytest.param((10**5000,), "an integer of 16610 bits", id="5000 digits"),
        ((1,) * 33, "33 dimensions, at most 32"),
    ],
)
def test_impossible_shapes_are_refused(shape, message):
    with pytest.raises(InvalidArgument, match=message):
        element_count(shape, "input 'x'")


@fuzz
@given(wild_shapes)
def test_a_shape_that_is_counted_can_be_held_by_numpy(shape):
    count = outcome(element_count, shape, "input 'x'")
    if isinstance(count, InvalidArgument):
        assert len(str(count)) < 1000
        return
    # A view with strides of zero takes any shape that numpy can express, and no memory.
    view = np.broadcast_to(np.float64(0), shape) if count else np.empty(shape)
    assert view.size == count


@fuzz
@given(json_values | st.text(min_size=1000) | st.lists(st.integers(), min_size=100))
def test_quoted_values_are_short(value):
    assert len(shown(value)) < 1000
