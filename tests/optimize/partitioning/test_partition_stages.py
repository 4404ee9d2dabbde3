"""The stages of every cut compute what the whole model computes; encodings stay within their error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

from isochrone.errors import InvalidArgument
from isochrone.optimize.partitioning.cuts import all_cuts, whole
from isochrone.optimize.partitioning.encodings import Encoding, scales_of
from isochrone.optimize.partitioning.facts import InnerTensors, facts_of
from isochrone.optimize.partitioning.graph import graph_of
from isochrone.optimize.partitioning.model_file import read_rows
from isochrone.optimize.partitioning.stages import Stages, divided
from two_stage_net import late_input_net, residual_net


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def answers(stages: Stages, inputs: dict[str, Any]) -> list[Any]:
    first, second = session(stages.first), session(stages.second)
    given = {value.name: inputs[value.name] for value in first.get_inputs()}
    between = dict(zip((value.name for value in first.get_outputs()), first.run(None, given), strict=True))
    assert tuple(between) == stages.crossing
    return list(second.run(None, {value.name: between[value.name] for value in second.get_inputs()}))


def rows_of(model: ModelProto, count: int) -> dict[str, Any]:
    random = np.random.default_rng(count)
    return {
        value.name: random.standard_normal(
            [count, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])]
        ).astype(np.float32)
        for value in model.graph.input
    }


@pytest.mark.parametrize("make", [residual_net, late_input_net])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_cut_computes_what_the_model_computes(make: Any, rows: int) -> None:
    model = make()
    graph = graph_of(model)
    cuts = all_cuts(graph)
    assert len(cuts) >= 3
    inputs = rows_of(model, rows)
    expected = session(model).run(None, inputs)
    facts = facts_of(model, sorted({name for cut in cuts for name in cut.crossing}), rows_of(model, 1), False)
    for cut in cuts:
        for found, wanted in zip(answers(divided(model, graph, cut, facts), inputs), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_declared_shapes_are_those_that_run() -> None:
    model = residual_net()
    graph = graph_of(model)
    facts = facts_of(model, ["b1", "flat"], rows_of(model, 1), False)
    assert facts["b1"].dims == (None, 8, 8, 8)
    assert facts["b1"].row_bytes == 8 * 8 * 8 * 4
    assert facts["flat"].dims == (None, 8)
    (cut,) = [cut for cut in all_cuts(graph) if cut.crossing == ("b1",)]
    declared = divided(model, graph, cut, facts).first.graph.output[0].type.tensor_type
    assert [dim.dim_param or dim.dim_value for dim in declared.shape.dim] == ["rows", 8, 8, 8]


def test_a_fixed_number_of_rows_stays_fixed() -> None:
    model = residual_net(rows=1)
    facts = facts_of(model, ["b1"], rows_of(model, 1), True)
    assert facts["b1"].dims == (1, 8, 8, 8)


@pytest.mark.parametrize(("encoding", "most", "share"), [(Encoding.FP16, 1e-3, 2), (Encoding.INT8, 3e-2, 4)])
def test_an_encoding_sends_fewer_bytes_within_its_error(encoding: Encoding, most: float, share: int) -> None:
    model = residual_net()
    graph = graph_of(model)
    (cut,) = [cut for cut in all_cuts(graph) if cut.crossing == ("b1",)]
    facts = facts_of(model, ["b1"], rows_of(model, 1), False)
    scales = {"b1": scales_of(InnerTensors(model, ["b1"]).run(rows_of(model, 16))["b1"])}
    stages = divided(model, graph, cut, facts, encoding, scales)
    assert stages.row_bytes == facts["b1"].row_bytes // share
    inputs = rows_of(model, 5)
    (found,), (wanted,) = answers(stages, inputs), session(model).run(None, inputs)
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert 0 < error < most


def test_an_input_that_stage_two_reads_passes_by_stage_one() -> None:
    model = late_input_net()
    graph = graph_of(model)
    assert all("late" in cut.crossing for cut in all_cuts(graph))
    assert whole(graph, in_first=False).crossing == ("late", "x")


def test_bytes_need_a_newer_opset() -> None:
    model = residual_net(opset=11)
    graph = graph_of(model)
    (cut,) = [cut for cut in all_cuts(graph) if cut.crossing == ("b1",)]
    facts = facts_of(model, ["b1"], rows_of(model, 1), False)
    with pytest.raises(InvalidArgument, match="needs opset 13, and the model has 11"):
        divided(model, graph, cut, facts, Encoding.INT8)


def test_a_tensor_whose_inner_dimensions_depend_on_the_rows_cannot_cross() -> None:
    model = late_input_net()
    node = model.graph.node.add(op_type="Transpose", input=["b"], output=["turned"])
    assert node.op_type
    with pytest.raises(InvalidArgument, match="tensor 'turned' cannot cross between stages: dimension 1 depends"):
        facts_of(model, ["turned"], rows_of(model, 1), False)


def test_inputs_of_a_wrong_shape_are_an_error() -> None:
    with pytest.raises(InvalidArgument, match="the model failed with these inputs"):
        InnerTensors(residual_net(), ["b1"]).run({"image": np.zeros((1, 4, 16, 16), np.float32)})


@pytest.mark.parametrize("damage", ["no archive", "a cut archive", "damaged bytes"])
def test_a_damaged_file_of_rows_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, image=np.random.default_rng(1).standard_normal((8, 3, 16, 16)).astype(np.float32))
    content = bytearray(path.read_bytes())
    if damage == "no archive":
        content[:] = b"rows"
    elif damage == "a cut archive":
        del content[len(content) // 2 :]
    else:
        content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"rows\.npz: file: expected an \.npz file"):
        read_rows(residual_net(), path)
