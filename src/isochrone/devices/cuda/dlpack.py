"""DLPack capsules for memory on a device: the form in which torch, cupy and others take a tensor without a copy.

https://dmlc.github.io/dlpack/latest/c_api.html. A capsule that nobody takes frees itself; whoever takes it renames it
and calls its deleter, on any thread.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2

_NAME = b"dltensor"
#: DLDataTypeCode by numpy's kind; bfloat16 is of kind V.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


#: Address of a managed tensor → everything that must live until its deleter is called.
_living: dict[int, Any] = {}


def _forget(address: int) -> None:
    _living.pop(address, None)


_delete = _Deleter(_forget)

# Prototypes of our own: attributes of ``ctypes.pythonapi`` belong to everyone in the process, and tritonclient sets
# others. With pointers instead of objects: a capsule that is being freed must not be referenced again.
_Name = ctypes.c_char_p
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, _Name, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Name)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _Name)(("PyCapsule_GetPointer", ctypes.pythonapi))


def _forget_untaken(capsule: int) -> None:
    # Whoever takes a capsule renames it to used_dltensor.
    if _is_valid(capsule, _NAME):
        _forget(_pointer_of(capsule, _NAME))


_free_untaken = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget_untaken)


def capsule_of(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int], owner: object
) -> Any:
    """A capsule named dltensor for contiguous memory, which ``owner`` keeps valid."""
    managed = _ManagedTensor()
    tensor = managed.tensor
    tensor.data = address
    tensor.device.kind, tensor.device.number = device
    tensor.ndim = len(shape)
    code = _BFLOAT if dtype.name == "bfloat16" else _CODES.get(dtype.kind)
    if code is None:
        raise BufferError(f"DLPack has no type for {dtype}")
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code, dtype.itemsize * 8, 1
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))()
    step = 1
    for position in reversed(range(len(shape))):
        steps[position] = step
        step *= shape[position]
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    tensor.byte_offset = 0
    managed.deleter = _delete
    _living[ctypes.addressof(managed)] = (managed, sizes, steps, owner)
    return _new_capsule(ctypes.addressof(managed), _NAME, ctypes.cast(_free_untaken, ctypes.c_void_p))
