"""The types of tensors as ``isochrone.serve`` takes them: ``"FP32[3]"``, or the array of an example."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.errors import ConfigError, InvalidArgument
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME, bytes_tensor, name_of, numpy_of

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

_TYPE = re.compile(r"([A-Z0-9]+)\[\s*((?:-1|\d+)(?:\s*,\s*(?:-1|\d+))*)?\s*\]")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A datatype of the protocol and sizes, without the batch's axis; -1: any size."""

    datatype: str
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.datatype}[{','.join(map(str, self.dims))}]"

    def zeros(self, free_size: int) -> Tensor:
        """Zeros, with ``free_size`` for every size that is -1."""
        shape = tuple(free_size if size == -1 else size for size in self.dims)
        if self.datatype == "BYTES":
            return np.full(shape, b"", np.object_)
        return np.zeros(shape, numpy_of(self.datatype))


def parse_types(given: Mapping[str, str], where: str, key: str) -> dict[str, TensorType]:
    """The types of ``inputs={"x": "FP32[3]"}``. Errors name ``where`` and ``key``."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(where, key, 'a dict such as {"x": "FP32[3]"}', repr(given))
    return {name: _parse(text, where, f"{key}[{name!r}]") for name, text in given.items()}


def _parse(text: object, where: str, key: str) -> TensorType:
    match = _TYPE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(where, key, 'a datatype and sizes such as "FP32[3]", "INT64[-1,2]" or "BYTES[1]"', repr(text))
    datatype, sizes = match[1], match[2]
    if datatype not in NUMPY_BY_NAME:
        raise ConfigError(where, key, f"one of {', '.join(NUMPY_BY_NAME)}", repr(text))
    dims = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    if 0 in dims:
        raise ConfigError(where, key, "sizes of at least 1, or -1 for any size", repr(text))
    return TensorType(datatype, dims)


def example_arrays(given: Mapping[str, Any], where: str) -> Tensors:
    """The arrays of an example; text becomes BYTES."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(where, "example", "a dict of input name to array", repr(given))
    return {name: _array(value, where, f"example[{name!r}]") for name, value in given.items()}


def _array(value: Any, where: str, key: str) -> Tensor:
    array = np.asarray(value)
    if array.dtype.kind in "SUO":
        array = np.asarray(value, np.object_)  # numpy's own types for text drop zeros at the end
        elements = [element.encode() if isinstance(element, str) else element for element in array.ravel().tolist()]
        wrong = [element for element in elements if not isinstance(element, bytes)]
        if wrong:
            raise ConfigError(where, key, "numbers, or elements of str or bytes", f"a {type(wrong[0]).__name__}")
        return bytes_tensor(elements, array.shape)
    try:
        name_of(array.dtype)
    except InvalidArgument as error:
        raise ConfigError(where, key, "an array of a datatype of the protocol", str(error)) from None
    return np.ascontiguousarray(array) if array.ndim else array


def type_of(array: Tensor) -> TensorType:
    """The exact type of an array: every size as it is."""
    return TensorType(name_of(array.dtype), tuple(array.shape))


def check_example(types: Mapping[str, TensorType], example: Tensors, where: str) -> None:
    """Raises if an example contradicts the declared inputs."""
    check_names(example, types, where, "example")
    for name, declared in types.items():
        given = type_of(example[name])
        fits = len(given.dims) == len(declared.dims) and all(
            size in (-1, own) for size, own in zip(declared.dims, given.dims, strict=True)
        )
        if given.datatype != declared.datatype or not fits:
            raise ConfigError(where, f"example[{name!r}]", f"{declared}, as inputs says", str(given))


def check_names(given: Mapping[str, Any], expected: Mapping[str, Any] | Sequence[str], where: str, key: str) -> None:
    """Raises unless ``given`` has exactly the expected names."""
    if set(given) != set(expected):
        raise ConfigError(where, key, f"the names {', '.join(expected)}", ", ".join(map(str, given)) or "none")
