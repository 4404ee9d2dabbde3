"""Small models for profiles: onnx and torch files that run, and ones that do not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from sample_models import onnx_bytes, write_config, write_onnx, write_python

TENSORS = """
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 8 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ 8 ] } ]
"""


def write_product(repository: Path, name: str = "product", batch: int = 8, more: str = "") -> Path:
    """y = relu(x @ weights), by onnxruntime; returns the model's directory."""
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [8, 8], [0.1] * 64)
    data = onnx_bytes(
        [helper.make_node("MatMul", ["x", "weights"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        [("x", TensorProto.FLOAT, ["N", 8])],
        [("y", TensorProto.FLOAT, ["N", 8])],
        [weights],
    )
    directory = repository / name
    write_onnx(directory, data)
    write_config(directory, f'platform: "onnxruntime_onnx"\nmax_batch_size: {batch}\n{TENSORS}\n{more}')
    return directory


def write_variable(repository: Path) -> Path:
    """y = x + x, of any width."""
    data = onnx_bytes(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [("x", TensorProto.FLOAT, ["N", "width"])],
        [("y", TensorProto.FLOAT, ["N", "width"])],
    )
    write_onnx(repository / "variable", data)
    return repository / "variable"


def write_linear(repository: Path) -> Path:
    """A linear layer, exported by torch."""
    import torch

    directory = repository / "linear"
    (directory / "1").mkdir(parents=True)
    rows: Any = torch.export.Dim("rows", min=1, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(torch.nn.Linear(8, 8), (torch.ones(2, 8),), dynamic_shapes=({0: rows},))
        torch.export.save(program, str(directory / "1" / "model.pt2"))
    write_config(directory, f'backend: "pytorch"\nmax_batch_size: 4\n{TENSORS.replace("x", "input__0", 1)}')
    return directory


def write_crashing(repository: Path, at_rows: int) -> Path:
    """A model in Python that kills its process when a batch has so many rows."""
    directory = repository / "crashing"
    write_python(
        directory,
        f"""
        import os, signal

        class Model:
            def infer(self, inputs):
                if len(inputs["x"]) >= {at_rows}:
                    os.kill(os.getpid(), signal.SIGSEGV)
                return {{"y": inputs["x"]}}
        """,
    )
    write_config(directory, f'backend: "python"\nmax_batch_size: 8\n{TENSORS}')
    return directory
