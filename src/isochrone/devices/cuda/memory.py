"""A tensor in a GPU's memory that belongs to no framework: an address, a shape, a type.

torch, cupy and others read it through ``__cuda_array_interface__`` or DLPack, without a copy. Nobody keeps it beyond
the request that names it: then its owner may free the memory.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.devices.cuda.dlpack import CUDA, capsule_of

if TYPE_CHECKING:
    from isochrone.devices.cuda.interface import CudaDriver


class CudaTensor:
    """Contiguous memory on device ``device``, in the order of C."""

    __slots__ = ("_driver", "address", "device_number", "dtype", "shape")

    def __init__(
        self, driver: CudaDriver, device: int, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._driver = driver
        self.device_number = device
        self.address = address
        self.shape = shape
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. There is no type for bfloat16: it is shown as 16-bit integers; DLPack has one."""
        # "stream": None says that the contents are there: the client has written them before it sent its request.
        return {
            "shape": self.shape,
            "typestr": "<i2" if self.dtype.name == "bfloat16" else self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device_number

    def __dlpack__(self, *, stream: Any = None, **wishes: Any) -> Any:
        """For any stream: nothing is pending on the memory."""
        return capsule_of(self.address, self.shape, self.dtype, self.__dlpack_device__(), self)

    def reshape(self, shape: tuple[int, ...]) -> CudaTensor:
        """The same memory; one size may be -1."""
        size = prod(self.shape)
        known = prod(each for each in shape if each != -1)
        if shape.count(-1) == 1 and known and size % known == 0:
            shape = tuple(size // known if each == -1 else each for each in shape)
        if -1 in shape or prod(shape) != size:
            raise ValueError(f"cannot reshape a tensor of shape {list(self.shape)} into {list(shape)}")
        return CudaTensor(self._driver, self.device_number, self.address, tuple(shape), self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> CudaTensor:
        """Rows ``start:stop``, in the same memory."""
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise ValueError(f"rows of a tensor on a device: expected a step of 1, given {step}")
        row = prod(self.shape[1:]) * self.dtype.itemsize
        shape = (max(0, stop - start), *self.shape[1:])
        return CudaTensor(self._driver, self.device_number, self.address + start * row, shape, self.dtype)

    def get(self) -> np.ndarray[Any, np.dtype[Any]]:
        """A copy in the host's memory, as cupy's method of this name. Raises ``CudaError``."""
        array = np.empty(self.shape, self.dtype)
        self._driver.copy_to_host(self.device_number, array.reshape(-1).view(np.uint8).data, self.address)
        return array


def device_address(foreign: Any) -> int:
    """The address of a contiguous tensor of torch, cupy or this module."""
    if isinstance(foreign, CudaTensor):
        return foreign.address
    if hasattr(foreign, "data_ptr"):  # torch, whose other interface has no bfloat16
        return int(foreign.data_ptr())
    return int(foreign.__cuda_array_interface__["data"][0])
