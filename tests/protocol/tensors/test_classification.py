"""Classified outputs: the strings Triton writes, by example and for any numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensor_strategies import round_trip

from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.classification import classify


def test_the_form_is_tritons():
    array = np.array([[0.1, 0.7, 0.2], [3, 1, 2]], np.float32)
    assert classify(array, 2, ("cat", "dog", "mouse"), True).tolist() == [
        [b"0.700000:1:dog", b"0.200000:2:mouse"],
        [b"3.000000:0:cat", b"2.000000:2:mouse"],
    ]
    assert classify(array[0], 1, None, False).tolist() == [b"0.700000:1"]


def test_integers_are_printed_as_integers():
    array = np.array([-128, 127, 0], np.int8)
    assert classify(array, 9, None, False).tolist() == [b"127:1", b"0:2", b"-128:0"]
    assert classify(np.array([2**64 - 1], np.uint64), 1, None, False).tolist() == [b"18446744073709551615:0"]


def test_half_floats_are_classified_too():
    for dtype in (np.float16, ml_dtypes.bfloat16):
        assert classify(np.array([1, 2.5], dtype), 1, None, False).tolist() == [b"2.500000:1"]


def test_missing_and_empty_labels_are_left_out():
    found = classify(np.array([3.0, 2.0, 1.0]), 3, ("a", ""), False)
    assert found.tolist() == [b"3.000000:0:a", b"2.000000:1", b"1.000000:2"]


def test_labels_may_hold_any_text():
    assert classify(np.array([1.0]), 1, ("Größe: 1",), False).tolist() == ["1.000000:0:Größe: 1".encode()]


def test_ties_come_lowest_index_first_and_nan_last():
    array = np.array([np.nan, 1, 2, 1, 2, np.inf])
    assert [item.split(b":")[1] for item in classify(array, 6, None, False)] == [b"5", b"2", b"4", b"1", b"3", b"0"]


def test_inner_dimensions_are_one_row():
    assert classify(np.arange(12.0).reshape(2, 2, 3), 1, None, True).tolist() == [[b"5.000000:5"], [b"11.000000:5"]]
    assert classify(np.arange(12.0).reshape(2, 2, 3), 1, None, False).tolist() == [b"11.000000:11"]


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0,)])
def test_empty_outputs(shape):
    found = classify(np.zeros(shape), 3, None, True)
    assert found.shape == (shape[0], 0)


@pytest.mark.parametrize("array", [np.array([True]), np.array([b"x"], object)])
def test_types_without_an_order_are_refused(array):
    with pytest.raises(InvalidArgument, match="class result not available for output due to unsupported type 'B"):
        classify(array, 1, None, False)


@pytest.mark.parametrize("count", [0, -1, True, "2", 1.0])
def test_a_count_is_a_positive_integer(count):
    with pytest.raises(InvalidArgument, match="classification: expected a count of at least 1, given"):
        classify(np.zeros(3), count, None, False)


def test_a_batched_output_needs_a_batch():
    with pytest.raises(InvalidArgument, match="no batch dimension"):
        classify(np.float32(1).reshape(()), 1, None, True)


@round_trip
@given(
    st.sampled_from(["i1", "u1", "i8", "u8", "f4", "f8"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=3, max_side=6))
    ),
    st.integers(1, 10),
)
def test_the_top_classes_are_the_greatest_values(array, count):
    rows = array.reshape(len(array), -1)
    found = classify(array, count, None, True)
    assert found.shape == (len(rows), min(count, rows.shape[1]))
    for row, line in zip(rows.tolist(), found, strict=True):
        chosen = [int(item.split(b":")[1]) for item in line]
        # Python's own sort, which is stable, as the oracle.
        expected = sorted(range(len(row)), key=lambda i: (row[i] != row[i], -row[i] if row[i] == row[i] else 0))
        assert [row[i] for i in chosen if row[i] == row[i]] == [
            row[i] for i in expected[: len(chosen)] if row[i] == row[i]
        ]
