"""Writes a model repository that classifies pictures: ``python examples/image_pipeline/picture_models.py DIRECTORY``.

    decode                python   JPEG or PNG to 224 × 224 pixels: Pillow, two instances
    normalise             python   pixels to float32 in the order that the model takes: numpy
    classifier            onnx     a small convolutional network with weights from a fixed seed: eight colours
    postprocess           python   the three most probable labels and their probabilities
    image_classification  ensemble the four steps, inside the server

The python models are Triton's: the files beside this one, unchanged.
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
    sys.exit("build: the onnx package is missing; install it with: pip install -e '.[onnx]'")

HERE = Path(__file__).resolve().parent
SIZE = 224
LABELS = ("black", "blue", "green", "cyan", "red", "magenta", "yellow", "white")
# Of the pictures of ImageNet, the usual choice.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Old enough for every onnxruntime that pyproject.toml allows.
OPSET, IR_VERSION = 17, 8

DECODE = """\
name: "decode"
backend: "python"
max_batch_size: 8
input [ { name: "image" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "pixels" data_type: TYPE_UINT8 dims: [ 224, 224, 3 ] } ]

# Each instance has a thread of its own: decoding a picture takes longer than any other step in Python.
instance_group [ { count: %d kind: KIND_CPU } ]
"""

NORMALISE = f"""\
name: "normalise"
backend: "python"
max_batch_size: 8
input [ {{ name: "pixels" data_type: TYPE_UINT8 dims: [ 224, 224, 3 ] }} ]
output [ {{ name: "normalised" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} ]
parameters [
  {{ key: "mean" value {{ string_value: "{list(MEAN)}" }} }},
  {{ key: "deviation" value {{ string_value: "{list(DEVIATION)}" }} }}
]
"""

CLASSIFIER = f"""\
name: "classifier"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "normalised" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ {len(LABELS)} ] }} ]
dynamic_batching {{ }}
"""

POSTPROCESS = f"""\
name: "postprocess"
backend: "python"
max_batch_size: 8
input [ {{ name: "logits" data_type: TYPE_FP32 dims: [ {len(LABELS)} ] }} ]
output [
  {{ name: "labels" data_type: TYPE_STRING dims: [ 3 ] }},
  {{ name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }}
]
parameters [ {{ key: "count" value {{ string_value: "3" }} }} ]
"""

ENSEMBLE = """\
name: "image_classification"
platform: "ensemble"
max_batch_size: 8
input [ { name: "image" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "labels" data_type: TYPE_STRING dims: [ 3 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "decode"
      model_version: -1
      input_map { key: "image" value: "image" }
      output_map { key: "pixels" value: "pixels" }
    },
    {
      model_name: "normalise"
      model_version: -1
      input_map { key: "pixels" value: "pixels" }
      output_map { key: "normalised" value: "normalised" }
    },
    {
      model_name: "classifier"
      model_version: -1
      input_map { key: "normalised" value: "normalised" }
      output_map { key: "logits" value: "logits" }
    },
    {
      model_name: "postprocess"
      model_version: -1
      input_map { key: "logits" value: "logits" }
      output_map { key: "labels" value: "labels" }
      output_map { key: "scores" value: "scores" }
    }
  ]
}
"""


def classifier() -> bytes:
    """Three convolutions, an average over the picture, one linear layer.

    The weights are random, except for six channels that carry the brightness of red, green and blue above and below
    the mean, and the last layer, which adds those up: the answer is the nearest of eight colours.
    """
    random = np.random.default_rng(20240501)
    nodes, weights = [], []
    value, channels = "normalised", 3
    for layer, (size, kernel, stride) in enumerate(((16, 7, 4), (32, 3, 2), (64, 3, 2))):
        matrix = random.standard_normal((size, channels, kernel, kernel), np.float32)
        matrix *= np.float32(0.5 / np.sqrt(channels * kernel * kernel))
        matrix[:6] = 0
        for index in range(6):
            if layer == 0:
                matrix[index, index // 2] = (1 if index % 2 else -1) / kernel**2
            else:
                matrix[index, index, kernel // 2, kernel // 2] = 1
        weights.append(numpy_helper.from_array(matrix, f"kernel{layer}"))
        convolution = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [kernel // 2] * 4}
        nodes.append(helper.make_node("Conv", [value, f"kernel{layer}"], [f"sum{layer}"], **convolution))
        nodes.append(helper.make_node("Relu", [f"sum{layer}"], [f"hidden{layer}"]))
        value, channels = f"hidden{layer}", size
    last = np.zeros((channels, len(LABELS)), np.float32)
    for label in range(len(LABELS)):
        for channel, bit in enumerate((4, 2, 1)):
            last[2 * channel + bool(label & bit), label] = 4
    weights.append(numpy_helper.from_array(last, "last"))
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "last"], ["logits"]),
    ]
    given = helper.make_tensor_value_info("normalised", TensorProto.FLOAT, ["rows", 3, SIZE, SIZE])
    made = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", len(LABELS)])
    graph: Any = helper.make_graph(nodes, "classifier", [given], [made], initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def files(decoders: int = 2) -> dict[str, bytes]:
    """Every file of the repository, by its path in it; ``decoders``: instances of ``decode``."""
    return {
        "decode/config.pbtxt": (DECODE % decoders).encode(),
        "decode/1/model.py": (HERE / "decode.py").read_bytes(),
        "normalise/config.pbtxt": NORMALISE.encode(),
        "normalise/1/model.py": (HERE / "normalise.py").read_bytes(),
        "classifier/config.pbtxt": CLASSIFIER.encode(),
        "classifier/1/model.onnx": classifier(),
        "postprocess/config.pbtxt": POSTPROCESS.encode(),
        "postprocess/1/model.py": (HERE / "postprocess.py").read_bytes(),
        "postprocess/1/labels.txt": ("\n".join(LABELS) + "\n").encode(),
        "image_classification/config.pbtxt": ENSEMBLE.encode(),
    }


def build(repository: Path, decoders: int = 2) -> Path:
    for name, content in files(decoders).items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    # An ensemble's version directory is empty, but must exist.
    (repository / "image_classification" / "1").mkdir(parents=True, exist_ok=True)
    return repository


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model repository that classifies pictures.")
    parser.add_argument("repository", type=Path, help="where to")
    parser.add_argument("--decoders", type=int, default=2, help="instances of decode (default: %(default)s)")
    given = parser.parse_args()
    try:
        build(given.repository, given.decoders)
    except OSError as error:
        sys.exit(f"build: cannot write {error.filename}: {error.strerror}")
    print(f"{given.repository}: 4 models and an ensemble")


if __name__ == "__main__":
    main()
