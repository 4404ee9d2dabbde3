"""Validation of tensor declarations: name, datatype, dims, reshape, file names.

Used for inputs and outputs, warm-up samples and states of sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.shapes import fits
from isochrone.models.signature import OIP_NAME_BY_DATA_TYPE


def validate_tensors(tensors: Sequence[Any], kind: str, where: str) -> None:
    first_index: dict[str, int] = {}
    for index, tensor in enumerate(tensors):
        key = f"{kind}[{index}]"
        if not tensor.name:
            raise ConfigError(where, f"{key}.name", "a tensor name", "''")
        if tensor.name in first_index:
            expected = f"a name other than that of {kind}[{first_index[tensor.name]}]"
            raise ConfigError(where, f"{key}.name", expected, f"'{tensor.name}'")
        first_index[tensor.name] = index
        validate_data_type(tensor.data_type, f"{key}.data_type", where)
        if not tensor.dims:
            expected = "at least one dimension (for none, write dims: [ 1 ] and reshape: { shape: [ ] })"
            raise ConfigError(where, f"{key}.dims", expected, "[]")
        validate_dims(tensor.dims, f"{key}.dims", where)
        if tensor.HasField("reshape"):
            _validate_reshape(tensor, key, where)


def _validate_reshape(tensor: Any, key: str, where: str) -> None:
    validate_dims(tensor.reshape.shape, f"{key}.reshape.shape", where)
    if _segments(tensor.dims) != _segments(tensor.reshape.shape):
        expected = f"as many elements as dims {list(tensor.dims)}, between the same free dimensions"
        raise ConfigError(where, f"{key}.reshape.shape", expected, str(list(tensor.reshape.shape)))


def _segments(dims: Sequence[int]) -> list[int]:
    """Products of the fixed sizes before, between and after the free sizes; equal if a reshape is possible."""
    products = [1]
    for size in dims:
        if size == -1:
            products.append(1)
        else:
            products[-1] *= size
    return products


def validate_dims(dims: Sequence[int], key: str, where: str, *, free: bool = True) -> None:
    """Sizes are at least 1; ``free`` allows -1 as well."""
    for index, size in enumerate(dims):
        if size < 1 and not (free and size == -1):
            expected = "-1 or a size of at least 1" if free else "a size of at least 1"
            raise ConfigError(where, f"{key}[{index}]", expected, str(size))


def validate_concrete_dims(dims: Sequence[int], declared: Sequence[int], key: str, where: str) -> None:
    """Validates the sizes of actual data, which must fit the declared sizes."""
    validate_dims(dims, key, where, free=False)
    if not fits(dims, declared):
        raise ConfigError(where, key, f"sizes that fit {list(declared)}", str(list(dims)))


def data_type_name(data_type: int) -> str:
    """The name in ModelConfig, or the number of an unknown type."""
    names: dict[int, str] = {number: name for name, number in model_config_pb2.DataType.items()}
    return names.get(data_type, str(data_type))


def validate_data_type(data_type: int, key: str, where: str) -> None:
    if data_type not in OIP_NAME_BY_DATA_TYPE:
        names = ", ".join(data_type_name(number) for number in OIP_NAME_BY_DATA_TYPE)
        raise ConfigError(where, key, f"one of {names}", data_type_name(data_type))


def validate_relative_path(path: str, key: str, where: str) -> None:
    """Rejects a path that leads out of the model's directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ConfigError(where, key, "a relative path inside the model's directory", repr(path))
