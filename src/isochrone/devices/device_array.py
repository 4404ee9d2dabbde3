"""A tensor on a device (a GPU), in the place of a numpy array among a request's inputs or outputs.

A model may return a tensor of torch, cupy or another library with DLPack that is not in the host's memory. If everyone
who reads it takes tensors on devices (the next steps of an ensemble, a region of CUDA shared memory), it is passed on
as it is, in a ``DeviceArray``; otherwise the thread of the model that made it copies it to the host. Inputs in CUDA
shared memory arrive the same way. Its contents are complete when it is passed on: whoever reads it has another stream.
Nothing here imports such a library.
"""

from __future__ import annotations

from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_BRAIN: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


class DeviceArray:
    """What a server needs of an array: its shape, its type, and other shapes of the same memory."""

    __slots__ = ("dtype", "foreign", "shape")

    def __init__(self, foreign: Any) -> None:
        """``foreign`` has ``__dlpack__``, ``shape``, ``dtype`` and ``reshape``, and is contiguous."""
        self.foreign = foreign
        dtype = foreign.dtype
        if isinstance(dtype, np.dtype):
            self.shape: tuple[int, ...] = foreign.shape
            self.dtype = dtype
        else:
            self.shape = tuple(map(int, foreign.shape))
            self.dtype = dtype_of(foreign)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        return DeviceArray(self.foreign.reshape(shape))


def dtype_of(foreign: Any) -> np.dtype[Any]:
    """The numpy type of another library's tensor, by its name: ``torch.float32``, ``float32``."""
    name = str(foreign.dtype).rpartition(".")[2]
    if name == "bfloat16":
        return _BRAIN
    try:
        return np.dtype(name)
    except TypeError:
        raise TypeError(f"a tensor on a device: expected a type that numpy has, or bfloat16, given {name}") from None


def on_host(foreign: Any) -> Array:
    """A copy of a device's tensor in the host's memory. It waits for the device."""
    if hasattr(foreign, "cpu"):  # torch
        copy = foreign.detach().cpu()
        if dtype_of(foreign) == _BRAIN:
            # numpy has no bfloat16 of its own: two-byte integers can pass.
            import torch

            return np.asarray(copy.view(torch.int16).numpy()).view(_BRAIN)
        return np.asarray(copy.numpy())
    return np.asarray(foreign.get())  # cupy
