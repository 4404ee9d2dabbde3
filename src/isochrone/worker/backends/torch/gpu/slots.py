"""The memory of one staging slot: inputs and outputs of a batch, on the host and on the device.

A slot has flat buffers that grow to the largest batch it has seen; tensors and arrays are views of them, made once per
shape.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.torch.gpu.device import Device

#: Views that a buffer keeps; callers of a model with free dimensions may bring any number of shapes.
_MAX_VIEWS = 256


def torch_dtype(torch: Any, dtype: np.dtype[Any]) -> Any:
    """torch's type of a numpy type."""
    return torch.bfloat16 if dtype == ml_dtypes.bfloat16 else getattr(torch, dtype.name)


def tensor_bytes(context: LoadContext) -> dict[str, int]:
    """Most bytes of each input and output of a batch; a dimension that callers choose counts as 1."""
    signature = context.signature
    rows = max(1, signature.max_batch_size)
    sizes: dict[str, int] = {}
    for spec in (*signature.inputs, *signature.outputs):
        dims = spec.dims if spec.reshape is None else spec.reshape
        elements = rows * prod(size if size > 0 else 1 for size in dims)
        sizes[spec.name] = max(sizes.get(spec.name, 0), elements * NUMPY_BY_NAME[spec.datatype].itemsize)
    return sizes


class Buffer:
    """One tensor of a slot: its bytes on the host and on the device."""

    def __init__(self, torch: Any, device: Device, dtype: np.dtype[Any], *, pinned: bool) -> None:
        self._torch = torch
        self._device = device
        self._dtype = dtype
        self._torch_dtype = torch_dtype(torch, dtype)
        self._pinned = pinned
        self._host: Any = None
        self._on_device: Any = None
        self.capacity = 0
        self._views: dict[tuple[int, ...], tuple[Tensor, Any, Any]] = {}

    def views(self, shape: tuple[int, ...]) -> tuple[Tensor, Any, Any]:
        """An array on the host, a tensor of the same bytes, and a tensor on the device. They are not initialised."""
        found = self._views.get(shape)
        if found is None:
            found = self._make(shape)
        return found

    def reserve(self, size: int) -> None:
        if size > self.capacity:
            self._views.clear()
            self._host = self._on_device = None
            self._host = self._device.host_bytes(size, self._pinned)
            self._on_device = self._device.device_bytes(size)
            self.capacity = size

    def _make(self, shape: tuple[int, ...]) -> tuple[Tensor, Any, Any]:
        size = prod(shape) * self._dtype.itemsize
        self.reserve(max(1, size))
        if len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        host = self._host[:size].view(self._torch_dtype).view(shape)
        array = self._host[:size].numpy().view(self._dtype).reshape(shape)
        views = self._views[shape] = array, host, self._on_device[:size].view(self._torch_dtype).view(shape)
        return views


class Slot:
    """The buffers of one batch on its way, and the events that order it."""

    def __init__(self, device: Device, inputs: dict[str, Buffer], outputs: dict[str, Buffer]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.copied_in = device.event()
        self.computed = device.event()
        self.copied_out = device.event()
