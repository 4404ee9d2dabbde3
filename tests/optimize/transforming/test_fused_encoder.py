"""``fuse`` on a transformer encoder: the operators become fewer, and the numbers stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from isochrone.optimize.transforming.catalog import TRANSFORMATIONS, applicable
from isochrone.optimize.transforming.facts import MachineFacts, model_facts
from optimizer_graphs import LENGTH, WIDTH, write_encoder
from optimizer_models import write_mlp

MACHINE = MachineFacts(frozenset(), 2, False, False)


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(path)).graph.node)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_fused_encoder_computes_the_same(batch: int, tmp_path: Path) -> None:
    source, target = write_encoder(tmp_path / "source.onnx"), tmp_path / "target.onnx"
    assert "fuse" in applicable(model_facts(onnx.load(str(source))), MACHINE)[0]
    TRANSFORMATIONS["fuse"].apply(source, target, [], MACHINE)
    found = operators(target)
    assert found["Attention"] == 2
    assert found["BiasGelu"] == 2
    assert found["SkipLayerNormalization"] == 4
    assert not {"Softmax", "Erf"} & found.keys()
    rows = np.random.default_rng(5).normal(size=(batch, LENGTH, WIDTH)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": rows})[0]
        for path in (source, target)
    )
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_a_graph_without_anything_to_fuse_says_so(tmp_path: Path) -> None:
    source = write_mlp(tmp_path / "source.onnx")
    _, refused = applicable(model_facts(onnx.load(str(source))), MACHINE)
    assert refused["fuse"] == "it has no attention, layer normalization or GELU to fuse"
    with pytest.raises(ValueError, match="nothing was fused"):
        TRANSFORMATIONS["fuse"].apply(source, tmp_path / "target.onnx", [], MACHINE)


def test_a_softmax_alone_is_tried_and_refused(tmp_path: Path) -> None:
    """A classifier's last operator looks like a part of attention until the optimizer has searched."""
    model = onnx.load(str(write_mlp(tmp_path / "plain.onnx")))
    model.graph.node[-1].output[0] = "scores"
    model.graph.node.append(onnx.helper.make_node("Softmax", ["scores"], ["y"]))
    onnx.save(model, str(tmp_path / "source.onnx"))
    assert "fuse" in applicable(model_facts(model), MACHINE)[0]
    with pytest.raises(ValueError, match="nothing was fused"):
        TRANSFORMATIONS["fuse"].apply(tmp_path / "source.onnx", tmp_path / "target.onnx", [], MACHINE)
