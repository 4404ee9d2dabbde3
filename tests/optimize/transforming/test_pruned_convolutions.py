"""Pruning of convolution nets: what goes, what stays whole, and the error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from isochrone.optimize.transforming.catalog import TRANSFORMATIONS
from isochrone.optimize.transforming.facts import MachineFacts
from optimizer_graphs import GraphMaker

MACHINE = MachineFacts(frozenset(), 2, False, False)
SIDE, FIRST, SECOND, CLASSES = 8, 16, 32, 5
ROWS = np.random.default_rng(5).normal(size=(6, 3, SIDE, SIDE)).astype(np.float32)


def apply(name: str, source: Path) -> Path:
    target = source.with_name("target.onnx")
    TRANSFORMATIONS[name].apply(source, target, [], MACHINE)
    onnx.checker.check_model(str(target), full_check=True)
    return target


def outputs(path: Path) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": ROWS})[0]


def arrays(path: Path) -> dict[str, Any]:
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(str(path)).graph.initializer}


def error(source: Path, target: Path) -> float:
    before, after = outputs(source), outputs(target)
    assert after.shape == before.shape
    return float(np.linalg.norm(after - before) / np.linalg.norm(before))


def write_net(path: Path, *, dead: bool) -> Path:
    """Two convolutions with BatchNormalization, Relu and MaxPool; Flatten; a dense layer.

    ``dead``: every second channel is zero behind its normalization, though the weights that make it are the largest.
    """
    make = GraphMaker()
    data = "x"
    for number, (inputs, channels) in enumerate([(3, FIRST), (FIRST, SECOND)]):
        made = make.convolution(data, f"c{number}", inputs, channels)
        normal = make.normalization(made, f"n{number}", channels)
        if dead:
            make.arrays[f"c{number}.w"][::2] *= 10
            make.arrays[f"n{number}.scale"][::2] = 0
            make.arrays[f"n{number}.bias"][::2] = 0
        active = make.node("Relu", [normal], f"r{number}")
        data = make.node("MaxPool", [active], f"p{number}", kernel_shape=[2, 2], strides=[2, 2])
    flat = make.node("Flatten", [data], "flat", axis=1)
    weight = make.weight("dense.w", CLASSES, SECOND * (SIDE // 4) ** 2)
    make.node("Gemm", [flat, weight, make.weight("dense.b", CLASSES)], "y", transB=1)
    return make.write(path, [3, SIDE, SIDE], {"y": [CLASSES]})


def test_channels_that_a_normalization_silences_go_without_an_error(tmp_path: Path) -> None:
    source = write_net(tmp_path / "source.onnx", dead=True)
    target = apply("structured-50%", source)
    assert error(source, target) < 1e-5
    found = {name: array.shape for name, array in arrays(target).items()}
    assert found["c0.w"] == (8, 3, 3, 3)
    assert found["c1.w"] == (16, 8, 3, 3)
    assert found["dense.w"] == (CLASSES, 16 * 4)
    vectors = [f"{kind}.{part}" for kind in ("n0", "n1") for part in ("scale", "bias", "mean", "variance")]
    assert [found[name] for name in ("c0.b", "c1.b", *vectors)] == [(8,), (16,)] + [(8,)] * 4 + [(16,)] * 4


def without_channels(source: Path, target: Path, kept: dict[str, Any]) -> Path:
    """The whole model, whose consumers ignore the channels that are not kept."""
    model = onnx.load(str(source))
    for tensor in model.graph.initializer:
        if tensor.name in kept:
            array = numpy_helper.to_array(tensor).copy()
            array[:, ~kept[tensor.name]] = 0
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, str(target))
    return target


@pytest.mark.parametrize(("name", "kept"), [("structured-10%", 32), ("structured-25%", 24), ("structured-50%", 16)])
def test_the_error_is_that_of_the_removed_channels_alone(name: str, kept: int, tmp_path: Path) -> None:
    source = write_net(tmp_path / "source.onnx", dead=False)
    if kept == SECOND:
        with pytest.raises(ValueError, match="no channels can be removed"):
            apply(name, source)
        return
    target = apply(name, source)
    before, after = arrays(source), arrays(target)
    assert after["c1.w"].shape[0] == kept
    first = np.isin(before["n0.mean"], after["n0.mean"])
    second = np.isin(before["n1.mean"], after["n1.mean"])
    masks = {"c1.w": first, "dense.w": np.repeat(second, (SIDE // 4) ** 2)}
    masked = without_channels(source, tmp_path / "masked.onnx", masks)
    np.testing.assert_allclose(outputs(target), outputs(masked), rtol=1e-4, atol=1e-5)
    assert 0 < error(source, target) < 2


def test_magnitude_pruning_zeroes_half_of_the_large_weights_and_keeps_shapes(tmp_path: Path) -> None:
    source = write_net(tmp_path / "source.onnx", dead=False)
    target = apply("magnitude-50%", source)
    before, after = arrays(source), arrays(target)
    assert np.mean(after["c1.w"] == 0) == pytest.approx(0.5, abs=0.01)
    for name in before.keys() - {"c1.w"}:  # the others have fewer than 1,024 elements
        np.testing.assert_array_equal(after[name], before[name])
    kept = after["c1.w"] != 0
    np.testing.assert_array_equal(after["c1.w"][kept], before["c1.w"][kept])
    assert np.abs(before["c1.w"][~kept]).max() <= np.abs(before["c1.w"][kept]).min()
    assert 0 < error(source, target) < 1


def test_magnitude_pruning_of_nothing_is_an_error(tmp_path: Path) -> None:
    make = GraphMaker()
    make.convolution("x", "y", 3, 8)
    source = make.write(tmp_path / "source.onnx", [3, SIDE, SIDE], {"y": [8, SIDE, SIDE]})
    with pytest.raises(ValueError, match="no weight became zero"):
        apply("magnitude-50%", source)


def residual(make: GraphMaker) -> None:
    first = make.convolution("x", "a", 3, 16)
    second = make.convolution(make.node("Relu", [first], "r"), "b", 16, 16)
    make.convolution(make.node("Add", [second, first], "sum"), "y", 16, 4)


def grouped_consumer(make: GraphMaker) -> None:
    made = make.convolution(make.convolution("x", "a", 3, 16), "b", 16, 16, group=4)
    make.convolution(make.node("Relu", [made], "r"), "y", 16, 4)


def depthwise(make: GraphMaker) -> None:
    made = make.convolution(make.convolution("x", "a", 3, 16), "b", 16, 16, group=16)
    make.convolution(made, "y", 16, 4)


def shared_weights(make: GraphMaker) -> None:
    first = make.convolution("x", "a", 3, 16)
    second = make.convolution(first, "b", 16, 16)
    third = make.node("Conv", [second, "b.w", "b.b"], "again", pads=[1, 1, 1, 1])
    make.convolution(third, "y", 16, 4)


def seen_output(make: GraphMaker) -> None:
    make.convolution(make.convolution("x", "seen", 3, 16), "y", 16, 4)


def width_as_many_as_channels(make: GraphMaker) -> None:
    """MatMul multiplies the width, which is 16 here, too."""
    made = make.convolution("x", "a", 3, 16)
    inner = make.convolution(make.node("Concat", [made, made], "wide", axis=3), "b", 16, 16)
    make.node("MatMul", [inner, make.weight("m.w", 16, 4)], "y")


def normalization_behind_flatten(make: GraphMaker) -> None:
    flat = make.node("Flatten", [make.convolution("x", "a", 3, 16)], "flat", axis=1)
    normal = make.normalization(flat, "n", 16 * SIDE**2)
    make.node("MatMul", [normal, make.weight("m.w", 16 * SIDE**2, 4)], "y")


def joined(make: GraphMaker) -> None:
    one, other = make.convolution("x", "a", 3, 16), make.convolution("x", "b", 3, 16)
    make.convolution(make.node("Concat", [one, other], "both", axis=1), "y", 32, 4)


IMAGE, VECTOR = [4, SIDE, SIDE], [4]


@pytest.mark.parametrize(
    ("build", "result", "more"),
    [
        (residual, IMAGE, {}),
        (grouped_consumer, IMAGE, {}),
        (depthwise, IMAGE, {}),
        (seen_output, IMAGE, {"seen": [16, SIDE, SIDE]}),
        (shared_weights, IMAGE, {}),
        (width_as_many_as_channels, [16, SIDE, 4], {}),
        (normalization_behind_flatten, VECTOR, {}),
        (joined, IMAGE, {}),
    ],
)
def test_channels_that_others_see_stay(
    build: Callable[[GraphMaker], None], result: list[int], more: dict[str, list[int]], tmp_path: Path
) -> None:
    make = GraphMaker()
    build(make)
    source = make.write(tmp_path / "source.onnx", [3, SIDE, SIDE], {"y": result, **more})
    with pytest.raises(ValueError, match="no channels can be removed"):
        apply("structured-50%", source)
    assert not (tmp_path / "target.onnx").exists()


def test_inside_a_residual_connection_channels_go_and_its_ends_stay(tmp_path: Path) -> None:
    make = GraphMaker()
    first = make.convolution("x", "a", 3, 16)
    inner = make.node("Relu", [make.convolution(first, "b", 16, 32)], "r")
    second = make.convolution(inner, "c", 32, 16)
    make.convolution(make.node("Add", [second, first], "sum"), "y", 16, 4)
    source = make.write(tmp_path / "source.onnx", [3, SIDE, SIDE], {"y": IMAGE})
    target = apply("structured-50%", source)
    found = {name: array.shape[:2] for name, array in arrays(target).items() if name.endswith(".w")}
    assert found == {"a.w": (16, 3), "b.w": (16, 16), "c.w": (16, 16), "y.w": (4, 16)}
    assert 0 < error(source, target) < 2


def test_channels_that_a_nested_graph_uses_stay(tmp_path: Path) -> None:
    make = GraphMaker()
    make.convolution(make.convolution("x", "a", 3, 16), "y", 16, 4)
    body = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["inside"])],
        "body",
        [],
        [helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)],
    )
    make.arrays["yes"] = np.array(True)
    make.nodes.append(helper.make_node("If", ["yes"], ["seen"], then_branch=body, else_branch=body))
    source = make.write(tmp_path / "source.onnx", [3, SIDE, SIDE], {"y": IMAGE, "seen": [16, SIDE, SIDE]})
    with pytest.raises(ValueError, match="no channels can be removed"):
        apply("structured-50%", source)
