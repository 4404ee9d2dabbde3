"""Repositories and tiny onnx files for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from model_files import IDENTITY, Shape, WriteModel, WriteOnnx
from onnx import TensorProto, helper


@pytest.fixture
def write_onnx() -> WriteOnnx:
    """Write an onnx file whose outputs are copies of its inputs: ``tensors`` are (input, output, type, shape)."""

    def write(path: Path, tensors: Sequence[tuple[str, str, int, Shape]] | None = None) -> Path:
        tensors = tensors or [("X", "Y", TensorProto.FLOAT, ["batch", 16])]
        nodes: list[Any] = [helper.make_node("Identity", [source], [target]) for source, target, _, _ in tensors]
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info(source, kind, shape) for source, _, kind, shape in tensors],
            [helper.make_tensor_value_info(target, kind, shape) for _, target, kind, shape in tensors],
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, str(path))
        return path

    return write


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    """Write a python model below ``tmp_path``/repository and return the repository."""

    def write(
        name: str = "m",
        config: str | None = IDENTITY,
        versions: Sequence[str] = ("1",),
        repository: str = "repository",
    ) -> Path:
        root = tmp_path / repository
        for version in versions:
            directory = root / name / version
            directory.mkdir(parents=True)
            (directory / "model.py").write_text("class Model: ...\n")
        if config is not None:
            (root / name / "config.pbtxt").write_text(config)
        return root

    return write
