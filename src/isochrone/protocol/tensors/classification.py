"""Triton's classification extension: the top classes of an output as text instead of the tensor.

Each class is "value:index", or "value:index:label" if the model has a label file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.datatypes import bytes_tensor, name_of, shown

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor


def classify(array: Tensor, count: int, labels: tuple[str, ...] | None, batched: bool) -> Tensor:
    """The top ``count`` classes as BYTES, of shape [rows, classes] if batched, else [classes].

    Fewer if the output has fewer. Equal values are in order of their index; NaN is last.
    """
    datatype = name_of(array.dtype)
    if datatype in ("BOOL", "BYTES"):
        raise InvalidArgument(f"class result not available for output due to unsupported type '{datatype}'")
    if type(count) is not int or count < 1:
        raise InvalidArgument(f"classification: expected a count of at least 1, given {shown(count)}")
    if batched and array.ndim == 0:
        raise InvalidArgument("class result not available for output: it has no batch dimension")
    rows = array.shape[0] if batched else 1
    width = array.size // rows if rows else 0
    # FP16 and BF16 are converted to FP32, which holds all their values and sorts faster.
    table = array.reshape(rows, width)
    if datatype in ("FP16", "BF16"):
        table = table.astype(np.float32)
    classes = min(count, width)
    # As C++'s std::to_string, which Triton uses: %f for floats, %d for integers.
    form = "%f:%d" if table.dtype.kind == "f" else "%d:%d"
    found: list[bytes] = []
    for row in table:
        for index in _descending(row)[:classes]:
            text = form % (row[index], index)
            label = labels[index] if labels is not None and index < len(labels) else ""
            found.append((f"{text}:{label}" if label else text).encode())
    return bytes_tensor(found, (rows, classes) if batched else (classes,))


def _descending(row: np.ndarray[Any, np.dtype[Any]]) -> list[int]:
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    # Negating would overflow for integers; a stable sort of the row reversed, read backwards, keeps ties in
    # order.
    order: list[int] = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1].tolist()
    return order
