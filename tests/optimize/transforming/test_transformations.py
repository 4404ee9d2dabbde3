"""Each transformation on a real small model, with a bound on its error."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from isochrone.optimize.transforming.catalog import TRANSFORMATIONS, applicable
from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts, machine_facts, model_facts
from optimizer_models import write_data, write_mlp

#: Relative L2 errors that are not exceeded; exact ones change the graph alone.
BOUNDS = {
    "slim": 1e-6,
    "fp16": 5e-3,
    "int8-dynamic": 0.05,
    "int8-minmax": 0.05,
    "int8-entropy": 0.2,
    "int8-percentile": 0.1,
    "int8-weights": 0.05,
    "int4-weights": 0.2,
    "structured-10%": 1e-3,
    "structured-25%": 1e-3,
    "structured-50%": 1e-3,
    "magnitude-50%": 0.5,
}
PLAIN = MachineFacts(frozenset({"asimd", "asimdhp", "asimddp"}), 2, False, False)


def outputs(path: Path, rows: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": rows})[0]


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("name", BOUNDS)
def test_the_error_is_within_its_bound(name: str, tmp_path: Path) -> None:
    large = "weights" in name
    source = write_mlp(tmp_path / "source.onnx", inputs=512 if large else 16, hidden=256 if large else 96)
    rows = np.random.default_rng(5).normal(size=(32, 512 if large else 16)).astype(np.float32)
    names, _ = applicable(model_facts(onnx.load(str(source))), PLAIN)
    assert name in names
    batches = [{"x": rows[place : place + 4]} for place in range(0, 32, 4)]
    TRANSFORMATIONS[name].apply(source, tmp_path / "target.onnx", batches, machine_facts())
    assert logging.root.manager.disable == logging.NOTSET
    expected, found = outputs(source, rows), outputs(tmp_path / "target.onnx", rows)
    assert np.linalg.norm(found - expected) <= BOUNDS[name] * np.linalg.norm(expected)


@pytest.mark.parametrize(("name", "kept"), [("structured-25%", 48), ("structured-50%", 32)])
def test_structured_pruning_makes_layers_smaller(name: str, kept: int, tmp_path: Path) -> None:
    source = write_mlp(tmp_path / "source.onnx", hidden=64)
    TRANSFORMATIONS[name].apply(source, tmp_path / "target.onnx", [], PLAIN)
    shapes = {each.name: tuple(each.dims) for each in onnx.load(str(tmp_path / "target.onnx")).graph.initializer}
    assert (shapes["w1"], shapes["b1"], shapes["w2"]) == ((kept, 16), (kept,), (kept, 4))


def test_what_does_not_apply_says_why() -> None:
    old = ModelFacts(frozenset({"Conv", "Relu"}), 11, True, False)
    _, refused = applicable(old, MachineFacts(frozenset(), 2, False, False))
    assert "opset is 11" in refused["int8-minmax"]
    assert "no MatMul" in refused["int8-dynamic"]
    assert "FP16" in refused["fp16"]
    assert "at least 65536 weights" in refused["int4-weights"]
    _, refused = applicable(ModelFacts(frozenset({"QLinearConv"}), 17, False, False), PLAIN)
    assert refused["int8-minmax"] == "the model is quantized already"
    _, refused = applicable(old, MachineFacts(frozenset(), 2, True, False))
    assert "CUDA" in refused["int8-minmax"]


def test_nothing_to_prune_is_an_error(tmp_path: Path) -> None:
    source = write_mlp(tmp_path / "source.onnx", hidden=8)
    with pytest.raises(ValueError, match="no channels can be removed"):
        TRANSFORMATIONS["structured-50%"].apply(source, tmp_path / "target.onnx", [], PLAIN)


def test_data_of_the_helper_has_the_inputs_shape(tmp_path: Path) -> None:
    with np.load(write_data(tmp_path / "data.npz")) as archive:
        assert archive["x"].shape == (64, 16)
