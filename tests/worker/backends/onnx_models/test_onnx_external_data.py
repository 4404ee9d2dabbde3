"""Weights of an onnx model in files beside it: a path out of the model's directory is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from config_text import tensors
from load_contexts import MakeContext
from onnx import TensorProto, helper

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.onnx.backend import load


def _write(directory: Path, location: str) -> None:
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "w"], ["Y"])],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n"])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (directory / "model.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("location", ["../weights", "weights", "absolute"])
def test_weights_come_from_the_models_directory_alone(tmp_path: Path, make_context: MakeContext, location: str) -> None:
    directory = tmp_path / "1"
    directory.mkdir()
    for place in (tmp_path, directory):
        (place / "weights").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    _write(directory, str(tmp_path / "weights") if location == "absolute" else location)
    context = make_context(tensors("input", X="FP32") + tensors("output", Y="FP32"), directory=directory)
    if location == "weights":
        executable = load(context)
        assert executable.execute({"X": np.zeros(4, np.float32)}, None)["Y"].tolist() == [0, 1, 2, 3]
        executable.close()
    else:
        with pytest.raises(InvalidArgument, match="xternal data"):
            load(context)
