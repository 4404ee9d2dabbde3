"""Types and sizes of the tensors inside a model.

Types, sizes and the place of the rows come from runs with real inputs, so that no declaration has to be complete. A
dimension is fixed if the file declares its size or if ONNX's shape inference derives it. Every other one is free: its
size in a run is that of the sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.models import onnx_telemetry as onnx_telemetry
from isochrone.protocol.tensors.datatypes import name_of

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """``dims``: None for a free dimension. ``row_bytes``: of one row, or of the whole if it has none."""

    dtype: np.dtype[Any]
    dims: tuple[int | None, ...]
    row_bytes: int
    #: Whether the first dimension is the rows of a request, and no other depends on their number.
    rows_first: bool = False


def tensor_facts(
    single: np.ndarray[Any, Any], double: np.ndarray[Any, Any] | None, declared: Sequence[int | None] | None = None
) -> TensorFacts:
    """From a tensor of a run with one row, and of one with two (None: the model takes a fixed number of rows).

    ``declared``: its dimensions where they are known; None: nothing is.
    """
    name_of(single.dtype)  # raises for types that no request can carry
    if declared is None or len(declared) != single.ndim:
        declared = [None] * single.ndim
    shape = single.shape if double is None else double.shape
    if len(shape) != single.ndim:
        raise InvalidArgument("the number of dimensions depends on the number of rows")
    varying = [place for place, (one, two) in enumerate(zip(single.shape, shape, strict=True)) if one != two]
    if any(varying):
        raise InvalidArgument(f"dimension {max(varying)} depends on the number of rows; only the first one may")
    dims = tuple(
        size if size == known and place not in varying else None
        for place, (size, known) in enumerate(zip(single.shape, declared, strict=True))
    )
    rows_first = bool(varying) and (single.shape[0], shape[0]) == (1, 2)
    return TensorFacts(single.dtype, dims, int(single.nbytes), rows_first)


def declared_dims(model: Any) -> dict[str, tuple[int | None, ...]]:
    """What the file declares of its inputs and outputs, and shape inference of what is between; None: free."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # of no common class; a model that can run may be one that inference cannot follow
        inferred = model
    found = {}
    for values in (inferred.graph.value_info, inferred.graph.output, model.graph.output, model.graph.input):
        for value in values:
            if value.type.tensor_type.HasField("shape"):
                found[value.name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim
                )
    return found


class InnerTensors:
    """Runs a model and returns tensors from inside it."""

    def __init__(self, model: Any, names: Iterable[str]) -> None:
        """``model``: a ``ModelProto``, which is copied; ``names``: tensors that it makes, or its inputs."""
        import onnx
        import onnxruntime

        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        self._inputs = {value.name for value in model.graph.input}
        outputs = {value.name for value in copied.graph.output}
        self._wanted = list(dict.fromkeys(names))
        for name in self._wanted:
            if name not in outputs and name not in self._inputs:
                copied.graph.output.append(onnx.ValueInfoProto(name=name))
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                copied.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions derive from Exception alone
            raise InvalidArgument(f"onnxruntime cannot run this model: {error}") from None

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Raises ``InvalidArgument`` if one of the wanted is not a tensor."""
        found = self.run_any(inputs)
        for name, value in found.items():
            if value is None:
                raise InvalidArgument(f"'{name}' is not a tensor")
        return {name: value for name, value in found.items() if value is not None}

    def run_any(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any] | None]:
        """None for sequences, maps and optional values."""
        made = [name for name in self._wanted if name not in self._inputs]
        try:
            found = self._session.run(made, dict(inputs)) if made else []
        except Exception as error:
            raise InvalidArgument(f"the model failed with these inputs: {error}") from None
        by_name = {
            name: value if isinstance(value, np.ndarray) else None for name, value in zip(made, found, strict=True)
        }
        return {name: inputs[name] if name in self._inputs else by_name[name] for name in self._wanted}


def facts_of(model: Any, names: Sequence[str], rows: Arrays, fixed_rows: bool) -> dict[str, TensorFacts]:
    """``rows``: inputs of one row. With ``fixed_rows`` the model takes no other number of them."""
    found, reasons = known_facts(model, names, rows, fixed_rows)
    if reasons:
        raise InvalidArgument(reasons[0])
    return found


def known_facts(
    model: Any, names: Sequence[str], rows: Arrays, fixed_rows: bool
) -> tuple[dict[str, TensorFacts], list[str]]:
    """The facts of all tensors that can cross, and for each of the others a reason why it cannot."""
    declared = declared_dims(model)
    try:
        return _from_runs(model, names, rows, fixed_rows, declared)
    except InvalidArgument:
        pass
    # One tensor that cannot be an output fails them all.
    found: dict[str, TensorFacts] = {}
    reasons: list[str] = []
    for name in names:
        try:
            more, why = _from_runs(model, [name], rows, fixed_rows, declared)
        except InvalidArgument as error:
            more, why = {}, [f"tensor '{name}' cannot cross between stages: {error}"]
        found |= more
        reasons += why
    return found, reasons


def _from_runs(
    model: Any, names: Sequence[str], rows: Arrays, fixed_rows: bool, declared: Mapping[str, tuple[int | None, ...]]
) -> tuple[dict[str, TensorFacts], list[str]]:
    inner = InnerTensors(model, names)
    single = inner.run_any(rows)
    twice = {name: np.concatenate([each, each]) for name, each in rows.items()} if not fixed_rows else None
    double = inner.run_any(twice) if twice is not None else single
    found, reasons = {}, []
    for name in names:
        one, two = single[name], double[name]
        try:
            if one is None or two is None:
                raise InvalidArgument("only tensors can")
            found[name] = tensor_facts(one, None if twice is None else two, declared.get(name))
        except InvalidArgument as error:
            reasons.append(f"tensor '{name}' cannot cross between stages: {error}")
    return found, reasons
