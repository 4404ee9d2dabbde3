"""The protocol's datatypes: names, numpy types, and the number of elements of a shape.

A shape comes from an untrusted caller, so it is checked before memory is allocated for it. No function here computes
with integers, or prints values, of a size that the caller chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from isochrone.errors import InvalidArgument

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor

#: Every datatype of the protocol. The wire is little-endian, and so are these.
NUMPY_BY_NAME: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(np.object_),
}
_NAME_BY_NUMPY = {dtype: name for name, dtype in NUMPY_BY_NAME.items()}

#: A tensor of a tebi-element is a mistake or an attack, and 8 × 2⁴⁰ still fits every size type numpy uses.
MAX_ELEMENTS = 2**40
#: numpy 1.x holds at most 32 dimensions.
MAX_RANK = 32
#: Error messages quote the caller's values up to this many characters.
MAX_SHOWN = 80


def shown(value: object) -> str:
    """A value for an error message, shortened if it is long."""
    # str() of an integer beyond 4,300 digits raises, and takes quadratic time before that.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes) and len(value) > MAX_SHOWN:
        return f"{value[:MAX_SHOWN]!r}… ({len(value)} long)"
    if isinstance(value, list | tuple):
        head = ",".join(shown(item) if not isinstance(item, list | tuple) else "[…]" for item in value[:8])
        return f"[{head},… {len(value)} items]" if len(value) > 8 else f"[{head}]"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def numpy_of(name: object) -> np.dtype[Any]:
    """The numpy type of a datatype."""
    dtype = NUMPY_BY_NAME.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise InvalidArgument(f"unknown datatype {shown(name)}, expected one of {', '.join(NUMPY_BY_NAME)}")
    return dtype


def name_of(dtype: np.dtype[Any]) -> str:
    """The datatype of a numpy type. Arrays of bytes and of text of any width are BYTES."""
    name = _NAME_BY_NUMPY.get(dtype)
    if name is not None:
        return name
    if dtype.kind in "SU":
        return "BYTES"
    raise InvalidArgument(f"numpy type {dtype} has no datatype, expected one of {', '.join(NUMPY_BY_NAME)}")


def item_size(name: str) -> int:
    """Bytes per element; 0 for BYTES, whose elements vary in size."""
    return 0 if name == "BYTES" else numpy_of(name).itemsize


def check_range(array: Tensor, dtype: np.dtype[Any]) -> None:
    """Raise ``OverflowError``, as numpy 2 does, for integers outside a type's range: numpy 1 wraps them."""
    if dtype.kind not in "iu" or array.dtype.kind not in "iu" or not array.size:
        return
    limits = np.iinfo(dtype)
    for extreme in (int(array.min()), int(array.max())):
        if not limits.min <= extreme <= limits.max:
            raise OverflowError(f"Python integer {extreme} out of bounds for {dtype}")


def element_count(shape: Sequence[Any], where: str) -> int:
    """The number of elements of a shape; ``where`` names the tensor, as in "input 'x'".

    Dimensions beside a zero are bounded too: numpy rejects a shape such as [0, 2⁴⁰, 2⁴⁰], although it is empty.
    """
    if len(shape) > MAX_RANK:
        raise InvalidArgument(f"{where}: shape has {len(shape)} dimensions, at most {MAX_RANK} are allowed")
    volume = 1
    empty = False
    for dimension in shape:
        # An exact type: JSON's true is an int to isinstance.
        if type(dimension) is not int or dimension < 0:
            raise InvalidArgument(
                f"{where}: shape {shown(list(shape))} has dimension {shown(dimension)}, "
                "expected an integer that is not negative"
            )
        if dimension == 0:
            empty = True
            continue
        # Tested before multiplying, so that the product never exceeds 2⁸⁰.
        if dimension > MAX_ELEMENTS or (volume := volume * dimension) > MAX_ELEMENTS:
            raise InvalidArgument(f"{where}: shape {shown(list(shape))} holds more than {MAX_ELEMENTS} elements")
    return 0 if empty else volume


def bytes_tensor(elements: list[bytes], shape: Sequence[int]) -> Tensor:
    """An array of BYTES. The number of elements must match the shape."""
    # np.array(elements) would guess a fixed width and strip trailing zeros; assigning to objects keeps them.
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)
