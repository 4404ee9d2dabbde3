"""generate: plain JSON in and out, a model's declared inputs between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_strategies import fuzz, json_values, outcome

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol.rest.generate_objects import read_generate, write_generate
from isochrone.protocol.tensors.json_values import NAN

TEXT = ("text_input", "BYTES", (1,))
TOKENS = ("tokens", "INT32", (-1,))
BOXES = ("boxes", "FP32", (-1, 4))


def test_text_and_parameters():
    request = read_generate(
        {"text_input": "hello", "id": "7", "stream": False, "parameters": {"temperature": 0.5, "top_k": 3}},
        [TEXT, TOKENS],
        8,
    )
    assert request.inputs["text_input"].tolist() == [[b"hello"]]
    assert list(request.inputs) == ["text_input"]
    assert request.parameters == {"stream": False, "temperature": 0.5, "top_k": 3}
    assert request.id == "7"


def test_inputs_may_stand_among_the_parameters():
    request = read_generate({"text_input": "a", "parameters": {"tokens": [1, 2, 3]}}, [TEXT, TOKENS], 1)
    assert request.inputs["tokens"].tolist() == [[1, 2, 3]]
    assert request.parameters == {}


@pytest.mark.parametrize(
    ("declared", "value", "max_batch_size", "shape"),
    [
        (TEXT, "a", 0, (1,)),
        (TEXT, "a", 4, (1, 1)),
        (TEXT, ["a", "b"], 4, (2, 1)),
        (TOKENS, 5, 0, (1,)),
        (TOKENS, [5, 6, 7], 0, (3,)),
        (TOKENS, [5, 6, 7], 4, (1, 3)),
        (TOKENS, [[5, 6, 7]], 4, (1, 3)),
        (TOKENS, [], 4, (1, 0)),
        (BOXES, [0, 0, 1, 1] * 3, 0, (3, 4)),
        (BOXES, [[0, 0, 1, 1]] * 3, 4, (1, 3, 4)),
        (("x", "FP64", (-1, -1)), [1, 2], 0, (1, 2)),
        (("x", "BOOL", ()), True, 0, ()),
        (("x", "BOOL", ()), True, 2, (1,)),
    ],
)
def test_values_take_the_declared_shape(declared, value, max_batch_size, shape):
    request = read_generate({declared[0]: value}, [declared], max_batch_size)
    assert request.inputs[declared[0]].shape == shape


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "expected a JSON object, given"),
        ({"text_input": ["a", "b"]}, r"input 'text_input' to tensor with proper shape.*\[1\], given 2"),
        ({"boxes": [1, 2, 3]}, "input 'boxes' to tensor with proper shape"),
        ({"boxes": [[1, 2], [3, 4]]}, r"input 'boxes': data is nested as \[2,2\], expected \[1, 4\]"),
        ({"boxes": [[1], [2, 3]]}, "input 'boxes': data is ragged"),
        ({"text_input": 3}, "input 'text_input': element 0 is 3, expected a string"),
        ({"text_input": None}, "input 'text_input': element 0 is None"),
        ({"tokens": [2**31]}, "input 'tokens': element 0 is 2147483648, outside INT32's range"),
        ({"other": [1]}, "key 'other' is no input of the model.* given \\[1\\]"),
        ({"other": None}, "key 'other'"),
        ({"parameters": {"other": {}}}, "key 'other'"),
        ({"parameters": 3}, "key 'parameters': expected a JSON object, given 3"),
        ({"id": 3}, "key 'id': expected a string, given 3"),
        ({"tokens": 1, "parameters": {"tokens": 2}}, "'tokens' already exists in request"),
        ({"n": 1, "parameters": {"n": 2}}, "'n' already exists in request"),
        ({"zero": [1]}, "input 'zero' to tensor"),
    ],
)
def test_errors_name_the_key(body, message):
    with pytest.raises(InvalidArgument, match=message):
        read_generate(body, [TEXT, TOKENS, BOXES, ("zero", "FP32", (0,))], 0)


def test_an_input_may_be_called_as_a_keyword_is():
    request = read_generate({"id": 3, "parameters": [1, 2]}, [("id", "INT32", ()), ("parameters", "FP32", (2,))], 0)
    assert request.inputs["id"].tolist() == 3
    assert request.inputs["parameters"].tolist() == [1, 2]
    assert (request.id, request.parameters) == ("", {})


def test_single_elements_are_answered_as_scalars():
    answer = write_generate(
        {
            "text_output": np.array([[b"hi"]], object),
            "scores": np.array([[0.5, np.nan]], np.float32),
            "done": np.array([True]),
            "none": np.empty((0,), np.int32),
        },
        "m",
        "3",
        "id7",
    )
    assert answer == {
        "model_name": "m",
        "model_version": "3",
        "id": "id7",
        "text_output": "hi",
        "scores": [0.5, NAN],
        "done": True,
        "none": [],
    }
    assert "id" not in write_generate({}, "m", "3")


def test_outputs_without_json_form_are_named():
    with pytest.raises(InvalidArgument, match=r"generate: output 'raw': .*not valid UTF-8"):
        write_generate({"raw": np.array([b"\xff"], object)}, "m", "1")


declarations = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "id", "parameters"]),
        st.sampled_from(["BYTES", "FP32", "INT8", "BOOL", "BF16"]),
        st.lists(st.integers(-1, 3), max_size=3),
    ),
    max_size=3,
)
bodies = st.dictionaries(st.sampled_from(["a", "b", "c", "id", "parameters"]), json_values, max_size=4)


@fuzz
@given(bodies | json_values, declarations, st.integers(0, 2))
def test_malformed_bodies_raise_only_our_errors(body, declared, max_batch_size):
    request = outcome(read_generate, body, declared, max_batch_size)
    if isinstance(request, IsochroneError):
        assert request.http_status == 400
        assert len(str(request)) < 2000
        return
    for name, _, dims in declared:
        if name in request.inputs and [d[0] for d in declared].count(name) == 1:
            shape = request.inputs[name].shape[max_batch_size > 0 :]
            assert len(shape) == len(dims)
            assert all(want in (-1, got) for want, got in zip(dims, shape, strict=True))
