"""Outputs of two versions: what counts as different, and reading them out of every kind of answer."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.control.evaluation.outputs import Difference, compare_outputs, read_grpc, read_http
from isochrone.control.evaluation.replay import Comparison
from isochrone.control.state.rollout_records import CompareRule
from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.datatypes import bytes_tensor

RULE = CompareRule()


def floats(*values: float, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


@given(st.lists(st.floats(width=32), max_size=20))
def test_anything_equals_itself(values: list[float]) -> None:
    array = floats(*values)
    assert compare_outputs({"Y": array}, {"Y": array.copy()}, RULE) is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_floats_may_differ_by_the_tolerance(dtype: Any) -> None:
    rule = CompareRule(relative=0.1, absolute=0.01)
    old = floats(0.0, 100.0, math.nan, math.inf, dtype=dtype)
    assert compare_outputs({"Y": old}, {"Y": floats(0.009, 109.0, math.nan, math.inf, dtype=dtype)}, rule) is None
    found = compare_outputs({"Y": old}, {"Y": floats(0.05, 130.0, math.nan, math.inf, dtype=dtype)}, rule)
    assert found is not None
    assert found.output == "Y"
    assert found.excess == pytest.approx(5, rel=0.02)
    assert found.reason.startswith("0.0")
    assert " at [0], expected 0" in found.reason
    assert found.reason.endswith("(2 of 4 elements differ)")


@pytest.mark.parametrize(
    "new", [floats(math.nan, 1.0), floats(0.0, math.nan), floats(0.0, math.inf), floats(-math.inf, 1.0)]
)
def test_nan_and_infinity_on_one_side_differ_however_large_the_tolerance(new: np.ndarray[Any, Any]) -> None:
    found = compare_outputs({"Y": floats(0.0, 1.0)}, {"Y": new}, CompareRule(relative=1e9, absolute=1e9))
    assert found is not None
    assert found.excess == math.inf


def test_infinities_of_two_signs_differ_and_without_tolerance_all_is_exact() -> None:
    assert compare_outputs({"Y": floats(math.inf)}, {"Y": floats(-math.inf)}, RULE) is not None
    exact = CompareRule(relative=0, absolute=0)
    assert compare_outputs({"Y": floats(0.0, 1.0)}, {"Y": floats(-0.0, 1.0)}, exact) is None
    assert compare_outputs({"Y": floats(0.0, 1.0)}, {"Y": floats(1e-30, 1.0)}, exact) is not None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (np.array([5000]), np.array([5001]), "5001 at [0], expected 5000 (1 of 1 elements differ)"),
        (np.array([[True, False]]), np.array([[True, True]]), "True at [0, 1], expected False"),
        (bytes_tensor([b"cat"], (1,)), bytes_tensor([b"dog"], (1,)), "b'dog' at [0], expected b'cat'"),
        (np.zeros(3, np.float32), np.zeros(3), "datatype float64, expected float32"),
        (np.zeros((1, 3)), np.zeros((3, 1)), "shape [3, 1], expected [1, 3]"),
    ],
)
def test_all_but_floats_is_exact(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any], reason: str) -> None:
    found = compare_outputs({"Y": old}, {"Y": new}, CompareRule(relative=1.0, absolute=10.0))
    assert found is not None
    assert found.reason.startswith(reason)
    assert compare_outputs({"Y": old}, {"Y": old.copy()}, RULE) is None


def test_outputs_that_are_missing_or_added_differ_and_the_largest_difference_is_told() -> None:
    one = floats(1.0)
    assert str(compare_outputs({"A": one, "B": one}, {"A": one}, RULE)) == "outputs A, expected A, B"
    assert str(compare_outputs({}, {"A": one}, RULE)) == "outputs A, expected none"
    found = compare_outputs({"A": one, "B": one}, {"A": floats(2.0), "B": floats(9.0)}, RULE)
    assert found is not None
    assert found.output == "B"
    assert compare_outputs({"A": np.empty((0, 4))}, {"A": np.empty((0, 4))}, RULE) is None


def test_json_and_binary_outputs_are_read_from_one_answer() -> None:
    head = msgspec.json.encode(
        {
            "model_name": "m",
            "outputs": [
                {"name": "A", "datatype": "FP32", "shape": [3], "data": [1.5, None, 2]},
                {"name": "B", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}},
                {"name": "C", "datatype": "BYTES", "shape": [1], "data": ["é"]},
                {"name": "D", "datatype": "FP64", "shape": [1], "parameters": {"binary_data_size": 8}},
            ],
        }
    )
    body = head + np.array([3, -4], "<i2").tobytes() + np.array([math.inf]).tobytes()
    outputs = read_http(bytearray(body), len(head))
    assert outputs["A"].dtype == np.float32
    np.testing.assert_array_equal(outputs["A"], [1.5, math.nan, 2])
    np.testing.assert_array_equal(outputs["B"], [3, -4])
    assert outputs["C"].tolist() == ["é".encode()]
    np.testing.assert_array_equal(outputs["D"], [math.inf])


@pytest.mark.parametrize("body", [b"", b"[]", b'{"outputs": [{"name": "A"}]}', b"\xff\xfe"])
def test_an_answer_that_makes_no_sense_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_http(body, -1)


def test_too_few_binary_bytes_are_refused() -> None:
    output = {"name": "B", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}}
    head = msgspec.json.encode({"outputs": [output]})
    with pytest.raises(InvalidArgument):
        read_http(head + b"\0\0\0", len(head))


def test_raw_and_typed_contents_of_grpc_are_read() -> None:
    message = service_pb2.ModelInferResponse(model_name="m")
    message.outputs.add(name="A", datatype="FP32", shape=[2])
    message.outputs.add(name="B", datatype="INT64", shape=[1]).contents.int64_contents.append(7)
    message.raw_output_contents.append(np.array([1, 2], "<f4").tobytes())
    outputs = read_grpc(message.SerializeToString())
    np.testing.assert_array_equal(outputs["A"], [1, 2])
    np.testing.assert_array_equal(outputs["B"], [7])
    with pytest.raises(InvalidArgument):
        read_grpc(b"\xff")
    del message.raw_output_contents[:]
    with pytest.raises(InvalidArgument):
        read_grpc(message.SerializeToString())


def test_a_comparison_passes_by_its_rule_and_says_what_it_found() -> None:
    worst = Difference("Y", "2 at [0], expected 1", 100.0)
    found = Comparison(50, 2, 1, worst, (worst,))
    assert not found.passes(RULE)
    assert found.passes(CompareRule(allowed=0.04))
    assert str(found) == (
        "2 of 50 requests answered differently, 1 not comparable (the old version differs from itself); "
        "worst: output 'Y': 2 at [0], expected 1"
    )
    assert Comparison(50, 0, 0, None, ()).passes(RULE)
