"""``pb_utils.Tensor``: a named array in memory of the host, or a tensor of another library on a device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from isochrone.devices.device_array import DeviceArray, dtype_of
from isochrone.worker.backends.python.triton.failures import TritonModelException
from isochrone.worker.backends.tensors.receive_buffers import writable

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor as Array

#: Numbers of ``TRITONSERVER_DataType``.
_NUMBER_BY_DTYPE: dict[Any, int] = {
    np.dtype(kind): number
    for number, kind in enumerate(
        (
            *(np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64),
            *(np.float16, np.float32, np.float64, np.object_),
        ),
        start=1,
    )
}
_BYTES = 13
_BF16 = 14
_BRAIN = np.dtype(ml_dtypes.bfloat16)
_NUMBER_BY_DTYPE[_BRAIN] = _BF16

# https://dmlc.github.io/dlpack/latest/c_api.html: DLDeviceType
_CPU, _CUDA, _CUDA_HOST = 1, 2, 3


class Tensor:
    """A tensor of a request or a response.

    ``_array`` is None while the tensor is on a device: then ``_foreign`` has it. Arrays that others may see are copied
    before the model can write to them (``of_request``); those that the model made are as it made them.
    """

    __slots__ = ("_array", "_foreign", "_is_received", "_is_shared", "_name")

    def __init__(self, name: str, numpy_array: Any) -> None:
        _check_name(name)
        if type(numpy_array) is not np.ndarray:
            numpy_array = np.asarray(numpy_array)
        if numpy_array.dtype not in _NUMBER_BY_DTYPE and numpy_array.dtype.kind != "S":
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._array: Array | None = numpy_array if numpy_array.flags.c_contiguous else _contiguous(numpy_array)
        self._foreign: Any = None
        self._is_shared = self._is_received = False

    @classmethod
    def of_request(cls, name: str, array: Array | DeviceArray, is_shared: bool) -> Tensor:
        """An input, whose type is known to be right. ``is_shared``: somebody else may read the same memory."""
        if isinstance(array, DeviceArray):
            return cls.on_device(name, array.foreign)
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        tensor._foreign = None
        tensor._is_shared = is_shared
        tensor._is_received = True
        return tensor

    @classmethod
    def on_device(cls, name: str, foreign: Any) -> Tensor:
        """A tensor that stays where it is; ``foreign`` has ``__dlpack__``, ``shape`` and ``__dlpack_device__``."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = None
        tensor._foreign = foreign
        tensor._is_shared = tensor._is_received = False
        return tensor

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        if self._array is None:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._array.dtype == _BRAIN:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._writable()

    def triton_dtype(self) -> int:
        if self._array is None:
            return _NUMBER_BY_DTYPE[dtype_of(self._foreign)]
        return _NUMBER_BY_DTYPE.get(self._array.dtype, _BYTES)

    def shape(self) -> list[int]:
        return list(self._foreign.shape if self._array is None else self._array.shape)

    def is_cpu(self) -> bool:
        return self._array is not None

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **wishes: Any) -> Any:
        if self._array is None:
            return self._foreign.__dlpack__(stream=stream) if stream is not None else self._foreign.__dlpack__()
        if self._array.dtype.kind in "OS":
            raise TritonModelException("DLPack does not have support for string tensors.")
        array = self._writable()
        if not array.flags.writeable:  # DLPack has no word for that
            array = array.copy()
        if array.dtype == _BRAIN:
            return _brain_capsule(array)
        return array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        if self._array is None:
            kind, number = self._foreign.__dlpack_device__()
            return int(kind), int(number)
        return _CPU, 0

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        _check_name(name)
        if type(tensor).__name__ == "PyCapsule":
            return _from_capsule(name, tensor)
        if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        device = int(tensor.__dlpack_device__()[0])
        if device == _CUDA:
            return _on_cuda(name, tensor)
        if device not in (_CPU, _CUDA_HOST):
            raise TritonModelException(f"DLDevice type {device} is not support by Python backend.")
        if "bfloat16" in str(getattr(tensor, "dtype", "")):
            return _from_brain(name, tensor)
        return _from_host(name, tensor)

    # For the server.

    @property
    def host_array(self) -> Array | None:
        return self._array

    @property
    def own_array(self) -> Array | None:
        """The same, but never memory that others may read: what a model returns may be written to by the next."""
        return self._writable() if self._is_shared else self._array

    @property
    def foreign(self) -> Any:
        """The tensor on a device; None: it is in the host's memory."""
        return self._foreign

    def _writable(self) -> Array:
        """The array as Triton gives it: writable, and nobody else's."""
        array = self._array
        assert array is not None
        if not self._is_received or (array.flags.writeable and not self._is_shared):
            return array
        self._array = array = array.copy() if self._is_shared else writable(array)
        self._is_shared = False
        return array


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor: expected a str, given a {type(name).__name__}")
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")


def _contiguous(array: Array) -> Array:
    # ascontiguousarray makes a vector of an array without dimensions.
    return np.ascontiguousarray(array).reshape(array.shape)


def _from_host(name: str, tensor: Any) -> Tensor:
    try:
        array = np.from_dlpack(tensor)
    except (BufferError, ValueError) as error:  # a ValueError: somebody has used the capsule
        raise TritonModelException(f"DLPack tensor cannot be read: {error}") from error
    if not array.flags.c_contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    return Tensor(name, array)


class _Capsule:
    """A capsule whose device nobody named: numpy takes those in the host's memory, and refuses the others."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def _from_capsule(name: str, capsule: Any) -> Tensor:
    try:
        return _from_host(name, _Capsule(capsule))
    except (TritonModelException, RuntimeError, BufferError):
        # On a device, or of a type that numpy lacks: torch reads it, if it is there.
        torch = _loaded_torch()
        if torch is None:
            raise
        return Tensor.from_dlpack(name, torch.utils.dlpack.from_dlpack(capsule))


def _on_cuda(name: str, tensor: Any) -> Tensor:
    if hasattr(tensor, "is_contiguous"):  # torch
        is_contiguous = tensor.is_contiguous()
    elif hasattr(tensor, "flags"):  # cupy
        is_contiguous = tensor.flags.c_contiguous
    else:
        raise TritonModelException(
            f"DLPack tensor is on a GPU: expected one of torch or cupy, given a {type(tensor).__name__}"
        )
    if not is_contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    _await_device(tensor)
    return Tensor.on_device(name, tensor)


def _await_device(tensor: Any) -> None:
    """Waits for the work that the model has put on its current stream: those who read the tensor have other streams."""
    library = sys.modules.get(type(tensor).__module__.partition(".")[0])
    cuda: Any = getattr(library, "cuda", None)
    if hasattr(cuda, "current_stream"):  # torch
        cuda.current_stream(tensor.device).synchronize()
    elif hasattr(cuda, "get_current_stream"):  # cupy
        cuda.get_current_stream().synchronize()


def _from_brain(name: str, tensor: Any) -> Tensor:
    """numpy has no bfloat16, and torch has no view of it for numpy: two-byte integers can pass."""
    torch = _loaded_torch()
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise TritonModelException("DLPack tensor is BF16: expected a torch tensor")
    if not tensor.is_contiguous():
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    return Tensor(name, tensor.detach().view(torch.int16).numpy().view(_BRAIN))


def _brain_capsule(array: Array) -> Any:
    torch = _loaded_torch()
    if torch is None:
        raise TritonModelException("DLPack of a BF16 tensor needs torch: import it in model.py")
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).__dlpack__()


def _loaded_torch() -> Any:
    """torch, if the model has imported it: nobody else needs it."""
    return sys.modules.get("torch")
