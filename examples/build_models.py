"""Writes the sample model repository that ``make demo`` serves: examples/models, four small models.

    preprocess   python   pixels to features: scaling with numpy
    detector     onnx     features to scores: a small perceptron, dynamic batching
    pipeline     ensemble preprocess, then detector, inside the server
    tracker      onnx     a position smoothed over the requests of a sequence; the server keeps its state

The same bytes every time, and files that are up to date are not written: a server in poll mode sees no change. The
configurations are meant to be read: comments explain each key.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    sys.exit("build_models: the onnx package is missing; install it with: pip install -e '.[onnx]'")

PIXELS = 64
HIDDEN = 128
LABELS = ("clear", "pedestrian", "cyclist", "vehicle")
# Old enough for every onnxruntime that pyproject.toml allows.
OPSET, IR_VERSION = 17, 8

PREPROCESS_CONFIG = f"""\
# A model in Python: 1/model.py holds a plain class named Model. See docs/python-models.md.
name: "preprocess"
backend: "python"

# Up to 32 rows in one call of Model.infer. Shapes below are those of one row.
max_batch_size: 32

input [ {{ name: "pixels" data_type: TYPE_UINT8 dims: [ {PIXELS} ] }} ]
output [ {{ name: "features" data_type: TYPE_FP32 dims: [ {PIXELS} ] }} ]

# Requests that arrive together share a batch. Without max_queue_delay_microseconds, no request waits for others.
dynamic_batching {{ }}

# Passed to Model.load as strings: a model's settings belong here, not in its code.
parameters [
  {{ key: "mean" value {{ string_value: "127.5" }} }},
  {{ key: "scale" value {{ string_value: "0.0078125" }} }}
]
"""

PREPROCESS_MODEL = '''\
"""Pixels to features: (pixel - mean) * scale."""

import numpy as np


class Model:
    def load(self, context):
        """Once, before the model is ready. ``context.directory`` is this file's folder."""
        self.mean = np.float32(context.parameters["mean"])
        self.scale = np.float32(context.parameters["scale"])

    def infer(self, inputs):
        """Whole batches: arrays of shape (rows, 64)."""
        return {"features": (inputs["pixels"].astype(np.float32) - self.mean) * self.scale}
'''

DETECTOR_CONFIG = f"""\
# An onnx model: 1/model.onnx. Without this file the server would read inputs and outputs from the model and log what
# it assumed.
name: "detector"
platform: "onnxruntime_onnx"
max_batch_size: 32

input [ {{ name: "features" data_type: TYPE_FP32 dims: [ {PIXELS} ] }} ]
# Labels let callers ask for the best N classes by name (the output parameter "classification").
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ {len(LABELS)} ] label_filename: "labels.txt" }} ]

# One instance: one session on one thread.
instance_group [ {{ count: 1 kind: KIND_CPU }} ]

dynamic_batching {{
  # Two classes: 1 runs first; a request of class 2, the default, gains a class for every second that it waits.
  priority_levels: 2
  default_priority_level: 2
  # Further requests are rejected immediately with 429.
  default_queue_policy {{ max_queue_size: 1024 }}
}}

# The newest version only; "all {{ }}" or "specific {{ versions: [ 1, 3 ] }}" serve more at once.
version_policy {{ latest {{ num_versions: 1 }} }}

# Answers are cached, if the server was started with --cache-config.
response_cache {{ enable: false }}

parameters [ {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }} ]
"""

PIPELINE_CONFIG = f"""\
# An ensemble: a graph of other models, run inside the server. Tensors go from step to step without being copied;
# deadline and priority of the request apply to every step.
name: "pipeline"
platform: "ensemble"
max_batch_size: 32

input [ {{ name: "pixels" data_type: TYPE_UINT8 dims: [ {PIXELS} ] }} ]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ {len(LABELS)} ] }} ]

ensemble_scheduling {{
  step [
    {{
      model_name: "preprocess"
      model_version: -1  # the newest
      input_map {{ key: "pixels" value: "pixels" }}         # the step's name, then the ensemble's
      output_map {{ key: "features" value: "features" }}
    }},
    {{
      model_name: "detector"
      model_version: -1
      input_map {{ key: "features" value: "features" }}
      output_map {{ key: "scores" value: "scores" }}
    }}
  ]
}}
"""

TRACKER_CONFIG = """\
# A model with memory. Requests that carry the same sequence_id (with sequence_start on the first and sequence_end on
# the last) form a sequence; the server keeps the sequence's state between them and passes it to the model.
name: "tracker"
platform: "onnxruntime_onnx"
max_batch_size: 16

input [ { name: "measured" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "position" data_type: TYPE_FP32 dims: [ 2 ] } ]

sequence_batching {
  # A sequence without a request for five seconds ends, and its slot is free.
  max_sequence_idle_microseconds: 5000000

  # Up to 64 sequences are live at once; a batch takes the oldest requests of up to 16 of them.
  oldest { max_candidate_sequences: 64 }

  # Filled in by the server: 1.0 in the first request of a sequence, 0.0 in the others.
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] }
  ]

  # What the model writes to "state_out" it reads from "state_in" in the sequence's next request.
  state [ { input_name: "state_in" output_name: "state_out" data_type: TYPE_FP32 dims: [ 2 ] } ]
}
"""


def detector() -> bytes:
    """Two hidden layers and a softmax, with weights from a fixed seed."""
    random = np.random.default_rng(20240501)
    nodes, weights = [], []
    value, width = "features", PIXELS
    for layer, size in enumerate((HIDDEN, HIDDEN, len(LABELS))):
        matrix = random.standard_normal((width, size), np.float32) / np.float32(np.sqrt(width))
        weights.append(numpy_helper.from_array(matrix, f"weight{layer}"))
        weights.append(numpy_helper.from_array(np.zeros(size, np.float32), f"bias{layer}"))
        nodes.append(helper.make_node("Gemm", [value, f"weight{layer}", f"bias{layer}"], [f"sum{layer}"]))
        value, width = f"sum{layer}", size
        if size == HIDDEN:
            nodes.append(helper.make_node("Relu", [value], [f"hidden{layer}"]))
            value = f"hidden{layer}"
    nodes.append(helper.make_node("Softmax", [value], ["scores"], axis=1))
    return _model("detector", nodes, weights, [("features", PIXELS)], [("scores", len(LABELS))])


def tracker() -> bytes:
    """position = measured where START is 1, else 0.75 · state + 0.25 · measured."""
    constants = {"keep": 0.75, "take": 0.25, "one": 1.0}
    weights = [numpy_helper.from_array(np.array([value], np.float32), name) for name, value in constants.items()]
    nodes = [
        helper.make_node("Mul", ["state_in", "keep"], ["kept"]),
        helper.make_node("Mul", ["measured", "take"], ["taken"]),
        helper.make_node("Add", ["kept", "taken"], ["smoothed"]),
        helper.make_node("Mul", ["START", "measured"], ["first"]),
        helper.make_node("Sub", ["one", "START"], ["later"]),
        helper.make_node("Mul", ["later", "smoothed"], ["others"]),
        helper.make_node("Add", ["first", "others"], ["position"]),
        helper.make_node("Identity", ["position"], ["state_out"]),
    ]
    inputs = [("measured", 2), ("START", 1), ("state_in", 2)]
    return _model("tracker", nodes, weights, inputs, [("position", 2), ("state_out", 2)])


def _model(
    name: str, nodes: list[Any], weights: list[Any], inputs: list[tuple[str, int]], outputs: list[tuple[str, int]]
) -> bytes:
    def described(tensors: list[tuple[str, int]]) -> list[Any]:
        return [helper.make_tensor_value_info(each, TensorProto.FLOAT, ["rows", size]) for each, size in tensors]

    graph = helper.make_graph(nodes, name, described(inputs), described(outputs), initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def files() -> dict[str, bytes]:
    """Every file of the repository, by its path in it."""
    return {
        "preprocess/config.pbtxt": PREPROCESS_CONFIG.encode(),
        "preprocess/1/model.py": PREPROCESS_MODEL.encode(),
        "detector/config.pbtxt": DETECTOR_CONFIG.encode(),
        "detector/labels.txt": ("\n".join(LABELS) + "\n").encode(),
        "detector/1/model.onnx": detector(),
        "pipeline/config.pbtxt": PIPELINE_CONFIG.encode(),
        "tracker/config.pbtxt": TRACKER_CONFIG.encode(),
        "tracker/1/model.onnx": tracker(),
    }


def build(repository: Path) -> int:
    """Write files that are missing or differ; return their number."""
    written = 0
    for name, content in files().items():
        path = repository / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written += 1
    # An ensemble's version directory is empty, but must exist.
    (repository / "pipeline" / "1").mkdir(parents=True, exist_ok=True)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the sample model repository.")
    default = Path(__file__).resolve().parent / "models"
    parser.add_argument("repository", nargs="?", type=Path, default=default, help="where to (default: %(default)s)")
    repository: Path = parser.parse_args().repository
    try:
        written = build(repository)
    except OSError as error:
        sys.exit(f"build_models: cannot write {error.filename}: {error.strerror}")
    print(f"{repository}: 4 models, {written} files written" if written else f"{repository}: up to date")


if __name__ == "__main__":
    main()
