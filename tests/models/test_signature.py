"""A request fits a signature exactly when a slow reading of the rules says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from isochrone.errors import InvalidArgument
from isochrone.models.signature import (
    DATA_TYPE_BY_OIP_NAME,
    OIP_NAME_BY_DATA_TYPE,
    Signature,
    TensorSpec,
    signature_of,
)

Inputs = list[tuple[str, str, tuple[int, ...]]]


def two_inputs(max_batch_size: int = 32) -> Signature:
    return Signature(
        model="m",
        inputs=(TensorSpec("A", "FP32", (16,)), TensorSpec("B", "BYTES", (-1, 2))),
        outputs=(TensorSpec("Y", "FP32", (4,)),),
        max_batch_size=max_batch_size,
    )


def refusal(signature: Signature, inputs: Inputs, outputs: list[str] | None = None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        signature.check(inputs, outputs)
    return str(caught.value)


def test_the_batch_size_is_the_common_first_dimension() -> None:
    inputs: Inputs = [("A", "FP32", (7, 16)), ("B", "BYTES", (7, 5, 2))]
    assert two_inputs().check(inputs, ["Y"]) == 7
    assert two_inputs().check(inputs, None) == 7
    assert two_inputs().check(inputs, []) == 7


def test_without_batching_the_whole_shape_is_compared() -> None:
    assert two_inputs(0).check([("A", "FP32", (16,)), ("B", "BYTES", (0, 2))], None) == 1
    assert "Expected [16], got [1,16]" in refusal(two_inputs(0), [("A", "FP32", (1, 16))])


def test_a_wrong_shape_names_input_model_expected_and_given() -> None:
    message = refusal(two_inputs(), [("A", "FP32", (1, 17)), ("B", "BYTES", (1, 1, 2))])
    assert message == "unexpected shape for input 'A' for model 'm'. Expected [-1,16], got [1,17]"


def test_a_missing_batch_dimension_is_explained() -> None:
    message = refusal(two_inputs(), [("A", "FP32", (16,))])
    assert message.startswith("unexpected shape for input 'A' for model 'm'. Expected [-1,16], got [16]. NOTE: ")
    assert "max_batch_size" in message


@pytest.mark.parametrize("shape", [(), (-1, 16), (1,), (1, 16, 1)])
def test_no_rank_or_sign_slips_through(shape: tuple[int, ...]) -> None:
    assert "unexpected shape for input 'A'" in refusal(two_inputs(), [("A", "FP32", shape)])


def test_a_free_dimension_does_not_let_minus_one_through() -> None:
    message = refusal(two_inputs(), [("B", "BYTES", (1, -1, 2))])
    assert "Expected [-1,-1,2], got [1,-1,2]" in message


def test_missing_inputs_are_listed() -> None:
    assert refusal(two_inputs(), [("A", "FP32", (1, 16))]) == (
        "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) ['B']."
    )


def test_missing_inputs_beside_optional_ones() -> None:
    signature = Signature("m", (TensorSpec("A", "FP32", (1,)), TensorSpec("B", "FP32", (1,), optional=True)), (), 0)
    assert signature.check([("A", "FP32", (1,))], None) == 1
    message = refusal(signature, [("B", "FP32", (1,))])
    assert message.startswith("expected number of inputs between 1 and 2 but got 1 inputs for model 'm'.")
    assert message.endswith("Got input(s) ['B'], but missing required input(s) ['A'].")


def test_unexpected_names_are_told_with_the_known_ones() -> None:
    assert refusal(two_inputs(), [("Z", "FP32", (1, 16))]) == (
        "unexpected inference input 'Z' for model 'm'. Expected one of ['A','B']"
    )
    assert refusal(two_inputs(), [], ["Q"]) == ("unexpected inference output 'Q' for model 'm'. Expected one of ['Y']")


def test_a_wrong_datatype_names_both() -> None:
    assert refusal(two_inputs(), [("A", "FP64", (1, 16))]) == (
        "inference input 'A' data-type is 'FP64', but model 'm' expects 'FP32'"
    )


def test_batch_sizes() -> None:
    full: Inputs = [("A", "FP32", (33, 16)), ("B", "BYTES", (33, 1, 2))]
    assert refusal(two_inputs(), full) == "inference request batch-size must be <= 32 for 'm', got 33"
    uneven: Inputs = [("A", "FP32", (2, 16)), ("B", "BYTES", (3, 1, 2))]
    assert refusal(two_inputs(), uneven) == (
        "input 'B' batch size does not match other inputs for 'm': expected 2, got 3"
    )
    empty: Inputs = [("A", "FP32", (0, 16)), ("B", "BYTES", (0, 1, 2))]
    assert "batch-size must be >= 1 for 'm', got 0 rows in input 'A'" in refusal(two_inputs(), empty)


def test_an_input_given_twice() -> None:
    twice: Inputs = [("A", "FP32", (1, 16)), ("A", "FP32", (1, 16)), ("B", "BYTES", (1, 1, 2))]
    assert refusal(two_inputs(), twice) == (
        "input 'A' already exists in request for model 'm': expected it once, got it 2 times"
    )


def test_datatype_maps_are_inverse_and_complete() -> None:
    assert OIP_NAME_BY_DATA_TYPE[model_config_pb2.TYPE_STRING] == "BYTES"
    assert OIP_NAME_BY_DATA_TYPE[model_config_pb2.TYPE_BF16] == "BF16"
    assert len(OIP_NAME_BY_DATA_TYPE) == len(model_config_pb2.DataType.items()) - 1
    assert all(OIP_NAME_BY_DATA_TYPE[number] == name for name, number in DATA_TYPE_BY_OIP_NAME.items())


def test_signature_of_a_configuration() -> None:
    config = model_config_pb2.ModelConfig(name="m", max_batch_size=4)
    config.input.add(name="A", data_type="TYPE_STRING", dims=[-1], optional=True)
    config.input.add(name="B", data_type="TYPE_FP16", dims=[1]).reshape.SetInParent()
    config.output.add(name="Y", data_type="TYPE_INT64", dims=[2, 3])
    assert signature_of(config, {"Y": ("cat", "dog")}) == Signature(
        "m",
        (TensorSpec("A", "BYTES", (-1,), optional=True), TensorSpec("B", "FP16", (1,), reshape=())),
        (TensorSpec("Y", "INT64", (2, 3), labels=("cat", "dog")),),
        4,
    )


NAMES = ["A", "B", "C", "D"]
specs = st.lists(
    st.builds(
        TensorSpec,
        name=st.sampled_from(NAMES),
        datatype=st.sampled_from(["FP32", "INT64"]),
        dims=st.lists(st.sampled_from([-1, 1, 2]), max_size=2).map(tuple),
        optional=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda spec: spec.name,
).map(tuple)
signatures = st.builds(
    Signature, model=st.just("m"), inputs=specs, outputs=specs, max_batch_size=st.sampled_from([0, 1, 3])
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Signature, Inputs, list[str] | None]:
    """A signature with a request that fits it, then a few random edits, so that both outcomes are common."""
    signature = draw(signatures)
    rows = draw(st.integers(1, max(signature.max_batch_size, 1)))
    inputs: Inputs = []
    for spec in signature.inputs:
        if spec.optional and draw(st.booleans()):
            continue
        row = tuple(draw(st.integers(0, 3)) if size == -1 else size for size in spec.dims)
        inputs.append((spec.name, spec.datatype, (rows, *row) if signature.max_batch_size else row))
    if signature.max_batch_size and draw(st.booleans()):
        rows = draw(st.integers(0, signature.max_batch_size + 1))
        inputs = [(name, datatype, (rows, *shape[1:])) for name, datatype, shape in inputs]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        edit = draw(st.sampled_from(["drop", "add", "shape", "datatype"]))
        if edit == "add" or not inputs:
            shape = tuple(draw(st.lists(st.integers(-1, 4), max_size=3)))
            inputs.append((draw(st.sampled_from(NAMES)), "FP32", shape))
            continue
        at = draw(st.integers(0, len(inputs) - 1))
        name, datatype, shape = inputs[at]
        if edit == "drop":
            del inputs[at]
        elif edit == "datatype":
            inputs[at] = (name, draw(st.sampled_from(["FP32", "INT64", "BOOL"])), shape)
        else:
            inputs[at] = (name, datatype, tuple(draw(st.lists(st.integers(-1, 4), max_size=3))))
    outputs: list[str] | None = None
    if draw(st.booleans()):
        outputs = [spec.name for spec in signature.outputs]
        if draw(st.integers(0, 3)) == 0:
            outputs.append(draw(st.sampled_from(NAMES)))
    return signature, inputs, outputs


def oracle(signature: Signature, inputs: Inputs, outputs: list[str] | None) -> int | None:
    """The batch size, or None where the request must be refused; written for reading, not for speed."""
    names = [name for name, _, _ in inputs]
    if any(name not in [spec.name for spec in signature.outputs] for name in outputs or []):
        return None
    if len(set(names)) != len(names):
        return None
    if any(not spec.optional and spec.name not in names for spec in signature.inputs):
        return None
    batches = set()
    for name, datatype, shape in inputs:
        matching = [spec for spec in signature.inputs if spec.name == name and spec.datatype == datatype]
        if not matching or any(size < 0 for size in shape):
            return None
        expected = list(matching[0].dims)
        if signature.max_batch_size > 0:
            expected.insert(0, -1)
        if len(expected) != len(shape):
            return None
        if any(want not in (-1, size) for want, size in zip(expected, shape, strict=True)):
            return None
        if signature.max_batch_size > 0:
            batches.add(shape[0])
    if len(batches) > 1 or not all(1 <= batch <= signature.max_batch_size for batch in batches):
        return None
    return batches.pop() if batches else 1


@settings(max_examples=300)
@given(requests())
def test_check_agrees_with_the_oracle(request: tuple[Signature, Inputs, list[str] | None]) -> None:
    signature, inputs, outputs = request
    expected = oracle(signature, inputs, outputs)
    if expected is None:
        assert "'m'" in refusal(signature, inputs, outputs)
    else:
        assert signature.check(inputs, outputs) == expected
