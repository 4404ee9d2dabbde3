"""The two stages of a cut as ONNX models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isochrone.errors import InvalidArgument
from isochrone.optimize.partitioning.cuts import Cut
from isochrone.optimize.partitioning.encodings import (
    Crossing,
    Encoding,
    Scales,
    crossing_of,
    encoded_bytes,
    is_encodable,
    least_opset,
    passed_by,
)
from isochrone.optimize.partitioning.facts import TensorFacts
from isochrone.optimize.partitioning.graph import Graph, reads_of

ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Stages:
    """``first`` and ``second`` are ``ModelProto`` objects; what crosses has the same names in both."""

    first: Any
    second: Any
    crossing: tuple[str, ...]
    #: That cross for one row.
    row_bytes: int


def divided(
    model: Any,
    graph: Graph,
    cut: Cut,
    facts: Mapping[str, TensorFacts],
    encoding: Encoding = Encoding.PLAIN,
    scales: Scales | None = None,
) -> Stages:
    """``facts`` of all that crosses; ``scales`` of those that INT8 encodes."""
    opset = opset_of(model)
    if opset < least_opset(encoding):
        raise InvalidArgument(
            f"the encoding {encoding} needs opset {least_opset(encoding)}, and the model has {opset}: convert it with "
            "onnx.version_converter, or choose another encoding"
        )
    ways = [_way(graph, name, facts[name], encoding, scales or {}) for name in cut.crossing]
    row_bytes = sum(
        encoded_bytes(facts[name].row_bytes, facts[name].dtype, way.dtype)
        for name, way in zip(cut.crossing, ways, strict=True)
    )
    between = [_value_info(way, facts[name]) for name, way in zip(cut.crossing, ways, strict=True)]
    constants = [each for way in ways for each in way.initializers]
    given = [value for value in model.graph.input if value.name in graph.inputs]
    ends = [node for way in ways for node in way.last_nodes]
    begins = [node for way in ways for node in way.first_nodes]
    nodes = list(enumerate(model.graph.node))
    own = [node for at, node in nodes if cut.has(at) or at in graph.constant]
    rest = [node for at, node in nodes if not cut.has(at) or at in graph.constant]
    first = _model(model, "stage_1", [*own, *ends], given, between, constants)
    second = _model(model, "stage_2", [*begins, *rest], between, list(model.graph.output), constants)
    return Stages(first, second, tuple(way.name for way in ways), row_bytes)


def opset_of(model: Any) -> int:
    """The version of ONNX's own operators that a model uses."""
    return max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)


def _way(graph: Graph, name: str, known: TensorFacts, encoding: Encoding, scales: Scales) -> Crossing:
    if name in graph.inputs:
        return passed_by(name, known.dtype)
    encodable = is_encodable(known.dtype, known.dims, encoding)
    return crossing_of(name, known.dtype, encoding if encodable else Encoding.PLAIN, scales.get(name))


def _value_info(way: Crossing, known: TensorFacts) -> Any:
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(way.dtype)
    dims: list[int | str | None] = [*known.dims]
    if known.rows_first:
        dims[0] = ROWS
    return helper.make_tensor_value_info(way.name, kind, dims)


def _model(
    model: Any, name: str, nodes: Sequence[Any], inputs: Iterable[Any], outputs: Iterable[Any], constants: Iterable[Any]
) -> Any:
    """A model with those of the nodes that its outputs need."""
    import onnx

    outputs = list(outputs)
    wanted = {value.name for value in outputs}
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(reads_of(node))
    graph = onnx.GraphProto(name=name)
    graph.node.extend(reversed(kept))
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    graph.initializer.extend(each for each in (*model.graph.initializer, *constants) if each.name in wanted)
    graph.sparse_initializer.extend(each for each in model.graph.sparse_initializer if each.values.name in wanted)
    made = onnx.ModelProto(ir_version=model.ir_version, graph=graph, producer_name="isochrone")
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)
    return made
