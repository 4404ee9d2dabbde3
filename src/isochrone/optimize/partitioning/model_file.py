"""Reads an ONNX file for partitioning, and rows of inputs for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from isochrone.errors import InvalidArgument, NotFound
from isochrone.models.runtimes import optional_runtime
from isochrone.optimize.arrays_file import read_arrays
from isochrone.optimize.partitioning.facts import Arrays

#: The largest message that protobuf can write.
_MOST_BYTES = (1 << 31) - 1
_MADE_ROWS = 8


def read_model(path: Path) -> Any:
    """The ``ModelProto`` with its weights."""
    onnx = optional_runtime("onnx", "optimize", str(path))
    if not path.is_file():
        raise NotFound(f"{path}: no such file")
    try:
        model = onnx.load(str(path))
        if model.ByteSize() <= _MOST_BYTES:
            onnx.checker.check_model(model)
    except Exception as error:  # protobuf's and the checker's exceptions have no common class
        raise InvalidArgument(
            f"{path}: not a readable ONNX model: {str(error)[:500] or type(error).__name__}"
        ) from None
    if not model.graph.node:
        raise InvalidArgument(f"{path}: not a readable ONNX model: it has no nodes")
    _check_ends(path, model)
    if model.ByteSize() > _MOST_BYTES:
        raise InvalidArgument(f"{path}: models above 2 GiB cannot be divided; {model.ByteSize():,} bytes are given")
    return model


def _check_ends(path: Path, model: Any) -> None:
    from onnx import TensorProto

    for what, values in (("input", _inputs(model)), ("output", model.graph.output)):
        for value in values:
            if not value.type.HasField("tensor_type"):
                raise InvalidArgument(
                    f"{path}: {what} '{value.name}' is a sequence, a map or an optional value: only models whose "
                    "inputs and outputs are tensors can be divided"
                )
            if what == "input" and value.type.tensor_type.elem_type == TensorProto.STRING:
                raise InvalidArgument(
                    f"{path}: input '{value.name}' has strings: only models of numbers can be divided"
                )


def free_rows(model: Any) -> frozenset[str]:
    """The inputs whose first dimension the file leaves free: those take any number of rows."""
    return frozenset(value.name for value in _inputs(model) if _has_free_rows(_dims(value)))


def read_rows(model: Any, data: Path | None) -> Arrays:
    """Rows from a .npz file by the names of the inputs; without one, made by the declared dimensions.

    An input with a fixed first dimension gets exactly so many rows.
    """
    given = read_arrays(data) if data is not None else None
    rows = {}
    for value in _inputs(model):
        dtype, dims = _dtype(value), _dims(value)
        if given is None:
            rows[value.name] = _made(value.name, dtype, dims)
            continue
        if value.name not in given:
            names = ", ".join(sorted(given)) or "none"
            raise InvalidArgument(f"{data}: expected an array '{value.name}', given {names}")
        rows[value.name] = _checked(given[value.name], value.name, dtype, dims, data)
    counts = {name: len(rows[name]) for name in sorted(free_rows(model))}
    if len(set(counts.values())) > 1:
        raise InvalidArgument(f"{data}: expected equally many rows of all inputs, given {counts}")
    return rows


def _checked(
    array: np.ndarray[Any, Any], name: str, dtype: np.dtype[Any], dims: list[int | str], data: Path | None
) -> np.ndarray[Any, Any]:
    # More rows than a fixed first dimension takes are left out.
    fits = array.ndim == len(dims) and all(
        isinstance(dim, str) or dim == size or (place == 0 and dim <= size)
        for place, (dim, size) in enumerate(zip(dims, array.shape, strict=False))
    )
    if not fits or not array.size:
        raise InvalidArgument(f"{data}: '{name}': expected the shape {_text(dims)}, given {_text(list(array.shape))}")
    if array.dtype != dtype:
        raise InvalidArgument(f"{data}: '{name}': expected {dtype}, given {array.dtype}")
    return array if not dims or _has_free_rows(dims) else array[: int(dims[0])]


def _made(name: str, dtype: np.dtype[Any], dims: list[int | str]) -> np.ndarray[Any, Any]:
    free = [dim for dim in dims[1:] if isinstance(dim, str)]
    if free or not dims:
        what = f"dimension '{free[0]}' has no size" if free else "it has no dimensions"
        raise InvalidArgument(f"input '{name}': {what}: give rows with --data FILE.npz")
    shape = [dims[0] if isinstance(dims[0], int) else _MADE_ROWS, *(int(dim) for dim in dims[1:])]
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(shape).astype(dtype)
    return np.zeros(shape, dtype)


def _inputs(model: Any) -> list[Any]:
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialized]


def _dims(value: Any) -> list[int | str]:
    return [dim.dim_value or dim.dim_param or "?" for dim in value.type.tensor_type.shape.dim]


def _has_free_rows(dims: list[int | str]) -> bool:
    return bool(dims) and isinstance(dims[0], str)


def _dtype(value: Any) -> np.dtype[Any]:
    from onnx import helper

    dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return dtype


def _text(dims: list[Any]) -> str:
    return f"[{', '.join(map(str, dims))}]"
