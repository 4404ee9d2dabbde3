"""A device with memory of its own, for machines that have none: its tensors have DLPack's methods alone."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np

CUDA = 2


class DeviceTensor:
    """As cupy's arrays: ``get`` copies to the host."""

    #: The thread of every copy to the host.
    copied_by: ClassVar[list[str]] = []

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._memory.shape)

    @property
    def dtype(self) -> str:
        return f"device.{self._memory.dtype}"

    @property
    def address(self) -> int:
        return int(self._memory.__array_interface__["data"][0])

    def is_contiguous(self) -> bool:
        return bool(self._memory.flags.c_contiguous)

    def reshape(self, shape: tuple[int, ...]) -> DeviceTensor:
        return DeviceTensor(self._memory.reshape(shape))

    def plus(self, number: float) -> DeviceTensor:
        return DeviceTensor(self._memory + np.float32(number))

    def get(self) -> Any:
        self.copied_by.append(threading.current_thread().name)
        return self._memory.copy()

    def __dlpack__(self, **wishes: Any) -> DeviceTensor:
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0


def from_dlpack(tensor: Any) -> DeviceTensor:
    capsule = tensor.__dlpack__()
    assert isinstance(capsule, DeviceTensor)
    return capsule


def to_device(array: Any) -> DeviceTensor:
    return DeviceTensor(array.copy())
