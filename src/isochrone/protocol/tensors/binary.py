"""Tensors as bytes and as protobuf, for binary REST, gRPC and shared memory.

Tensors are views of the received buffer if the datatype has a fixed size; only BYTES and typed contents are copied.
Malformed input raises ``IsochroneError`` and nothing else. Allocations are bounded by the bytes received, never by the
sizes that a header claims.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.errors import Internal, InvalidArgument
from isochrone.protocol.tensors.datatypes import bytes_tensor, element_count, numpy_of, shown

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor

_LENGTH = struct.Struct("<I")

#: Datatype → field of InferTensorContents. FP16 and BF16 have none: they are sent as raw bytes only.
CONTENTS_FIELD = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_NARROW = {"INT8": "<i4", "INT16": "<i4", "UINT8": "<u4", "UINT16": "<u4"}


def decode_bytes(view: memoryview | bytes, count: int, where: str) -> Tensor:
    """Decode exactly ``count`` elements, each a little-endian uint32 length and that many bytes."""
    # One copy up front: slices of bytes are the elements; slices of a memoryview would have to be converted.
    data = bytes(view)
    total = len(data)
    # Every element takes at least 4 bytes: work and memory are bounded by the bytes received, not by ``count``.
    if 4 * count > total:
        raise InvalidArgument(
            f"{where}: expected {count} BYTES elements, which take {4 * count} bytes or more, given {total} bytes"
        )
    elements: list[bytes] = []
    append, length_at = elements.append, _LENGTH.unpack_from
    start = offset = 0
    try:
        for _ in range(count):
            start = offset + 4
            offset = start + length_at(data, offset)[0]
            append(data[start:offset])
    except struct.error:
        if offset == total:
            given = f"{len(elements)} in {total} bytes"
            raise InvalidArgument(f"{where}: expected {count} BYTES elements, given {given}") from None
        if offset < total:
            raise InvalidArgument(
                f"{where}: BYTES element {len(elements)} is truncated: expected a length of 4 bytes, "
                f"given {total - offset} bytes"
            ) from None
        start = total - len(elements[-1])
    if offset > total:
        raise InvalidArgument(
            f"{where}: BYTES element {len(elements) - 1} is truncated: expected {offset - start} bytes, "
            f"given {total - start}"
        )
    if offset < total:
        raise InvalidArgument(
            f"{where}: expected {count} BYTES elements, given {total - offset} further bytes after them"
        )
    return bytes_tensor(elements, (count,))


def encode_bytes(array: Tensor) -> bytes:
    """The wire form of a BYTES tensor in row-major order. Elements are bytes, or text, which is encoded as UTF-8."""
    parts: list[bytes] = []
    append, length = parts.append, _LENGTH.pack
    for element in array.ravel().tolist():
        if isinstance(element, str):
            try:
                element = element.encode()
            except UnicodeEncodeError as error:
                reason = f"BYTES element {shown(element)} has no UTF-8 form: {error.reason}"
                raise InvalidArgument(reason) from None
        elif not isinstance(element, bytes):
            raise InvalidArgument(
                f"BYTES element {len(parts) // 2} is {shown(element)} of type {type(element).__name__}, "
                "expected bytes or str"
            )
        append(length(len(element)))
        append(element)
    return b"".join(parts)


def size_mismatch(name: str, model: str, expected: int, given: int) -> InvalidArgument:
    """The error for an input whose size does not match its shape, in Triton's wording."""
    where = f" for model '{model}'" if model else ""
    return InvalidArgument(f"input byte size mismatch for input '{name}'{where}. Expected {expected}, got {given}")


def from_binary(name: str, datatype: str, shape: Sequence[int], view: memoryview | bytes, model: str = "") -> Tensor:
    """A tensor from received bytes: a view of them, except for BYTES. It may be read-only and unaligned.

    ``model`` is for the error message.
    """
    dtype = numpy_of(datatype)
    count = element_count(shape, f"input '{name}'")
    if datatype == "BYTES":
        return decode_bytes(view, count, f"input '{name}'").reshape(shape)
    given = view.nbytes if isinstance(view, memoryview) else len(view)
    if given != count * dtype.itemsize:
        raise size_mismatch(name, model, count * dtype.itemsize, given)
    # Not np.ndarray(buffer=view), which is faster but releases the buffer immediately: its owner could then free or
    # unmap the memory under the array. frombuffer keeps the buffer.
    array: Tensor = np.frombuffer(view, dtype).reshape(shape)
    return truth(array) if datatype == "BOOL" else array


def truth(array: Tensor) -> Tensor:
    """A BOOL tensor with bytes 0 and 1 only.

    C clients send any non-zero byte for true, but numpy and onnxruntime assume 0 or 1.
    """
    numbers = array.view(np.uint8)
    return numbers != 0 if array.size and numbers.max() > 1 else array


def to_binary(array: Tensor, datatype: str) -> bytes | memoryview:
    """The wire form of a tensor: a view of its memory if that is contiguous. The view keeps the array alive."""
    if datatype == "BYTES":
        return encode_bytes(array)
    if array.dtype != numpy_of(datatype):
        raise Internal(f"an array of {array.dtype} cannot be sent as {datatype}")
    if not array.flags.c_contiguous:
        return array.tobytes()
    # Through uint8: bfloat16 does not support the buffer protocol, and transports need len() in bytes.
    return array.reshape(-1).view(np.uint8).data


def from_contents(name: str, datatype: str, shape: Sequence[int], contents: Any) -> Tensor:
    """A tensor from gRPC's typed ``InferTensorContents``."""
    dtype = numpy_of(datatype)
    where = f"input '{name}'"
    count = element_count(shape, where)
    wanted = CONTENTS_FIELD.get(datatype)
    if wanted is None:
        raise InvalidArgument(f"{where}: {datatype} has no typed contents, send it in raw_input_contents")
    values: Sequence[Any] = ()
    for field, value in contents.ListFields():
        if field.name != wanted:
            raise InvalidArgument(f"{where}: {datatype} is carried by {wanted}, given {field.name}")
        values = value
    if len(values) != count:
        raise InvalidArgument(
            f"{where}: expected {count} elements in {wanted} for shape {list(shape)}, given {len(values)}"
        )
    if datatype == "BYTES":
        return bytes_tensor(list(values), shape)
    narrow = _NARROW.get(datatype)
    if narrow is None:
        return np.fromiter(values, dtype, count).reshape(shape)
    wide = np.fromiter(values, narrow, count)
    limits = np.iinfo(dtype)
    outside = (wide < limits.min) | (wide > limits.max)
    if outside.any():
        index = int(outside.argmax())
        raise InvalidArgument(
            f"{where}: element {index} is {wide[index]}, outside {datatype}'s range {limits.min} to {limits.max}"
        )
    return wide.astype(dtype).reshape(shape)
