"""Types as text, types of arrays, and examples that contradict them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from isochrone.errors import ConfigError
from isochrone.in_process.tensor_types import TensorType, check_example, example_arrays, parse_types, type_of


def test_types_are_read() -> None:
    types = parse_types({"x": "FP32[3]", "y": " INT64[-1, 2] ", "s": "BYTES[]"}, "here", "inputs")
    assert types == {
        "x": TensorType("FP32", (3,)),
        "y": TensorType("INT64", (-1, 2)),
        "s": TensorType("BYTES", ()),
    }
    assert str(types["y"]) == "INT64[-1,2]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FP32", 'a datatype and sizes such as "FP32[3]"'),
        ("FP32[3", "a datatype and sizes"),
        ("FP32[-2]", "a datatype and sizes"),
        ("float32[3]", "a datatype and sizes"),
        ("FP99[3]", "one of BOOL, UINT8"),
        ("FP32[0]", "at least 1, or -1"),
        (3, "a datatype and sizes"),
    ],
)
def test_a_wrong_type_is_named(text: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_types({"x": text}, "isochrone.serve(double)", "inputs")  # type: ignore[dict-item]
    assert str(caught.value).startswith("isochrone.serve(double): inputs['x']: expected ")
    assert words in str(caught.value)
    assert str(text) in str(caught.value)


@pytest.mark.parametrize("given", [{}, ["x"], None])
def test_inputs_are_a_dict(given: object) -> None:
    with pytest.raises(ConfigError, match="expected a dict such as"):
        parse_types(given, "here", "inputs")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros((2, 3), np.float16), "FP16[2,3]"),
        (np.zeros(1, ml_dtypes.bfloat16), "BF16[1]"),
        ([1, 2], "INT64[2]"),
        (1.5, "FP64[]"),
        (True, "BOOL[]"),
        (["text", b"bytes"], "BYTES[2]"),
        ("text", "BYTES[]"),
    ],
)
def test_the_type_of_an_example(value: object, expected: str) -> None:
    assert str(type_of(example_arrays({"x": value}, "here")["x"])) == expected


def test_text_of_an_example_becomes_bytes() -> None:
    assert example_arrays({"x": ["é", b"b"]}, "here")["x"].tolist() == ["é".encode(), b"b"]


@pytest.mark.parametrize("value", [np.zeros(2, np.complex64), [object()], [None]])
def test_an_example_without_a_datatype_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"here: example\['x'\]: expected "):
        example_arrays({"x": value}, "here")


def test_an_example_of_another_type_than_the_inputs_is_refused() -> None:
    types = parse_types({"x": "FP32[3]"}, "here", "inputs")
    with pytest.raises(ConfigError, match=r"example\['x'\]: expected FP32\[3\], as inputs says, given FP64\[3\]"):
        check_example(types, {"x": np.zeros(3)}, "here")
    with pytest.raises(ConfigError, match=r"given FP32\[4\]"):
        check_example(types, {"x": np.zeros(4, np.float32)}, "here")
    with pytest.raises(ConfigError, match="expected the names x, given y"):
        check_example(types, {"y": np.zeros(3, np.float32)}, "here")
    check_example(parse_types({"x": "FP32[-1]"}, "here", "inputs"), {"x": np.zeros(4, np.float32)}, "here")


def test_zeros_fill_free_sizes() -> None:
    assert TensorType("FP32", (-1, 2)).zeros(5).shape == (5, 2)
    assert TensorType("BYTES", (2,)).zeros(1).tolist() == [b"", b""]
