"""Streams that run on a part of a GPU's multiprocessors (SMs): green contexts of the CUDA driver, through ctypes.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GREEN__CONTEXTS.html. What is launched on a stream of a green
context runs on its SMs alone, also from a CUDA graph that was captured on such a stream. Memory, caches and bandwidth
are not divided, and everything else in the process still runs on all SMs: the other models have to be on streams of the
other part. ``GreenContext`` of torch takes the first SMs of the device each time, so two of them overlap; here the
driver divides the device once.

Green contexts and their streams live as long as the process.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.cuda.library import LIBRARY
from isochrone.devices.sm_plan import SmDivision, SmLimits, limits_of

# cuda.h
_SUCCESS = 0
_TYPE_SM = 1
_DEFAULT_STREAM = 1
_STREAM_NON_BLOCKING = 1
_COMPUTE_CAPABILITY_MAJOR = 75
#: From this version on, the driver gives the smallest part and the step.
_HAS_STEPS = 13000

_POINTER = ctypes.c_void_p
_FLAGS = ctypes.c_uint


class _Resource(ctypes.Structure):
    """CUdevResource of type SM. The driver fills all of it and reads it again; its size is fixed since CUDA 12.4."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("internal", ctypes.c_ubyte * 92),
        ("count", ctypes.c_uint),
        ("minimum", ctypes.c_uint),
        ("step", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("unused", ctypes.c_ubyte * 24),
        ("following", ctypes.c_void_p),
    )


_RESOURCE = ctypes.POINTER(_Resource)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_FLAGS,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDriverGetVersion": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDeviceGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_POINTER), ctypes.c_int),
    "cuDeviceGetDevResource": (ctypes.c_int, _RESOURCE, ctypes.c_int),
    "cuDevSmResourceSplitByCount": (_RESOURCE, ctypes.POINTER(_FLAGS), _RESOURCE, _RESOURCE, _FLAGS, _FLAGS),
    "cuDevResourceGenerateDesc": (ctypes.POINTER(_POINTER), _RESOURCE, _FLAGS),
    "cuGreenCtxCreate": (ctypes.POINTER(_POINTER), _POINTER, ctypes.c_int, _FLAGS),
    "cuGreenCtxStreamCreate": (ctypes.POINTER(_POINTER), _POINTER, _FLAGS, ctypes.c_int),
}


@dataclass(frozen=True, slots=True)
class GreenContexts:
    """Handles of the contexts of a divided GPU, and the SMs that they really have."""

    reserved: int
    rest: int
    division: SmDivision


class GreenDriver(Protocol):
    """What a division needs of the driver. Every method raises ``CudaError``."""

    def limits(self, device: int) -> SmLimits: ...

    def divide(self, device: int, reserved: int) -> GreenContexts: ...

    def new_stream(self, context: int) -> int:
        """The handle of a stream that does not wait for the default stream."""
        ...


class GreenLibrary(GreenDriver):
    """The driver of this machine. Any thread may use it; callers divide a device once."""

    def __init__(self, library: Any = None) -> None:
        """``library`` stands in for libcuda in tests."""
        try:
            loaded = ctypes.CDLL(LIBRARY) if library is None else library
        except OSError as error:
            raise CudaError(LIBRARY, f"the driver's library cannot be loaded: {error}") from None
        try:
            self._functions = {name: _function(loaded, name, types) for name, types in _FUNCTIONS.items()}
        except AttributeError as error:
            missing = str(error).rpartition(":")[2].strip() or str(error)
            raise CudaError(LIBRARY, f"the driver is too old, CUDA 12.5 is needed: {missing}") from None
        self._call("cuInit", 0)

    def limits(self, device: int) -> SmLimits:
        number, version, major = self._device(device), ctypes.c_int(), ctypes.c_int()
        whole = self._whole(number)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self._call("cuDeviceGetAttribute", ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, number)
        minimum, step = (whole.minimum, whole.step) if version.value >= _HAS_STEPS else (0, 0)
        return limits_of(whole.count, minimum, step, major.value)

    def divide(self, device: int, reserved: int) -> GreenContexts:
        number = self._device(device)
        # Green contexts share the memory and the code of the primary context, which torch uses.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(_POINTER()), number)
        whole, group, rest, groups = self._whole(number), _Resource(), _Resource(), ctypes.c_uint(1)
        parts = ctypes.byref(group), ctypes.byref(groups), ctypes.byref(whole), ctypes.byref(rest)
        self._call("cuDevSmResourceSplitByCount", *parts, 0, reserved)
        division = SmDivision(group.count, rest.count)
        if groups.value != 1 or group.count != reserved or not rest.count:
            raise CudaError(
                "cuDevSmResourceSplitByCount",
                f"asked for {reserved} SMs, given {division.reserved} and {division.rest}",
            )
        return GreenContexts(self._context(number, group), self._context(number, rest), division)

    def new_stream(self, context: int) -> int:
        stream = _POINTER()
        self._call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _STREAM_NON_BLOCKING, 0)
        return stream.value or 0

    def _device(self, device: int) -> int:
        number = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), device)
        return number.value

    def _whole(self, number: int) -> _Resource:
        whole = _Resource()
        self._call("cuDeviceGetDevResource", number, ctypes.byref(whole), _TYPE_SM)
        return whole

    def _context(self, number: int, resource: _Resource) -> int:
        description, context = _POINTER(), _POINTER()
        self._call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(resource), 1)
        self._call("cuGreenCtxCreate", ctypes.byref(context), description, number, _DEFAULT_STREAM)
        return context.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        result = self._functions[name](*arguments)
        if result != _SUCCESS:
            raise CudaError(name, self._error_name(result))

    def _error_name(self, result: int) -> str:
        text = ctypes.c_char_p()
        if self._functions["cuGetErrorName"](result, ctypes.byref(text)) != _SUCCESS or text.value is None:
            return f"error {result}"
        return text.value.decode()


def _function(library: Any, name: str, types: tuple[Any, ...]) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = types, ctypes.c_int
    return function
