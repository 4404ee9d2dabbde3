"""Tensors as JSON values: lists of numbers, booleans and strings, in REST bodies without binary data.

These functions check parsed JSON against datatype and shape. A value outside the datatype's range is rejected by name,
and never wrapped, rounded to infinity or converted to another type.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from isochrone.errors import Internal, InvalidArgument
from isochrone.protocol.tensors.datatypes import bytes_tensor, element_count, numpy_of, shown

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor

# Exact types, compared as sets, so that C code checks a long list; isinstance would accept a bool as an int.
_LIST: set[type] = {list}
_INT: set[type] = {int}
_BOOL: set[type] = {bool}
_STR: set[type] = {str}
_NUMBER: set[type] = {int, float}

#: By numpy's code of a floating type: its largest value.
_LARGEST = {np.dtype(kind).char: float(np.finfo(kind).max) for kind in (np.float16, np.float32, np.float64)}

#: Numbers that JSON lacks, as Triton reads and writes them.
NAN, INFINITY, MINUS_INFINITY = (msgspec.Raw(text) for text in (b"NaN", b"Infinity", b"-Infinity"))


def from_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Tensor:
    """A tensor from JSON data: a flat list in row-major order, or lists nested like the shape.

    Nested data may differ from the shape by dimensions of one. Other differences are rejected even if the number of
    elements matches, because the tensor may be transposed.
    """
    dtype = numpy_of(datatype)
    where = f"input '{name}'"
    count = element_count(shape, where)
    if datatype == "BF16":
        raise InvalidArgument(f"{where}: BF16 has no JSON form, send it as binary data")
    flat, dimensions = flatten(where, data)
    if len(flat) != count:
        raise InvalidArgument(f"{where}: expected {count} elements for shape {list(shape)}, given {len(flat)}")
    # Lists cannot express the dimensions inside an empty one, and an empty tensor has no element in a wrong place.
    if count and len(dimensions) > 1 and _without_ones(dimensions) != _without_ones(shape):
        raise InvalidArgument(f"{where}: data is nested as {shown(dimensions)}, expected {list(shape)} or a flat list")
    if datatype == "BYTES":
        return _bytes(where, flat, shape)
    types = set(map(type, flat))
    if dtype.kind == "b":
        if not types <= _BOOL:
            _reject(where, datatype, flat, _BOOL, "true or false")
        return np.array(flat, dtype).reshape(shape)
    if dtype.kind == "f":
        if not types <= _NUMBER:
            _reject(where, datatype, flat, _NUMBER, "a number")
        return _floats(where, datatype, dtype, flat).reshape(shape)
    if not types <= _INT:
        _reject(where, datatype, flat, _INT, "an integer")
    limits = np.iinfo(dtype)
    # Checked on the list: numpy 1.x wraps values outside the range.
    if flat and (min(flat) < limits.min or max(flat) > limits.max):
        index = next(i for i, value in enumerate(flat) if not limits.min <= value <= limits.max)
        raise InvalidArgument(
            f"{where}: element {index} is {shown(flat[index])}, outside {datatype}'s range {limits.min} to {limits.max}"
        )
    return np.array(flat, dtype).reshape(shape)


def flatten(where: str, data: object) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of nested lists in row-major order, and the lengths of the lists from outside in."""
    if type(data) is not list:
        raise InvalidArgument(f"{where}: expected a list as data, given {shown(data)}")
    flat: list[Any] = data
    dimensions = [len(flat)]
    # Level by level instead of recursively: the caller chooses the depth, and the total work is the list's size.
    while flat and type(flat[0]) is list:
        lengths = set(map(len, flat)) if set(map(type, flat)) == _LIST else set()
        if len(lengths) != 1:
            raise InvalidArgument(f"{where}: data is ragged at depth {len(dimensions)}, expected lists of one length")
        dimensions.append(lengths.pop())
        flat = list(chain.from_iterable(flat))
    return flat, tuple(dimensions)


def to_json(array: Tensor, datatype: str) -> list[Any]:
    """The elements as a flat list in row-major order, as Triton answers.

    JSON has no NaN and no infinity; they are written as in Triton: NaN, Infinity, -Infinity. The JSON parsers of Python
    and C++ clients accept these.
    """
    if datatype == "BF16":
        raise InvalidArgument("BF16 output has no JSON form, ask for binary_data")
    if datatype == "BYTES":
        return list(map(_text, array.ravel().tolist()))
    if array.dtype != numpy_of(datatype):
        raise Internal(f"an array of {array.dtype} cannot be sent as {datatype}")
    values: list[Any] = array.ravel().tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        values = list(map(number, values))
    return values


def number(value: float) -> float | msgspec.Raw:
    """A number as msgspec can encode it: msgspec would encode NaN and infinities as null."""
    if value != value:
        return NAN
    if value in (float("inf"), -float("inf")):
        return INFINITY if value > 0 else MINUS_INFINITY
    return value


def _without_ones(dimensions: Sequence[int]) -> list[int]:
    return [dimension for dimension in dimensions if dimension != 1]


def _floats(where: str, datatype: str, dtype: np.dtype[Any], flat: list[Any]) -> Tensor:
    try:
        wide = np.array(flat, np.float64)
    except OverflowError:  # an integer beyond the largest double
        index = next(i for i, value in enumerate(flat) if type(value) is int and value.bit_length() > 1023)
        raise _outside(where, datatype, index, flat[index]) from None
    largest = _LARGEST.get(dtype.char)
    if largest is not None and len(flat) and -largest <= wide.min() and wide.max() <= largest:
        # The common case, without a NaN or an infinity: no value can become infinite.
        return wide.astype(dtype, copy=False)
    with np.errstate(over="ignore"):
        array = wide.astype(dtype, copy=False)
    # NaN and infinities in the input are valid; a finite value that became infinite is out of range.
    finite = np.isfinite(array) | ~np.isfinite(wide)
    if not finite.all():
        index = int(finite.argmin())
        raise _outside(where, datatype, index, flat[index])
    return array


def _outside(where: str, datatype: str, index: int, value: object) -> InvalidArgument:
    return InvalidArgument(f"{where}: element {index} is {shown(value)}, outside {datatype}'s range")


def _bytes(where: str, flat: list[Any], shape: Sequence[int]) -> Tensor:
    if not set(map(type, flat)) <= _STR:
        _reject(where, "BYTES", flat, _STR, "a string")
    try:
        return bytes_tensor([value.encode() for value in flat], shape)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{where}: string {shown(error.object)} has no UTF-8 form: {error.reason}") from None


def _text(element: object) -> str:
    if isinstance(element, bytes):
        try:
            return element.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"BYTES output element {shown(element)} is not valid UTF-8, ask for binary_data"
            ) from None
    if isinstance(element, str):
        return element
    raise Internal(f"BYTES output element {shown(element)} is of type {type(element).__name__}, expected bytes or str")


def _reject(where: str, datatype: str, flat: list[Any], allowed: set[type], expected: str) -> NoReturn:
    index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
    raise InvalidArgument(f"{where}: element {index} is {shown(flat[index])}, expected {expected} for {datatype}")
