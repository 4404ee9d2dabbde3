"""Writes the remote controller as a model: ``python examples/robot_fleet/controller_model.py DIRECTORY``.

``balance`` is an ONNX model of the linear-quadratic regulator in ``cart_pole``: from state (4 × FP32) to force.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from cart_pole import MOST_FORCE, optimal_gains

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    sys.exit("controller_model: the onnx package is missing; install it with: pip install -e '.[onnx]'")

MODEL = "balance"
PERIOD = 0.02
# Old enough for every onnxruntime that pyproject.toml allows.
OPSET, IR_VERSION = 17, 8

CONFIG = """\
name: "balance"
backend: "onnxruntime"
max_batch_size: 64
input [ { name: "state" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "force" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def controller() -> bytes:
    gains = optimal_gains(PERIOD).astype(np.float32).reshape(4, 1)
    limit = np.float32(MOST_FORCE)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "gains"], ["wanted"]),
            helper.make_node("Clip", ["wanted", "least", "most"], ["force"]),
        ],
        MODEL,
        [helper.make_tensor_value_info("state", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("force", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(gains, "gains"),
            numpy_helper.from_array(-limit, "least"),
            numpy_helper.from_array(limit, "most"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)


def build(repository: Path) -> None:
    version = repository / MODEL / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.onnx").write_bytes(controller())
    (repository / MODEL / "config.pbtxt").write_text(CONFIG)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="the model repository to write")
    build(parser.parse_args().directory)
