"""A convolution network in ONNX with random weights: from a picture to 512 features, or so many times the width."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.activation_cache.frames import SIDE

#: (channels, side of the kernel, stride) of each layer.
_LAYERS = ((16, 5, 2), (32, 3, 2), (32, 3, 1), (64, 3, 2), (64, 3, 1), (128, 3, 2), (128, 3, 1))


def features(width: int = 1) -> tuple[int, int, int]:
    """Of one picture: the last map of 14×14, as means over quarters."""
    return 128 * width, 2, 2


def network(seed: int = 0, width: int = 1) -> bytes:
    """The file. Weights as at the start of a training (He et al., 2015). Twice the width: four times the work."""
    random = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Cast", ["picture"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["floats", "middle"], ["centred"]),
        helper.make_node("Div", ["centred", "spread"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["layer0"], perm=[0, 3, 1, 2]),
    ]
    weights = [
        numpy_helper.from_array(np.float32(114), "middle"),
        numpy_helper.from_array(np.float32(57), "spread"),
    ]
    channels = 3
    for index, (made, side, stride) in enumerate(_LAYERS):
        made *= width
        kernel = random.standard_normal((made, channels, side, side)) * np.sqrt(2 / (channels * side * side))
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"kernel{index}"))
        nodes.append(
            helper.make_node(
                "Conv",
                [f"layer{index}", f"kernel{index}"],
                [f"sum{index}"],
                strides=[stride, stride],
                pads=[side // 2] * 4,
            )
        )
        nodes.append(helper.make_node("Relu", [f"sum{index}"], [f"layer{index + 1}"]))
        channels = made
    last = f"layer{len(_LAYERS)}"
    nodes.append(helper.make_node("AveragePool", [last], ["features"], kernel_shape=[7, 7], strides=[7, 7]))
    graph = helper.make_graph(
        nodes,
        "features",
        [helper.make_tensor_value_info("picture", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", *features(width)])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
