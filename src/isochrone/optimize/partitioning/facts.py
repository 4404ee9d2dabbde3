"""Types and sizes of the tensors inside a model, from runs with real inputs: no declaration has to be complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.models import onnx_telemetry as onnx_telemetry

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """``dims``: None for the dimension of the rows. ``row_bytes``: of one row, or of the whole if it has none."""

    dtype: np.dtype[Any]
    dims: tuple[int | None, ...]
    row_bytes: int


def tensor_facts(single: np.ndarray[Any, Any], double: np.ndarray[Any, Any] | None) -> TensorFacts:
    """From a tensor of a run with one row, and of one with two (None: the model takes a fixed number of rows)."""
    dims: tuple[int | None, ...] = single.shape
    if double is not None:
        if single.ndim != double.ndim:
            raise InvalidArgument("the number of dimensions depends on the number of rows")
        dims = tuple(one if one == two else None for one, two in zip(single.shape, double.shape, strict=True))
        others = [place for place, dim in enumerate(dims) if dim is None and place]
        if others:
            raise InvalidArgument(f"dimension {others[0]} depends on the number of rows; only the first one may")
    return TensorFacts(single.dtype, dims, int(single.nbytes))


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
        made = [name for name in self._wanted if name not in self._inputs]
        try:
            found = self._session.run(made, dict(inputs)) if made else []
        except Exception as error:
            raise InvalidArgument(f"the model failed with these inputs: {error}") from None
        by_name = dict(zip(made, found, strict=True))
        return {name: inputs[name] if name in self._inputs else by_name[name] for name in self._wanted}


def facts_of(model: Any, names: Sequence[str], rows: Arrays, fixed_rows: bool) -> dict[str, TensorFacts]:
    """``rows``: inputs of one row. With ``fixed_rows`` the model takes no other number of them."""
    inner = InnerTensors(model, names)
    single = inner.run(rows)
    double = None if fixed_rows else inner.run({name: np.concatenate([each, each]) for name, each in rows.items()})
    found = {}
    for name in names:
        try:
            found[name] = tensor_facts(single[name], None if double is None else double[name])
        except InvalidArgument as error:
            raise InvalidArgument(f"tensor '{name}' cannot cross between stages: {error}") from None
    return found
