"""How features cross between stages: as they are, in half precision, or as bytes with a scale for each channel.

An encoding is nodes at the end of stage 1 and at the beginning of stage 2. The stages are plain ONNX models, so that
every server can run them, and fewer bytes cross because the tensors between them have a smaller type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np


class Encoding(StrEnum):
    PLAIN = "plain"
    FP16 = "fp16"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class ChannelScales:
    """A value is ``scale`` of its channel times a byte. Symmetric: zero stays zero."""

    axis: int
    scales: np.ndarray[Any, np.dtype[np.float32]]


#: By the name of the tensor.
Scales = Mapping[str, ChannelScales]


@dataclass(frozen=True, slots=True)
class Crossing:
    """One tensor on its way: its name on the wire, and the nodes at both ends."""

    name: str
    dtype: np.dtype[Any]
    last_nodes: tuple[Any, ...] = ()
    first_nodes: tuple[Any, ...] = ()
    #: Constants of those nodes.
    initializers: tuple[Any, ...] = ()


def channel_axis(rank: int) -> int:
    """Pictures have their channels behind the rows; sequences and vectors have them last."""
    return 1 if rank == 4 else rank - 1


def scales_of(values: np.ndarray[Any, Any]) -> ChannelScales:
    """From values of the tensor on calibration data."""
    axis = channel_axis(values.ndim)
    others = tuple(place for place in range(values.ndim) if place != axis)
    largest = np.abs(values.astype(np.float32)).max(axis=others)
    return ChannelScales(axis, np.maximum(largest / 127, np.finfo(np.float32).tiny).astype(np.float32))


def is_encodable(dtype: np.dtype[Any], dims: Sequence[int | None], encoding: Encoding) -> bool:
    """Indices and masks cross as they are. Scales for each channel need a fixed number of channels."""
    if dtype != np.float32 or len(dims) < 2:
        return False
    return encoding is not Encoding.INT8 or dims[channel_axis(len(dims))] is not None


def crossing_of(name: str, dtype: np.dtype[Any], encoding: Encoding, scales: ChannelScales | None) -> Crossing:
    """``scales`` are for INT8 alone."""
    if encoding is Encoding.PLAIN:
        return Crossing(name, dtype)
    import onnx
    from onnx import helper, numpy_helper

    wire = f"{name}.{encoding}"
    if encoding is Encoding.FP16:
        last = helper.make_node("Cast", [name], [wire], to=onnx.TensorProto.FLOAT16)
        first = helper.make_node("Cast", [wire], [name], to=onnx.TensorProto.FLOAT)
        return Crossing(wire, np.dtype(np.float16), (last,), (first,))
    assert scales is not None
    scale, zero = f"{wire}.scale", f"{wire}.zero"
    last = helper.make_node("QuantizeLinear", [name, scale, zero], [wire], axis=scales.axis)
    first = helper.make_node("DequantizeLinear", [wire, scale, zero], [name], axis=scales.axis)
    constants = (
        numpy_helper.from_array(scales.scales, scale),
        numpy_helper.from_array(np.zeros(scales.scales.shape, np.int8), zero),
    )
    return Crossing(wire, np.dtype(np.int8), (last,), (first,), constants)


def passed_by(name: str, dtype: np.dtype[Any]) -> Crossing:
    """An input of the model that stage 2 reads: a stage's output cannot have the name of its input."""
    from onnx import helper

    wire = f"{name}.passed"
    last, first = helper.make_node("Identity", [name], [wire]), helper.make_node("Identity", [wire], [name])
    return Crossing(wire, dtype, (last,), (first,))


def encoded_bytes(row_bytes: int, before: np.dtype[Any], after: np.dtype[Any]) -> int:
    return row_bytes * after.itemsize // before.itemsize


def least_opset(encoding: Encoding) -> int:
    """Scales for each channel exist from opset 13 on."""
    return 13 if encoding is Encoding.INT8 else 1
